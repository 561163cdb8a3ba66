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

  /// Needs a gradient although it has no buffer for it just now: see Model::defer_gradients.
  bool deferred = false;

  /// What rounding has left out of `gradient` so far, float64; undefined where no CompensatedSum asks for it.
  at::Tensor compensation = {};

  bool trainable() const { return gradient.defined() || deferred; }
};

/// gradient += scale rows^T inputs, for a weight [out, in], rows [n, out] and inputs [n, in]. A gradient of a
/// wider dtype than its operands is summed in that dtype. Does nothing where the parameter is frozen.
void accumulate_product(Parameter& parameter, const at::Tensor& rows, const at::Tensor& inputs,
                        double scale = 1.0);

/// gradient += sum of `rows` [n, size] over n. Does nothing where the parameter is frozen.
void accumulate_sum(Parameter& parameter, const at::Tensor& rows);

/// While it lives, accumulate_sum() keeps what rounding leaves out of the parameter's gradient and adds it
/// with the next rows (Kahan summation): a sum of many small parts has the error of one rounding. The first
/// part gets the bits that it has without.
class CompensatedSum {
 public:
  /// The parameter must outlive it; does nothing for one that is frozen or float64.
  explicit CompensatedSum(Parameter& parameter);
  ~CompensatedSum() { parameter_.compensation.reset(); }
  CompensatedSum(const CompensatedSum&) = delete;
  CompensatedSum& operator=(const CompensatedSum&) = delete;

 private:
  Parameter& parameter_;
};

}  // namespace streambp
