#include "streambp/ops/low_rank_streams.h"

#include <utility>
#include <vector>

#include "streambp/ops/differentiable.h"
#include "streambp/ops/sum_dtype.h"

namespace streambp {
namespace {

/// [n, S, D] of [n, S D], in the dtype of sums.
at::Tensor wide_streams(const at::Tensor& x, int64_t streams) {
  return x.reshape({x.size(0), streams, -1}).to(sum_dtype(x));
}

/// The streams divided by their root mean squares, and what they were multiplied by for it.
std::pair<at::Tensor, at::Tensor> normalised(const at::Tensor& x, const RmsNorm& norm, int64_t streams) {
  const at::Tensor wide = wide_streams(x, streams);
  const at::Tensor rstd = (wide * wide).mean(-1, /*keepdim=*/true).add_(norm.eps).rsqrt_();
  return {wide * rstd, rstd};
}

/// [S, D]
at::Tensor factors(const RmsNorm& norm, const at::Tensor& like) {
  const at::Tensor weight = norm.weight->value.to(like.scalar_type()).view({like.size(1), like.size(2)});
  return norm.adds_one ? weight + 1.0 : weight;
}

at::Tensor norm_backward(const at::Tensor& dy, const at::Tensor& x, const RmsNorm& norm, int64_t streams) {
  const auto [normed, rstd] = normalised(x, norm, streams);
  at::Tensor d = wide_streams(dy, streams);
  if (norm.weight->trainable()) accumulate_sum(*norm.weight, (d * normed).flatten(1));
  d = d * factors(norm, normed);
  return d.addcmul_(normed, (d * normed).mean(-1, /*keepdim=*/true), -1)
      .mul_(rstd)
      .flatten(1)
      .to(x.scalar_type());
}

}  // namespace

at::Tensor norm_streams(const at::Tensor& x, const RmsNorm& norm, int64_t streams) {
  at::Tensor y;
  {
    const at::NoGradGuard no_grad;
    const at::Tensor normed = normalised(x, norm, streams).first;
    y = (normed * factors(norm, normed)).flatten(1).to(x.scalar_type());
  }
  return differentiable({x}, std::move(y), "norm_streams",
                        [x = x.detach(), &norm, streams](std::vector<at::Tensor>&& dy) {
                          return std::vector<at::Tensor>{norm_backward(dy[0], x, norm, streams)};
                        });
}

at::Tensor mean_of_opened(const at::Tensor& normed, const at::Tensor& logits, int64_t streams) {
  at::Tensor mean;
  {
    const at::NoGradGuard no_grad;
    mean = (wide_streams(logits, streams).sigmoid() * wide_streams(normed, streams))
               .mean(1)
               .to(normed.scalar_type());
  }
  return differentiable(
      {normed, logits}, std::move(mean), "mean_of_opened",
      [normed = normed.detach(), logits = logits.detach(), streams](std::vector<at::Tensor>&& dy) {
        const at::Tensor open = wide_streams(logits, streams).sigmoid(), x = wide_streams(normed, streams);
        const at::Tensor share =
            dy[0].to(open.scalar_type()).div(static_cast<double>(streams)).unsqueeze(1) * open;
        const at::Tensor d_logits = share * x * (1.0 - open);
        return std::vector<at::Tensor>{share.flatten(1).to(normed.scalar_type()),
                                       d_logits.flatten(1).to(logits.scalar_type())};
      });
}

at::Tensor add_opened(const at::Tensor& x, const at::Tensor& y, const at::Tensor& logits) {
  const int64_t streams = logits.size(1);
  at::Tensor sum;
  {
    const at::NoGradGuard no_grad;
    const at::Tensor open = logits.to(sum_dtype(logits)).sigmoid().mul_(2.0).unsqueeze(2);
    sum = at::addcmul(wide_streams(x, streams), open, y.to(open.scalar_type()).unsqueeze(1))
              .flatten(1)
              .to(x.scalar_type());
  }
  return differentiable(
      {x, y, logits}, std::move(sum), "add_opened",
      [y = y.detach(), logits = logits.detach(), streams](std::vector<at::Tensor>&& dy) {
        const at::Tensor d = wide_streams(dy[0], streams), open = logits.to(d.scalar_type()).sigmoid();
        const at::Tensor of_gates = (d * y.to(d.scalar_type()).unsqueeze(1)).sum(2);
        return std::vector<at::Tensor>{dy[0], (d * open.unsqueeze(2)).sum(1).mul_(2.0).to(y.scalar_type()),
                                       (of_gates * open * (1.0 - open)).mul_(2.0).to(logits.scalar_type())};
      });
}

}  // namespace streambp
