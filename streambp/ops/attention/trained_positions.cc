#include "streambp/ops/attention/trained_positions.h"

#include <vector>

#include "streambp/ops/differentiable.h"
#include "streambp/ops/sum_dtype.h"

namespace streambp {
namespace {

/// [n, H, 1], wide.
at::Tensor factors_of(const at::Tensor& q, const at::Tensor& log_positions, const QueryScales& scales) {
  const at::ScalarType wide = sum_dtype(q);
  const at::Tensor places = log_positions.to(wide).unsqueeze(1);
  return (places * scales.scale->value.to(wide)).add_(scales.bias->value.to(wide)).unsqueeze(2);
}

}  // namespace

at::Tensor with_trained_frequencies(const at::Tensor& y, int64_t first, const RopeTable& table,
                                    Parameter& alpha) {
  if (!alpha.trainable()) return y;
  const at::Tensor kept = y.detach(), angles = table.angles;
  return differentiable(
      {y}, kept, "trained_frequencies", [kept, angles, first, &alpha](std::vector<at::Tensor>&& dy) {
        const at::NoGradGuard no_grad;
        const at::ScalarType wide = sum_dtype(kept);
        const int64_t half = angles.size(1);
        const auto part = [&](const at::Tensor& x, int64_t which) {
          return x.narrow(2, first + which * half, half).to(wide);
        };
        // By an angle's rise the first of a pair moves by minus the second, and the second by the first.
        const at::Tensor of_angles = (part(dy[0], 1) * part(kept, 0) - part(dy[0], 0) * part(kept, 1)).sum(1);
        accumulate_sum(alpha, of_angles * angles.to(wide));
        return std::vector<at::Tensor>{dy[0]};
      });
}

at::Tensor scaled_queries_forward(const at::Tensor& q, const at::Tensor& log_positions,
                                  const QueryScales& scales) {
  const at::NoGradGuard no_grad;
  return (q * factors_of(q, log_positions, scales)).to(q.scalar_type());
}

at::Tensor scaled_queries(const at::Tensor& q, const at::Tensor& log_positions, const QueryScales& scales) {
  return differentiable(
      {q}, scaled_queries_forward(q, log_positions, scales), "scaled_queries",
      [q = q.detach(), log_positions, scales](std::vector<at::Tensor>&& dy) {
        const at::NoGradGuard no_grad;
        const at::ScalarType wide = sum_dtype(q);
        const at::Tensor d = dy[0].to(wide);
        if (scales.scale->trainable() || scales.bias->trainable()) {
          const at::Tensor of_factors = (d * q.to(wide)).sum(2);
          accumulate_sum(*scales.scale, of_factors * log_positions.to(wide).unsqueeze(1));
          accumulate_sum(*scales.bias, of_factors);
        }
        return std::vector<at::Tensor>{(d * factors_of(q, log_positions, scales)).to(q.scalar_type())};
      });
}

}  // namespace streambp
