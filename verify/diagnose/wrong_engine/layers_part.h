// Which mistakes are made around the library's layers, and need no engine of their own.
#pragma once

#include <cstdint>
#include <vector>

#include "verify/diagnose/wrong_engine/wrong_settings.h"

namespace streambp::verify {

/// `settings` without what the library's layers can do.
WrongSettings without_layers_part(WrongSettings settings);

/// The layers that run, of so many.
std::vector<int64_t> layers_in_order(const WrongSettings& settings, size_t layers);

}  // namespace streambp::verify
