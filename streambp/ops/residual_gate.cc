#include "streambp/ops/residual_gate.h"

#include <utility>
#include <vector>

#include "streambp/ops/differentiable.h"
#include "streambp/ops/sum_dtype.h"

namespace streambp {
namespace {

// What the square of a residual's factor is at least, a constant of transformers' class.
constexpr double kLeastSquare = 1e-3;

/// The factors of the residual and of what is added, [D].
struct GateFactors {
  at::Tensor square, residual, added;  // the first before it is kept from 0
};

GateFactors gate_factors(const ResidualGate& gate, at::ScalarType wide) {
  const at::Tensor w = gate.gate->value.to(wide) / gate.temperature;
  GateFactors factors;
  factors.added = w.sigmoid();
  factors.square = (-w).sigmoid_().mul_(factors.added + 1.0);
  factors.residual = factors.square.clamp_min(kLeastSquare).sqrt_();
  return factors;
}

/// u, what it was divided by, and 1 + weight.
struct NormOfScaled {
  at::Tensor value, rstd, factor;
};

NormOfScaled normed_after_scaling(const at::Tensor& x, const RmsNorm& norm) {
  const at::ScalarType wide = sum_dtype(x);
  NormOfScaled result;
  result.factor = norm.weight->value.to(wide) + 1.0;
  const at::Tensor scaled = (x.to(wide) * result.factor).to(x.scalar_type()).to(wide);
  result.rstd = (scaled * scaled).mean(-1, /*keepdim=*/true).add_(norm.eps).rsqrt_();
  result.value = scaled * result.rstd;
  return result;
}

}  // namespace

at::Tensor gated_sum(const at::Tensor& residual, const at::Tensor& x, const ResidualGate& gate) {
  const at::ScalarType wide = sum_dtype(x);
  at::Tensor y;
  {
    const at::NoGradGuard no_grad;
    const GateFactors factors = gate_factors(gate, wide);
    y = (residual.to(wide) * factors.residual).addcmul_(x.to(wide), factors.added).to(x.scalar_type());
  }
  // Rows are kept for the gate's gradient alone.
  const bool trains = gate.trainable();
  const auto kept = [&](const at::Tensor& rows) { return trains ? rows.detach() : at::Tensor(); };
  return differentiable(
      {residual, x}, std::move(y), "gated_sum",
      [residual = kept(residual), x = kept(x), &gate, wide](std::vector<at::Tensor>&& dy) {
        const GateFactors factors = gate_factors(gate, wide);
        const at::Tensor d = dy[0].to(wide);
        if (gate.trainable()) {
          // Of b: b (1 - b); of a: half of its square's, -2 b b (1 - b), over a, where that is not cut off.
          const at::Tensor slope = factors.added * (1.0 - factors.added);
          const at::Tensor of_residual = (slope * factors.added)
                                             .neg_()
                                             .div_(factors.residual)
                                             .masked_fill_(factors.square.lt(kLeastSquare), 0.0);
          const at::Tensor rows = (d * x.to(wide) * slope).addcmul_(d * residual.to(wide), of_residual);
          accumulate_sum(*gate.gate, rows.div_(gate.temperature));
        }
        return std::vector<at::Tensor>{(d * factors.residual).to(dy[0].scalar_type()),
                                       (d * factors.added).to(dy[0].scalar_type())};
      });
}

at::Tensor norm_of_scaled_forward(const at::Tensor& x, const RmsNorm& norm) {
  const at::NoGradGuard no_grad;
  return normed_after_scaling(x, norm).value.to(x.scalar_type());
}

at::Tensor norm_of_scaled_backward(const at::Tensor& dy, const at::Tensor& x, const RmsNorm& norm) {
  const NormOfScaled again = normed_after_scaling(x, norm);
  at::Tensor d = dy.to(again.value.scalar_type());
  const at::Tensor along = (d * again.value).mean(-1, /*keepdim=*/true);
  d = d.addcmul(again.value, along, -1).mul_(again.rstd);
  if (norm.weight->trainable()) accumulate_sum(*norm.weight, d * x.to(d.scalar_type()));
  return d.mul_(again.factor).to(x.scalar_type());
}

at::Tensor norm_of_scaled(const at::Tensor& x, const RmsNorm& norm) {
  return differentiable({x}, norm_of_scaled_forward(x, norm), "norm_of_scaled",
                        [x = x.detach(), &norm](std::vector<at::Tensor>&& dy) {
                          return std::vector<at::Tensor>{norm_of_scaled_backward(dy[0], x, norm)};
                        });
}

}  // namespace streambp
