#include "streambp/ops/parameter.h"

#include "streambp/ops/backend.h"
#include "streambp/ops/dry_run.h"
#include "streambp/ops/sum_dtype.h"

namespace streambp {
namespace {

/// Whether tensor cores multiply in the rows' dtype and add into the sum's wider one: no temporary. cuBLAS
/// does so for half precision into float32.
bool multiplies_into_float(const at::Tensor& sum, const at::Tensor& rows) {
  return !sum.is_cpu() && is_for_cuda(sum) && sum.scalar_type() == at::kFloat && rows.element_size() == 2;
}

}  // namespace

void accumulate_product(Parameter& parameter, const at::Tensor& rows, const at::Tensor& inputs,
                        double scale) {
  if (!parameter.trainable()) return;
  // Of a map that is stored as [in, out] the gradient is a transposed view.
  const bool is_transposed = !parameter.gradient.is_contiguous() && parameter.gradient.t().is_contiguous();
  if (is_transposed) {
    Parameter stored;
    stored.gradient = parameter.gradient.t();
    return accumulate_product(stored, inputs, rows, scale);
  }
  at::Tensor& sum = parameter.gradient;
  if (sum.scalar_type() == rows.scalar_type()) {
    sum.addmm_(rows.t(), inputs, /*beta=*/1, scale);
  } else if (multiplies_into_float(sum, rows)) {
    if (has_values(sum)) at::addmm_out(sum, sum, rows.t(), inputs, sum.scalar_type(), /*beta=*/1, scale);
  } else {
    sum.addmm_(rows.to(sum.scalar_type()).t(), inputs.to(sum.scalar_type()), /*beta=*/1, scale);
  }
}

void accumulate_sum(Parameter& parameter, const at::Tensor& rows) {
  if (!parameter.trainable()) return;
  at::Tensor& gradient = parameter.gradient;
  const at::ScalarType dtype = gradient.scalar_type();
  // Rows that add to a float64 gradient (see WideGradient) are summed as they are for a narrower one.
  const at::ScalarType wide =
      dtype == at::kDouble ? sum_dtype(rows) : c10::promoteTypes(dtype, rows.scalar_type());
  at::Tensor sum = rows.sum(0, /*keepdim=*/false, wide);
  if (c10::promoteTypes(wide, dtype) == dtype) {
    gradient.add_(sum);
  } else {
    gradient.copy_(sum.add_(gradient.to(wide)));
  }
}

}  // namespace streambp
