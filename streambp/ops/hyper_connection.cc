#include "streambp/ops/hyper_connection.h"

#include "streambp/ops/differentiable.h"
#include "streambp/ops/sum_dtype.h"

namespace streambp {
namespace {

/// Gates of some rows, and what their backward pass takes of how they came about.
class GateRows {
 public:
  GateRows(const at::Tensor& x, const StreamGates& gates)
      : gates_(gates), x_(x.to(at::promote_types(sum_dtype(x), gates.fn->value.scalar_type()))) {
    products_ = at::mm(x_, wide(*gates.fn).t());
    inverse_rms_ = at::mean(x_ * x_, {1}, /*keepdim=*/true).add_(gates.norm_eps).rsqrt_();
    open_ = (products_ * inverse_rms_).mul_(wide(*gates.scale)).add_(wide(*gates.base)).sigmoid_();
  }

  /// The streams [n, S, D], wide.
  at::Tensor streams() const { return x_.view({x_.size(0), gates_.streams(), -1}); }

  /// [n, S, 1]
  at::Tensor weights() const { return (open_ * gates_.magnitude).add_(gates_.eps).unsqueeze(2); }

  /// Adds the parameters' gradients for that of the weights, d [n, S], and returns what reaches x through
  /// them, [n, S D].
  at::Tensor backward(const at::Tensor& d) const {
    const at::Tensor dz = d * open_ * (1.0 - open_) * gates_.magnitude;
    accumulate_sum(*gates_.base, dz);
    accumulate_sum(*gates_.scale, (dz * products_ * inverse_rms_).sum(1, /*keepdim=*/true));
    const at::Tensor d_mixes = dz * wide(*gates_.scale), d_products = d_mixes * inverse_rms_;
    accumulate_product(*gates_.fn, d_products, x_);
    const at::Tensor of_rms =
        (d_mixes * products_).sum(1, /*keepdim=*/true).mul_(inverse_rms_.pow(3)).div_(-x_.size(1));
    return at::mm(d_products, wide(*gates_.fn)).addcmul_(x_, of_rms);
  }

 private:
  at::Tensor wide(const Parameter& parameter) const { return parameter.value.to(x_.scalar_type()); }

  const StreamGates& gates_;
  at::Tensor x_, products_, inverse_rms_, open_;
};

at::Tensor added(const at::Tensor& x, const at::Tensor& y, const StreamGates& gates) {
  const GateRows rows(x, gates);
  const at::Tensor streams = rows.streams();
  return at::addcmul(streams, rows.weights(), y.unsqueeze(1).to(streams.scalar_type()))
      .view(x.sizes())
      .to(x.scalar_type());
}

}  // namespace

at::Tensor sum_streams_forward(const at::Tensor& x, const StreamGates& gates) {
  const GateRows rows(x, gates);
  return (rows.weights() * rows.streams()).sum(1).to(x.scalar_type());
}

at::Tensor sum_streams_backward(const at::Tensor& dy, const at::Tensor& x, const StreamGates& gates) {
  const GateRows rows(x, gates);
  const at::Tensor streams = rows.streams(), d = dy.unsqueeze(1).to(streams.scalar_type());
  at::Tensor dx = rows.backward((d * streams).sum(2));
  dx.view(streams.sizes()).addcmul_(rows.weights(), d);
  return dx.to(x.scalar_type());
}

at::Tensor sum_streams(const at::Tensor& x, const StreamGates& gates) {
  at::Tensor sum;
  {
    const at::NoGradGuard no_grad;
    sum = sum_streams_forward(x, gates);
  }
  return differentiable({x}, std::move(sum), "sum_streams",
                        [x = x.detach(), &gates](std::vector<at::Tensor>&& dy) {
                          return std::vector<at::Tensor>{sum_streams_backward(dy[0], x, gates)};
                        });
}

at::Tensor add_to_streams(const at::Tensor& x, const at::Tensor& y, const StreamGates& gates) {
  at::Tensor sum;
  {
    const at::NoGradGuard no_grad;
    sum = added(x, y, gates);
  }
  return differentiable({x, y}, std::move(sum), "add_to_streams",
                        [x = x.detach(), y = y.detach(), &gates](std::vector<at::Tensor>&& dy) {
                          const GateRows rows(x, gates);
                          const at::Tensor streams = rows.streams();
                          const at::Tensor d = dy[0].view(streams.sizes()).to(streams.scalar_type());
                          const at::Tensor of_weights = (d * y.unsqueeze(1).to(streams.scalar_type())).sum(2);
                          const at::Tensor dx = rows.backward(of_weights).view(streams.sizes()).add_(d);
                          return std::vector<at::Tensor>{dx.view(x.sizes()).to(x.scalar_type()),
                                                         (rows.weights() * d).sum(1).to(y.scalar_type())};
                        });
}

}  // namespace streambp
