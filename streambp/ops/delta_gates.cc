#include "streambp/ops/delta_gates.h"

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

}  // namespace

at::Tensor log_decay(const at::Tensor& a, Parameter& log_rate, Parameter& bias) {
  at::Tensor value;
  {
    const at::NoGradGuard no_grad;
    const at::Tensor soft = at::softplus(shifted(a, bias), /*beta=*/1, kLinearAbove);
    value = soft.mul(rate(log_rate, soft.scalar_type())).neg_();
  }
  const at::Tensor kept = a.detach(), kept_value = value;
  return differentiable({a}, std::move(value), "log_decay",
                        [kept, kept_value, &log_rate, &bias](std::vector<at::Tensor>&& dy) {
                          const at::Tensor& d = dy[0];
                          accumulate_sum(log_rate, d * kept_value);
                          at::Tensor dx = shifted(kept, bias).sigmoid_();
                          dx.mul_(d).mul_(rate(log_rate, dx.scalar_type())).neg_();
                          accumulate_sum(bias, dx);
                          return std::vector<at::Tensor>{dx.to(kept.scalar_type())};
                        });
}

}  // namespace streambp
