#include "streambp/ops/parameter.h"

namespace streambp {

void accumulate_product(Parameter& parameter, const at::Tensor& rows, const at::Tensor& inputs) {
  if (!parameter.trainable()) return;
  at::Tensor& sum = parameter.gradient;
  if (sum.scalar_type() == rows.scalar_type()) {
    sum.addmm_(rows.t(), inputs);
  } else if (sum.is_cuda()) {
    // The tensor cores multiply in the narrow dtype and add into the wide one: no temporary.
    at::addmm_out(sum, sum, rows.t(), inputs, sum.scalar_type());
  } else {
    sum.addmm_(rows.to(sum.scalar_type()).t(), inputs.to(sum.scalar_type()));
  }
}

void accumulate_sum(Parameter& parameter, const at::Tensor& rows) {
  if (!parameter.trainable()) return;
  parameter.gradient.add_(rows.sum(0, /*keepdim=*/false, parameter.gradient.scalar_type()));
}

}  // namespace streambp
