// The gates of a gated delta rule's layer: how much its states decay.
#pragma once

#include <ATen/ATen.h>

#include "streambp/ops/parameter.h"

namespace streambp {

/// -exp(log_rate) softplus(a + bias) for a [n, heads] and parameters [heads]: the logarithm of what each
/// head's state is multiplied by at each token, float32, or float64 for float64. Or each entry of a head's
/// keys has its own, a and the bias as many columns, and the rate's shape is any of `heads` numbers. Hugging
/// Face calls the parameters A_log and dt_bias. They must outlive the graph. With a `bound` below 0 it is
/// bound sigmoid(exp(log_rate) (a + bias)) instead (GLM-5.3).
at::Tensor log_decay(const at::Tensor& a, Parameter& log_rate, Parameter& bias, double bound = 0.0);

/// The same in two for Mamba-2: the step of time min(max(softplus(a + bias), low), high), through which no
/// gradient goes where it is cut off, and -exp(log_rate) step. Both float32, or float64 for float64.
at::Tensor time_step(const at::Tensor& a, Parameter& bias, double low, double high);
at::Tensor decay_of_step(const at::Tensor& step, Parameter& log_rate);

/// hidden [n, heads, size] plus skip [heads] times what each head has read, x [n, heads * size].
at::Tensor add_skip(const at::Tensor& hidden, const at::Tensor& x, Parameter& skip);

}  // namespace streambp
