// Cases with a mistake that is planted in both builds, as it would be in an operation of the reference.
#pragma once

#include "reference/check/case.h"
#include "reference/check/truth.h"

namespace streambp::STREAMBP_REFERENCE {

/// y = e^x - x^3, whose chain rule is too large by the factor 1 + error; `joint`: with one complex step in
/// all.
Case case_with_wrong_factor(double error, bool joint = false);

/// y = x^2, whose first factor is held constant although it is not.
Case case_with_lost_dependence();

}  // namespace streambp::STREAMBP_REFERENCE

namespace streambp::reference_in_extended_precision {

reference::Truth truth_with_wrong_factor(double error, bool joint = false);
reference::Truth truth_with_lost_dependence();

}  // namespace streambp::reference_in_extended_precision
