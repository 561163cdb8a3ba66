// Which mistakes are made around the library's layers, and need no engine of their own.
#pragma once

#include "verify/diagnose/wrong_engine/wrong_settings.h"

namespace streambp::verify {

/// `settings` without what the library's layers can do.
WrongSettings without_layers_part(WrongSettings settings);

}  // namespace streambp::verify
