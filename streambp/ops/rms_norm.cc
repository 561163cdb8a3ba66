#include "streambp/ops/rms_norm.h"

#include "streambp/ops/differentiable.h"
#include "streambp/ops/fused.h"
#include "streambp/ops/norm_rope.h"
#include "streambp/ops/sum_dtype.h"

namespace streambp {
namespace {

/// Rows as the kernels take them: [n, heads, size].
at::Tensor as_norm_heads(const at::Tensor& x) {
  return x.dim() == 3 ? x : x.reshape({-1, 1, x.size(-1)});
}

/// x in the dtype of its sums, less its mean where the norm has it so.
at::Tensor input_of(const at::Tensor& x, const RmsNorm& norm, at::ScalarType wide) {
  const at::Tensor input = x.to(wide);
  return norm.centers ? input - input.mean(-1, /*keepdim=*/true) : input;
}

/// norm(x) + residual, where that is defined.
at::Tensor fused_forward(const at::Tensor& x, const RmsNorm& norm, const at::Tensor& residual,
                         RmsNormSaved& saved) {
  saved.x = x.detach();
  const at::Tensor other = residual.defined() ? as_norm_heads(residual.detach()) : residual;
  const at::Tensor y = norm_rope_forward(as_norm_heads(saved.x), {&norm}, other, saved.rstd);
  std::vector<int64_t> row_sizes = x.sizes().vec();
  row_sizes.back() = 1;
  saved.rstd = saved.rstd.view(row_sizes);
  return y.view(x.sizes());
}

}  // namespace

at::Tensor rms_norm_forward(const at::Tensor& x, const RmsNorm& norm, RmsNormSaved& saved) {
  if (!NormAndRope{&norm}.is_fused(x)) return rms_norm_forward_plain(x, norm, saved);
  const at::NoGradGuard no_grad;
  return fused_forward(x, norm, {}, saved);
}

at::Tensor rms_norm_backward(const at::Tensor& dy, const RmsNormSaved& saved, const RmsNorm& norm) {
  if (!has_fused_kernels({dy, saved.x}) || !NormAndRope{&norm}.is_fused(dy))
    return rms_norm_backward_plain(dy, saved, norm);
  return norm_rope_backward(as_norm_heads(dy), {&norm}, as_norm_heads(saved.x), saved.rstd).view(dy.sizes());
}

at::Tensor rms_norm_forward_plain(const at::Tensor& x, const RmsNorm& norm, RmsNormSaved& saved) {
  const at::NoGradGuard no_grad;
  const auto size = static_cast<double>(x.size(-1));
  const at::Tensor wide = input_of(x, norm, sum_dtype(x));
  saved.x = x.detach();
  saved.rstd =
      at::linalg_vector_norm(wide, 2, {-1}, /*keepdim=*/true).square_().div_(size).add_(norm.eps).rsqrt_();
  at::Tensor y = wide * saved.rstd;
  if (norm.adds_one) return y.mul_(norm.weight->value.to(y.scalar_type()) + 1.0).to(x.scalar_type());
  if (norm.centers) return y.mul_(norm.weight->value.to(y.scalar_type())).to(x.scalar_type());
  return y.to(x.scalar_type()).mul_(norm.weight->value);
}

at::Tensor rms_norm_backward_plain(const at::Tensor& dy, const RmsNormSaved& saved, const RmsNorm& norm) {
  const at::Tensor normalised = input_of(saved.x, norm, saved.rstd.scalar_type()) * saved.rstd;
  const at::Tensor wide_dy = dy.to(saved.rstd.scalar_type());
  if (norm.weight->trainable())
    accumulate_sum(*norm.weight, (wide_dy * normalised).flatten(0, -1 - norm.weight->value.dim()));
  at::Tensor dx = wide_dy * norm.weight->value;
  if (norm.adds_one) dx.add_(wide_dy);
  const at::Tensor along = (dx * normalised).mean(-1, /*keepdim=*/true);
  dx.addcmul_(normalised, along, -1).mul_(saved.rstd);
  if (norm.centers) dx.sub_(dx.mean(-1, /*keepdim=*/true));
  return dx.to(dy.scalar_type());
}

at::Tensor rms_norm(const at::Tensor& x, const RmsNorm& norm) {
  RmsNormSaved saved;
  at::Tensor y = rms_norm_forward(x, norm, saved);
  return differentiable({x}, std::move(y), "rms_norm", [saved, &norm](std::vector<at::Tensor>&& dy) {
    return std::vector<at::Tensor>{rms_norm_backward(dy[0], saved, norm)};
  });
}

at::Tensor rms_norm_add(const at::Tensor& residual, const at::Tensor& x, const RmsNorm& norm) {
  RmsNormSaved saved;
  at::Tensor y;
  {
    const at::NoGradGuard no_grad;
    if (NormAndRope{&norm}.is_fused(x) && has_fused_kernels({x, residual})) {
      y = fused_forward(x, norm, residual, saved);
    } else {
      y = rms_norm_forward_plain(x, norm, saved).add_(residual);
    }
  }
  return differentiable({residual, x}, std::move(y), "rms_norm_add",
                        [saved, &norm](std::vector<at::Tensor>&& dy) {
                          return std::vector<at::Tensor>{dy[0], rms_norm_backward(dy[0], saved, norm)};
                        });
}

}  // namespace streambp
