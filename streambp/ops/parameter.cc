#include "streambp/ops/parameter.h"

#include "streambp/ops/backend.h"
#include "streambp/ops/dry_run.h"

namespace streambp {
namespace {

/// Whether tensor cores multiply in the rows' dtype and add into the sum's wider one: no temporary. cuBLAS
/// does so for half precision into float32.
bool multiplies_into_float(const at::Tensor& sum, const at::Tensor& rows) {
  return !sum.is_cpu() && is_for_cuda(sum) && sum.scalar_type() == at::kFloat && rows.element_size() == 2;
}

}  // namespace

void accumulate_product(Parameter& parameter, const at::Tensor& rows, const at::Tensor& inputs) {
  if (!parameter.trainable()) return;
  at::Tensor& sum = parameter.gradient;
  if (sum.scalar_type() == rows.scalar_type()) {
    sum.addmm_(rows.t(), inputs);
  } else if (multiplies_into_float(sum, rows)) {
    if (has_values(sum)) at::addmm_out(sum, sum, rows.t(), inputs, sum.scalar_type());
  } else {
    sum.addmm_(rows.to(sum.scalar_type()).t(), inputs.to(sum.scalar_type()));
  }
}

void accumulate_sum(Parameter& parameter, const at::Tensor& rows) {
  if (!parameter.trainable()) return;
  at::Tensor& gradient = parameter.gradient;
  const at::ScalarType wide = c10::promoteTypes(gradient.scalar_type(), rows.scalar_type());
  at::Tensor sum = rows.sum(0, /*keepdim=*/false, wide);
  if (wide == gradient.scalar_type()) {
    gradient.add_(sum);
  } else {
    gradient.copy_(sum.add_(gradient.to(wide)));
  }
}

}  // namespace streambp
