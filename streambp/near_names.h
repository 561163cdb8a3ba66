// What somebody may have meant by a name that is not known.
#pragma once

#include <string>
#include <vector>

namespace streambp {

/// "; did you mean qwen3-8b?", of up to three of `names`: those that begin with `typed`, or else those that
/// are one or two letters from it, whatever the case. Empty where there are none.
std::string did_you_mean(const std::string& typed, const std::vector<std::string>& names);

}  // namespace streambp
