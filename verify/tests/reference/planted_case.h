// Cases with a mistake that is planted in both builds, as it would be in an operation of the reference.
#pragma once

#include "reference/check/case.h"
#include "reference/check/truth.h"

namespace streambp::reference::inline STREAMBP_ARITHMETIC {

/// y = e^x - x^3, whose chain rule is too large by the factor 1 + error.
Case case_with_wrong_factor(double error);

/// y = x^2, whose first factor is held constant although it is not.
Case case_with_lost_dependence();

}  // namespace streambp::reference::inline STREAMBP_ARITHMETIC

namespace streambp::reference::in_extended_precision {

Truth truth_with_wrong_factor(double error);
Truth truth_with_lost_dependence();

}  // namespace streambp::reference::in_extended_precision
