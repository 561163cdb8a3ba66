// One case in extended precision, for the build that has it.
#pragma once

#include "reference/check/case.h"
#include "reference/check/truth.h"

namespace streambp::STREAMBP_REFERENCE {

using reference::Truth;

/// Value, gradients and complex steps of one case, which may be of a test's own.
Truth truth_of(const Case& c);

}  // namespace streambp::STREAMBP_REFERENCE
