// Rows picked by index, and the gradient of picking them.
#pragma once

#include <ATen/ATen.h>

#include "streambp/ops/parameter.h"

namespace streambp {

/// Rows `places` [n] (int64) of x [N, D]: [n, D]. Without autograd.
at::Tensor gather_rows(const at::Tensor& x, const at::Tensor& places);

/// Adds row i of dx [n, D] to row places[i] of the parameter's gradient: the rows of one place are summed
/// together with what is there, on the CPU in float64, else in float32 or wider, and rounded once. Does
/// nothing where the parameter is frozen.
void accumulate_rows(Parameter& parameter, const at::Tensor& places, const at::Tensor& dx);

/// Adds row i of `rows` [n, D] to row places[i] of `sum` [N, D], of the same dtype. The places ascend, and
/// none comes twice. Without autograd.
void add_sorted_rows(at::Tensor& sum, const at::Tensor& places, const at::Tensor& rows);

}  // namespace streambp
