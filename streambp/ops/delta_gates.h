// The gates of a gated delta rule's layer: how much its states decay.
#pragma once

#include <ATen/ATen.h>

#include "streambp/ops/parameter.h"

namespace streambp {

/// -exp(log_rate) softplus(a + bias) for a [n, heads] and parameters [heads]: the logarithm of what each
/// head's state is multiplied by at each token, float32, or float64 for float64. Hugging Face calls the
/// parameters A_log and dt_bias. They must outlive the graph.
at::Tensor log_decay(const at::Tensor& a, Parameter& log_rate, Parameter& bias);

}  // namespace streambp
