#include "streambp/ops/hyper_connection.h"

#include <vector>

#include "streambp/ops/differentiable.h"
#include "streambp/ops/sum_dtype.h"

namespace streambp {
namespace {

/// scale (fn x) / rms(x) + base of some rows, and its backward pass.
class StreamLogits {
 public:
  StreamLogits(const at::Tensor& x, Parameter& fn, Parameter& base, Parameter& scale, double norm_eps)
      : fn_(fn),
        base_(base),
        scale_(scale),
        x_(x.to(at::promote_types(sum_dtype(x), fn.value.scalar_type()))) {
    products_ = at::mm(x_, wide(fn_).t());
    inverse_rms_ = at::mean(x_ * x_, {1}, /*keepdim=*/true).add_(norm_eps).rsqrt_();
  }

  at::Tensor value() const { return (products_ * inverse_rms_).mul_(wide(scale_)).add_(wide(base_)); }

  /// The rows, wide.
  const at::Tensor& rows() const { return x_; }

  /// Adds the parameters' gradients for that of the value, and returns what reaches x through it, [n, S D].
  at::Tensor backward(const at::Tensor& dz) const {
    accumulate_sum(base_, dz);
    accumulate_sum(scale_, (dz * products_ * inverse_rms_).sum(1, /*keepdim=*/true));
    const at::Tensor d_mixes = dz * wide(scale_), d_products = d_mixes * inverse_rms_;
    accumulate_product(fn_, d_products, x_);
    const at::Tensor of_rms =
        (d_mixes * products_).sum(1, /*keepdim=*/true).mul_(inverse_rms_.pow(3)).div_(-x_.size(1));
    return at::mm(d_products, wide(fn_)).addcmul_(x_, of_rms);
  }

 private:
  at::Tensor wide(const Parameter& parameter) const { return parameter.value.to(x_.scalar_type()); }

  Parameter &fn_, &base_, &scale_;
  at::Tensor x_, products_, inverse_rms_;
};

/// Gates of some rows, and what their backward pass takes of how they came about.
class GateRows {
 public:
  GateRows(const at::Tensor& x, const StreamGates& gates)
      : gates_(gates),
        logits_(x, *gates.fn, *gates.base, *gates.scale, gates.norm_eps),
        open_(logits_.value().sigmoid_()) {}

  /// The streams [n, S, D], wide.
  at::Tensor streams() const { return logits_.rows().view({logits_.rows().size(0), gates_.streams(), -1}); }

  /// [n, S, 1]
  at::Tensor weights() const { return (open_ * gates_.magnitude).add_(gates_.eps).unsqueeze(2); }

  /// Adds the parameters' gradients for that of the weights, d [n, S], and returns what reaches x through
  /// them, [n, S D].
  at::Tensor backward(const at::Tensor& d) const {
    return logits_.backward(d * open_ * (1.0 - open_) * gates_.magnitude);
  }

 private:
  const StreamGates& gates_;
  StreamLogits logits_;
  at::Tensor open_;
};

/// How the streams of some rows are mixed, and what the backward pass takes of how that came about.
class MixRows {
 public:
  MixRows(const at::Tensor& x, const StreamGates& gates)
      : logits_(x, *gates.mix.fn, *gates.mix.base, *gates.mix.scale, gates.norm_eps) {
    const StreamMix& mix = gates.mix;
    const int64_t streams = gates.streams();
    softmax_ = at::softmax(logits_.value().view({-1, streams, streams}), -1);
    at::Tensor c = softmax_ + mix.eps;
    for (int64_t i = 0; i < 2 * mix.iterations - 1; ++i) {
      const int64_t over = i % 2 == 0 ? 1 : 2;
      const at::Tensor divisor = c.sum(over, /*keepdim=*/true).add_(mix.eps);
      c = c / divisor;
      steps_.push_back({over, divisor, c});
    }
  }

  /// c [n, S, S]: of stream j (dimension 1) in what becomes stream s.
  const at::Tensor& weights() const { return steps_.back().quotient; }

  /// The streams [n, S, D] mixed.
  at::Tensor of(const at::Tensor& streams) const { return at::bmm(weights().transpose(1, 2), streams); }

  /// Likewise for the gradient of the mixed streams, d [n, S, D], of `streams`: what reaches x, [n, S D].
  at::Tensor backward(const at::Tensor& d, const at::Tensor& streams) const {
    at::Tensor dc = at::bmm(streams, d.transpose(1, 2));
    for (auto step = steps_.rbegin(); step != steps_.rend(); ++step)
      dc = (dc - (dc * step->quotient).sum(step->over, /*keepdim=*/true)).div_(step->divisor);
    const at::Tensor dz = (dc - (dc * softmax_).sum(-1, /*keepdim=*/true)).mul_(softmax_);
    at::Tensor dx = logits_.backward(dz.flatten(1));
    dx.view(streams.sizes()).add_(at::bmm(weights(), d));
    return dx;
  }

 private:
  struct Division {
    int64_t over;
    at::Tensor divisor, quotient;
  };

  StreamLogits logits_;
  at::Tensor softmax_;
  std::vector<Division> steps_;
};

at::Tensor added(const at::Tensor& x, const at::Tensor& y, const StreamGates& gates) {
  const GateRows rows(x, gates);
  const at::Tensor streams = rows.streams();
  const at::Tensor kept = gates.mix.are_mixed() ? MixRows(x, gates).of(streams) : streams;
  return at::addcmul(kept, rows.weights(), y.unsqueeze(1).to(streams.scalar_type()))
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
  return differentiable(
      {x, y}, std::move(sum), "add_to_streams",
      [x = x.detach(), y = y.detach(), &gates](std::vector<at::Tensor>&& dy) {
        const GateRows rows(x, gates);
        const at::Tensor streams = rows.streams();
        const at::Tensor d = dy[0].view(streams.sizes()).to(streams.scalar_type());
        const at::Tensor of_weights = (d * y.unsqueeze(1).to(streams.scalar_type())).sum(2);
        const at::Tensor dx = rows.backward(of_weights).view(streams.sizes());
        dx.add_(gates.mix.are_mixed() ? MixRows(x, gates).backward(d, streams).view_as(d) : d);
        return std::vector<at::Tensor>{dx.view(x.sizes()).to(x.scalar_type()),
                                       (rows.weights() * d).sum(1).to(y.scalar_type())};
      });
}

}  // namespace streambp
