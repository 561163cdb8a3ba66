#include "streambp/ops/recurrent/gated_norm.h"

#include <algorithm>
#include <utility>

#include "streambp/ops/differentiable.h"
#include "streambp/ops/fused.h"
#include "streambp/ops/sum_dtype.h"

namespace streambp {
namespace {

/// x / sqrt(mean(x^2) + eps), and what x was multiplied by for it.
std::pair<at::Tensor, at::Tensor> normalised(const at::Tensor& x, double eps) {
  const at::Tensor wide = x.to(sum_dtype(x));
  const auto size = static_cast<double>(x.size(-1));
  const at::Tensor rstd =
      at::linalg_vector_norm(wide, 2, {-1}, /*keepdim=*/true).square_().div_(size).add_(eps).rsqrt_();
  return {wide * rstd, rstd};
}

at::Tensor as_heads(const at::Tensor& z, const at::Tensor& x) {
  return z.reshape(x.sizes()).to(sum_dtype(x));
}

bool is_fused(const at::Tensor& x, const at::Tensor& z, const Parameter& weight) {
  return is_for_cpu(x) && has_fused_kernels({x, z, weight.value}) && weight.value.is_contiguous();
}

/// Which numbers are normed together: of each head, or of what is gated of so many groups of a row.
struct Parts {
  int64_t size, groups;
  bool of_gated;
  NormGate gate = NormGate::kSilu;

  static Parts of_heads(const at::Tensor& x, NormGate gate) { return {x.size(2), 1, false, gate}; }
  static Parts of_groups(const at::Tensor& x, int64_t groups) {
    return {x.size(1) * x.size(2) / groups, groups, true};
  }
  int64_t width() const { return groups * size; }
};

/// Shares of the rows for threads, whose sums for the weight are added in order: as many on any number of
/// threads.
constexpr int64_t kShares = 64;

template <typename S>
cpu::GatedNorm<S> kernel_args(const at::Tensor& x, const at::Tensor& z, const Parameter& weight, double eps,
                              const Parts& parts) {
  cpu::GatedNorm<S> op;
  op.size = parts.size;
  op.groups = parts.groups;
  op.of_gated = parts.of_gated;
  op.logistic = parts.gate == NormGate::kLogistic;
  op.eps = eps;
  op.weight = kernel_data<const S>(weight.value);
  op.x = kernel_data<const S>(x);
  op.z = kernel_data<const S>(z);
  return op;
}

at::Tensor forward_fused(const at::Tensor& x, const at::Tensor& z, const Parameter& weight, double eps,
                         const Parts& parts) {
  const at::Tensor y = at::empty({x.size(0), x.size(1) * x.size(2)}, x.options());
  launch_for(x, [&](auto number) {
    using S = decltype(number);
    auto op = kernel_args<S>(x, z, weight, eps, parts);
    op.y = kernel_data<S>(y);
    at::parallel_for(0, x.numel() / op.size, rows_per_thread(op.size), [&](int64_t begin, int64_t end) {
      cpu::kernels().of<S>().gated_norm.forward(op, begin, end);
    });
  });
  return y;
}

std::vector<at::Tensor> backward_fused(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& z,
                                       Parameter& weight, double eps, const Parts& parts) {
  const at::Tensor dx = at::empty(x.sizes(), x.options()), dz = at::empty(dy.sizes(), x.options());
  const int64_t rows = x.numel() / parts.width();
  const int64_t shares = std::clamp<int64_t>(rows / rows_per_thread(parts.width()), 1, kShares);
  at::Tensor recent, total;
  if (weight.trainable()) {
    recent = at::zeros({shares, parts.width()}, x.options().dtype(sum_dtype(x)));
    total = at::zeros({shares, parts.width()}, x.options().dtype(at::kDouble));
  }
  launch_for(x, [&](auto number) {
    using S = decltype(number);
    auto op = kernel_args<S>(x, z, weight, eps, parts);
    op.dy = kernel_data<const S>(dy);
    op.dx = kernel_data<S>(dx);
    op.dz = kernel_data<S>(dz);
    at::parallel_for(0, shares, 1, [&](int64_t first, int64_t last) {
      for (int64_t share = first; share < last; ++share) {
        cpu::WeightSums<S> sums;
        if (total.defined())
          sums = {kernel_data<cpu::Wide<S>>(recent) + share * parts.width(),
                  kernel_data<double>(total) + share * parts.width()};
        cpu::kernels().of<S>().gated_norm.backward(op, sums, rows * share / shares * parts.groups,
                                                   rows * (share + 1) / shares * parts.groups);
      }
    });
  });
  if (total.defined()) accumulate_sum(weight, total);
  return {dx, dz};
}

at::Tensor gate_of(const at::Tensor& z, NormGate gate) {
  return gate == NormGate::kSilu ? at::silu(z) : at::sigmoid(z);
}

at::Tensor gate_backward(const at::Tensor& d, const at::Tensor& z, NormGate gate) {
  return gate == NormGate::kSilu ? at::silu_backward(d, z) : at::sigmoid_backward(d, at::sigmoid(z));
}

at::Tensor forward(const at::Tensor& x, const at::Tensor& z, const Parameter& weight, double eps,
                   NormGate gate) {
  if (is_fused(x, z, weight))
    return forward_fused(x.contiguous(), z.contiguous(), weight, eps, Parts::of_heads(x, gate));
  at::Tensor y = normalised(x, eps).first.mul_(weight.value.to(sum_dtype(x)));
  return y.mul_(gate_of(as_heads(z, x), gate)).to(x.scalar_type()).flatten(1);
}

/// The gradients of x and z for dy as z.
std::vector<at::Tensor> backward(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& z,
                                 Parameter& weight, double eps, NormGate kind) {
  if (is_fused(x, z, weight))
    return backward_fused(dy.contiguous(), x.contiguous(), z.contiguous(), weight, eps,
                          Parts::of_heads(x, kind));
  const auto [normed, rstd] = normalised(x, eps);
  const at::Tensor gate = as_heads(z, x), d = as_heads(dy, x);
  const at::Tensor w = weight.value.to(sum_dtype(x));
  at::Tensor dz = gate_backward((d * normed).mul_(w), gate, kind);
  at::Tensor dx = gate_of(gate, kind).mul_(d);
  if (weight.trainable()) accumulate_sum(weight, (dx * normed).flatten(0, 1));
  dx.mul_(w);
  dx.addcmul_(normed, (dx * normed).mean(-1, /*keepdim=*/true), -1).mul_(rstd);
  return {dx.to(x.scalar_type()), dz.flatten(1).to(z.scalar_type())};
}

}  // namespace

at::Tensor gated_rms_norm(const at::Tensor& x, const at::Tensor& z, Parameter& weight, double eps,
                          NormGate gate) {
  at::Tensor y;
  {
    const at::NoGradGuard no_grad;
    y = forward(x, z, weight, eps, gate);
  }
  return differentiable({x, z}, std::move(y), "gated_rms_norm",
                        [x = x.detach(), z = z.detach(), &weight, eps, gate](std::vector<at::Tensor>&& dy) {
                          return backward(dy[0], x, z, weight, eps, gate);
                        });
}

namespace {

/// x and z as [n, groups, rest] in the dtype of the sums, and their product x silu(z) there.
struct Gated {
  Gated(const at::Tensor& x, const at::Tensor& z, int64_t groups)
      : input(x.reshape({x.size(0), groups, -1}).to(sum_dtype(x))),
        gate(z.reshape(input.sizes()).to(sum_dtype(x))),
        product(at::silu(gate).mul_(input)) {}

  at::Tensor input, gate, product;
};

at::Tensor as_groups(const Parameter& weight, const at::Tensor& like) {
  return weight.value.to(like.scalar_type()).view({1, like.size(1), like.size(2)});
}

at::Tensor forward(const at::Tensor& x, const at::Tensor& z, const Parameter& weight, int64_t groups,
                   double eps) {
  if (is_fused(x, z, weight))
    return forward_fused(x.contiguous(), z.contiguous(), weight, eps, Parts::of_groups(x, groups));
  const at::Tensor gated = Gated(x, z, groups).product;
  return normalised(gated, eps).first.mul_(as_groups(weight, gated)).to(x.scalar_type()).flatten(1);
}

std::vector<at::Tensor> backward(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& z,
                                 Parameter& weight, int64_t groups, double eps) {
  if (is_fused(x, z, weight))
    return backward_fused(dy.contiguous(), x.contiguous(), z.contiguous(), weight, eps,
                          Parts::of_groups(x, groups));
  const Gated gated(x, z, groups);
  const auto [normed, rstd] = normalised(gated.product, eps);
  at::Tensor d = dy.reshape(normed.sizes()).to(normed.scalar_type());
  if (weight.trainable()) accumulate_sum(weight, (d * normed).flatten(1));
  d = d * as_groups(weight, normed);
  d.addcmul_(normed, (d * normed).mean(-1, /*keepdim=*/true), -1).mul_(rstd);
  const at::Tensor dx = at::silu(gated.gate).mul_(d);
  const at::Tensor dz = at::silu_backward(d.mul_(gated.input), gated.gate);
  return {dx.to(x.scalar_type()).view(x.sizes()), dz.to(z.scalar_type()).view(z.sizes())};
}

}  // namespace

at::Tensor norm_of_gated(const at::Tensor& x, const at::Tensor& z, Parameter& weight, int64_t groups,
                         double eps) {
  at::Tensor y;
  {
    const at::NoGradGuard no_grad;
    y = forward(x, z, weight, groups, eps);
  }
  return differentiable({x, z}, std::move(y), "norm_of_gated",
                        [x = x.detach(), z = z.detach(), &weight, groups, eps](std::vector<at::Tensor>&& dy) {
                          return backward(dy[0], x, z, weight, groups, eps);
                        });
}

}  // namespace streambp
