#include "streambp/ops/rows.h"

namespace streambp {

at::Tensor gather_rows(const at::Tensor& x, const at::Tensor& places) {
  const at::NoGradGuard no_grad;
  if (x.is_meta())
    return at::empty({places.size(0), x.size(1)}, x.options());  // index_select has no Meta kernel
  return x.index_select(0, places);
}

void accumulate_rows(Parameter& parameter, const at::Tensor& places, const at::Tensor& dx) {
  if (!parameter.trainable()) return;
  const at::Tensor wide = dx.to(parameter.gradient.scalar_type());
  if (!wide.is_meta()) parameter.gradient.index_add_(0, places, wide);
}

}  // namespace streambp
