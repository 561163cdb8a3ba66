// What the build in extended precision knows of the cases, in types that both builds share.
#pragma once

#include <Eigen/Core>
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "reference/scalar.h"

namespace streambp::reference {

using LongMatrix = Eigen::Matrix<long double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

/// Value and gradients of one case in extended precision, and how far its chain rule is from complex steps.
struct Truth {
  std::string name;
  LongMatrix value;
  std::vector<LongMatrix> gradients;  // by the tape, of <cotangent, value>, one for every input
  /// max |a - d| / scale_of over all complex steps d, with a what the tape says of them. An input with more
  /// entries than have a step of their own is moved as a whole as well, and is measured by the length of
  /// its gradient.
  double chain_rule_error = 0.0;
  std::string worst_step;  // in words
  std::size_t steps = 0;
};

/// By what errors of an input's gradient are divided: its largest entry, but at least a thousandth of the
/// function's. A gradient that vanishes, as that of p / p does, has no digits, and is measured by the
/// function's largest entry.
template <typename T>
T scale_of(T largest_gradient, T largest_value) {
  if (largest_gradient > T(1e-15) * largest_value) return std::max(largest_gradient, T(1e-3) * largest_value);
  return largest_value == 0 ? T(1) : largest_value;
}

}  // namespace streambp::reference

namespace streambp::reference_in_extended_precision {

/// Of list_ops and list_models, in their order.
std::vector<reference::Truth> truths_of_ops(std::uint64_t seed);
std::vector<reference::Truth> truths_of_models(std::uint64_t seed, std::size_t entries);

}  // namespace streambp::reference_in_extended_precision
