// Gradients by differences of values, which need no second build and no rule of any kind.
#pragma once

#include "reference/check/case.h"

namespace streambp::STREAMBP_REFERENCE {

Matrix value_of(const Function& f, const std::vector<Matrix>& inputs);

/// How far the tape's gradients g of <w, f> for the inputs from `first` to before `last` are from differences
/// along u, a random direction of length 1 whose entries are then multiplied by the inputs' length scales s:
/// |<g, u> - n| / max(|g s|, 1e-3 max |f|) with n the six-point central difference. Steps are eps^(1/7),
/// where truncation and rounding are both about 4e-14, and where the error is then more than 1e-10 a quarter
/// of that, for functions that bend more sharply, of which the nearer counts. A wrong gradient is far from
/// both. 0 for inputs without entries.
double difference_error(const Case& c, std::size_t first, std::size_t last,
                        const std::vector<Matrix>& gradients, const Matrix& w, double largest_value);

}  // namespace streambp::STREAMBP_REFERENCE
