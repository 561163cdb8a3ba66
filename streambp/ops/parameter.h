// A parameter and the buffer its gradient is added to.
#pragma once

#include <string>

#include <ATen/ATen.h>

namespace streambp {

/// One weight of a model. Takes no part in autograd: ops read `value` and add to `gradient`.
struct Parameter {
  std::string name;  // Hugging Face's
  at::Tensor value;  // weights of linear maps are [out, in]
  at::Tensor
      gradient;  // same shape, the parameter's dtype or float32; undefined where the parameter is frozen
  at::Tensor remainder =
      {};  // what rounding has left out of the gradient, like it, while somebody keeps that

  /// Needs a gradient although it has no buffer for it just now: see Model::defer_gradients.
  bool deferred = false;

  bool trainable() const { return gradient.defined() || deferred; }
};

/// gradient += scale rows^T inputs, for a weight [out, in], rows [n, out] and inputs [n, in]. A gradient of a
/// wider dtype than its operands is summed in that dtype, one with a remainder together with it. Does nothing
/// where the parameter is frozen.
void accumulate_product(Parameter& parameter, const at::Tensor& rows, const at::Tensor& inputs,
                        double scale = 1.0);

/// gradient += sum of `rows` [n, size] over n. Does nothing where the parameter is frozen.
void accumulate_sum(Parameter& parameter, const at::Tensor& rows);

}  // namespace streambp
