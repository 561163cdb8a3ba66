// How presets are found.
#pragma once

#include <optional>
#include <string>

namespace streambp {

/// The preset that `model` names, whatever the case: by its own name, or by that of its repository,
/// "Qwen/Qwen3-4B" being qwen3-4b. Nothing where there is none.
std::optional<std::string> find_preset(const std::string& model);

}  // namespace streambp
