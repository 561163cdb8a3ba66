// What the build in extended precision knows of the cases, in types that both builds share.
#pragma once

#include <Eigen/Core>
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
  /// max |a - d| over all complex steps d, with a what the tape says of them, relative to the largest entry of
  /// the input's gradient, or to 1e-3 max |value| where that is more. An input with more entries than have a
  /// step of their own is moved as a whole as well, and the length of its gradient takes the entry's place.
  double chain_rule_error = 0.0;
  std::string worst_step;  // in words
  std::size_t steps = 0;
};

namespace in_extended_precision {

/// Of list_ops and list_models, in their order.
std::vector<Truth> truths_of_ops(std::uint64_t seed);
std::vector<Truth> truths_of_models(std::uint64_t seed);

}  // namespace in_extended_precision
}  // namespace streambp::reference
