// Least squares of one gradient by others.
#pragma once

#include <cstddef>
#include <vector>

#include <ATen/ATen.h>

namespace streambp::verify {

/// How often each part is in it, how well that is known (a standard deviation), and what is left, as a
/// residual.
struct Solution {
  std::vector<double> weights, deviations;
  double residual = 0.0;
};

/// Of own - columns w for vectors of `parameters` scaled gradients, with steps of refinement; of parts that
/// are alike, equal shares.
Solution solve(const std::vector<at::Tensor>& parts, const at::Tensor& own, size_t parameters);

/// Whether all weights are 1, as far as they are known, which is no better than `rounding`.
bool is_one_of_each(const Solution& solution, double rounding);

}  // namespace streambp::verify
