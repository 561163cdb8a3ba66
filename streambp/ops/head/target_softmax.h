// The log-probability of one target a row of logits and its gradient, without a tensor of probabilities: the
// logits are read once for the value, and once more when their gradient is written over them.
#pragma once

#include <ATen/ATen.h>

namespace streambp {

/// Whether target_log_probabilities runs on `device`: the CPU, a GPU whose kernels are loaded and, for shapes
/// alone, the meta device.
bool has_target_softmax(c10::Device device);

/// log softmax(logits / temperature)[targets], [rows] float64, for contiguous logits [rows, V] (float32,
/// float64 or bfloat16, which is widened as it is read) and targets [rows] (int64). `sums` receives what the
/// gradient needs, [rows, 2] float64. A row without a finite largest logit, or with NaN, gives NaN, as
/// at::log_softmax does.
at::Tensor target_log_probabilities(const at::Tensor& logits, const at::Tensor& targets, double temperature,
                                    at::Tensor& sums);

/// Turns the logits into their gradient, in their dtype, d_target * (onehot - softmax(logits / temperature))
/// / temperature, for d_target [rows] float64.
void target_log_probabilities_backward(at::Tensor& logits, const at::Tensor& targets, double temperature,
                                       const at::Tensor& sums, const at::Tensor& d_target);

}  // namespace streambp
