#include "streambp/ops/recurrent/delta_gates.h"

#include <utility>

#include "streambp/ops/differentiable.h"
#include "streambp/ops/sum_dtype.h"

namespace streambp {
namespace {

/// Above it softplus(x) is taken for x: e^-x is then below half a unit in the last place of a double's x.
constexpr double kLinearAbove = 40.0;

at::Tensor shifted(const at::Tensor& a, const Parameter& bias) {
  return a.to(sum_dtype(a)) + bias.value.to(sum_dtype(a));
}

at::Tensor rate(const Parameter& log_rate, at::ScalarType wide) {
  return log_rate.value.to(wide).exp();
}

/// x [n, columns] by heads, as many as the rate has numbers: [n, heads, columns of each].
at::Tensor by_heads(const at::Tensor& x, const Parameter& log_rate) {
  return x.view({x.size(0), log_rate.value.numel(), -1});
}

/// x times the rates of its heads, in place.
void multiply_by_rate(at::Tensor& x, const Parameter& log_rate) {
  by_heads(x, log_rate).mul_(rate(log_rate, x.scalar_type()).view({-1, 1}));
}

/// The sum of dy [n, columns] over rows and the columns of each head, added to the rates' gradient.
void accumulate_rates(Parameter& log_rate, const at::Tensor& dy) {
  std::vector<int64_t> sizes = log_rate.value.sizes().vec();
  sizes.insert(sizes.begin(), dy.size(0));
  accumulate_sum(log_rate, by_heads(dy, log_rate).sum(2).view(sizes));
}

at::Tensor bounded_log_decay(const at::Tensor& a, Parameter& log_rate, Parameter& bias, double bound) {
  const auto logits = [kept = a.detach(), &log_rate, &bias] {
    at::Tensor z = shifted(kept, bias);
    multiply_by_rate(z, log_rate);
    return z;
  };
  at::Tensor value;
  {
    const at::NoGradGuard no_grad;
    value = logits().sigmoid_().mul_(bound);
  }
  return differentiable(
      {a}, std::move(value), "bounded_log_decay",
      [logits, bound, dtype = a.scalar_type(), &log_rate, &bias](std::vector<at::Tensor>&& dy) {
        const at::Tensor z = logits(), s = z.sigmoid();
        at::Tensor dz = (s - s * s).mul_(dy[0]).mul_(bound);
        accumulate_rates(log_rate, dz * z);
        multiply_by_rate(dz, log_rate);
        accumulate_sum(bias, dz);
        return std::vector<at::Tensor>{dz.to(dtype)};
      });
}

}  // namespace

at::Tensor log_decay(const at::Tensor& a, Parameter& log_rate, Parameter& bias, double bound) {
  if (bound != 0.0) return bounded_log_decay(a, log_rate, bias, bound);
  at::Tensor value;
  {
    const at::NoGradGuard no_grad;
    value = at::softplus(shifted(a, bias), /*beta=*/1, kLinearAbove).neg_();
    multiply_by_rate(value, log_rate);
  }
  const at::Tensor kept = a.detach(), kept_value = value;
  return differentiable({a}, std::move(value), "log_decay",
                        [kept, kept_value, &log_rate, &bias](std::vector<at::Tensor>&& dy) {
                          const at::Tensor& d = dy[0];
                          accumulate_rates(log_rate, d * kept_value);
                          at::Tensor dx = shifted(kept, bias).sigmoid_().mul_(d).neg_();
                          multiply_by_rate(dx, log_rate);
                          accumulate_sum(bias, dx);
                          return std::vector<at::Tensor>{dx.to(kept.scalar_type())};
                        });
}

at::Tensor time_step(const at::Tensor& a, Parameter& bias, double low, double high) {
  at::Tensor value;
  {
    const at::NoGradGuard no_grad;
    value = at::softplus(shifted(a, bias), /*beta=*/1, kLinearAbove).clamp_(low, high);
  }
  return differentiable({a}, std::move(value), "time_step",
                        [kept = a.detach(), &bias, low, high](std::vector<at::Tensor>&& dy) {
                          const at::Tensor x = shifted(kept, bias);
                          const at::Tensor step = at::softplus(x, /*beta=*/1, kLinearAbove);
                          at::Tensor dx = x.sigmoid().mul_(dy[0]);
                          dx.mul_(step.clamp(low, high).eq(step));  // logical_and has no meta kernel
                          accumulate_sum(bias, dx);
                          return std::vector<at::Tensor>{dx.to(kept.scalar_type())};
                        });
}

at::Tensor decay_of_step(const at::Tensor& step, Parameter& log_rate) {
  at::Tensor value;
  {
    const at::NoGradGuard no_grad;
    value = step.mul(rate(log_rate, step.scalar_type())).neg_();
  }
  return differentiable(
      {step}, value, "decay_of_step", [kept = value, &log_rate](std::vector<at::Tensor>&& dy) {
        accumulate_sum(log_rate, dy[0] * kept);
        return std::vector<at::Tensor>{dy[0].mul(rate(log_rate, kept.scalar_type())).neg_()};
      });
}

at::Tensor add_skip(const at::Tensor& hidden, const at::Tensor& x, Parameter& skip) {
  const auto wide = sum_dtype(hidden);
  const auto of_heads = [wide](const at::Tensor& y, const Parameter& of) {
    return y.to(wide).mul(of.value.to(wide).unsqueeze(1));
  };
  const at::Tensor kept = x.detach().view(hidden.sizes());
  at::Tensor value;
  {
    const at::NoGradGuard no_grad;
    value = of_heads(kept, skip).add_(hidden).to(hidden.scalar_type());
  }
  return differentiable(
      {hidden, x}, std::move(value), "add_skip", [kept, of_heads, wide, &skip](std::vector<at::Tensor>&& dy) {
        if (skip.trainable()) accumulate_sum(skip, dy[0].to(wide).mul(kept).sum(2));
        return std::vector<at::Tensor>{dy[0], of_heads(dy[0], skip).to(kept.scalar_type()).flatten(1)};
      });
}

}  // namespace streambp
