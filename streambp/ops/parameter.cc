#include "streambp/ops/parameter.h"

#include "streambp/ops/head/wide_product.h"
#include "streambp/ops/sum_dtype.h"

namespace streambp {
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
  if (parameter.remainder.defined()) {
    add_product_with_remainder(sum, parameter.remainder, rows, inputs, scale);
  } else if (sum.scalar_type() == rows.scalar_type()) {
    sum.addmm_(rows.t(), inputs, /*beta=*/1, scale);
  } else if (sum.scalar_type() == at::kFloat && rows.element_size() == 2) {
    add_wide_product(sum, rows, inputs, scale);
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
