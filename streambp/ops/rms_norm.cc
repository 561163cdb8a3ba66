#include "streambp/ops/rms_norm.h"

#include "streambp/ops/differentiable.h"

namespace streambp {
namespace {

/// The dtype in which sums over a row are taken.
at::ScalarType sum_dtype(const at::Tensor& x) {
  return x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

}  // namespace

at::Tensor rms_norm_forward(const at::Tensor& x, const Parameter& weight, double eps, RmsNormSaved& saved) {
  const at::NoGradGuard no_grad;
  const auto size = static_cast<double>(x.size(-1));
  const at::Tensor wide = x.to(sum_dtype(x));
  saved.x = x.detach();
  saved.rstd =
      at::linalg_vector_norm(wide, 2, {-1}, /*keepdim=*/true).square_().div_(size).add_(eps).rsqrt_();
  return (wide * saved.rstd).to(x.scalar_type()).mul_(weight.value);
}

at::Tensor rms_norm_backward(const at::Tensor& dy, const RmsNormSaved& saved, Parameter& weight) {
  const at::Tensor normalised = saved.x.to(saved.rstd.scalar_type()) * saved.rstd;
  const at::Tensor wide_dy = dy.to(saved.rstd.scalar_type());
  if (weight.trainable()) accumulate_sum(weight, (wide_dy * normalised).reshape({-1, dy.size(-1)}));
  at::Tensor dx = wide_dy * weight.value;
  const at::Tensor along = (dx * normalised).mean(-1, /*keepdim=*/true);
  dx.addcmul_(normalised, along, -1).mul_(saved.rstd);
  return dx.to(dy.scalar_type());
}

at::Tensor rms_norm(const at::Tensor& x, Parameter& weight, double eps) {
  RmsNormSaved saved;
  at::Tensor y = rms_norm_forward(x, weight, eps, saved);
  return differentiable({x}, std::move(y), "rms_norm", [saved, &weight](std::vector<at::Tensor>&& dy) {
    return std::vector<at::Tensor>{rms_norm_backward(dy[0], saved, weight)};
  });
}

}  // namespace streambp
