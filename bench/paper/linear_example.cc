#include "bench/paper/linear_example.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <limits>
#include <utility>

#include <torch/csrc/autograd/autograd.h>

#include "streambp/error.h"
#include "streambp/memory/meter.h"
#include "streambp/ops/linear.h"
#include "streambp/runtime/torch_private.h"

namespace streambp::bench {
namespace {

void synchronize(c10::Device device) {
  if (device.is_cuda()) torch_private::synchronize(device);
}

class Maps {
 public:
  explicit Maps(const LinearExample& example) : example_(example) {
    const auto options = at::TensorOptions().dtype(example.dtype).device(example.device);
    const auto make = [&](int64_t rows, double scale, uint64_t seed) {
      if (example.device.is_meta()) return at::empty({rows, example.size}, options);
      // Drawn on the CPU: the same numbers on every device.
      auto generator = at::detail::createCPUGenerator(seed);
      return at::randn({rows, example.size}, generator, at::TensorOptions().dtype(example.dtype))
          .mul_(scale)
          .to(example.device);
    };
    const double scale = 1.0 / std::sqrt(static_cast<double>(example.size));
    input_ = make(example.rows, 1.0, example.seed);
    for (size_t i = 0; i < weights_.size(); ++i)
      weights_[i] = make(example.size, scale, example.seed + 1 + i);
  }

  int64_t resident_bytes() const {
    return static_cast<int64_t>(input_.nbytes() + 2 * (weights_[0].nbytes() + weights_[1].nbytes()));
  }

  void forget_gradients() { gradients_ = {}; }

  /// Fills the gradients, of which there are none yet, and returns the loss, 0 on the meta device.
  double run(LinearMethod method, int64_t chunks) {
    loss_ = 0.0;
    if (method == LinearMethod::kInPlace) {
      for (size_t i = 0; i < weights_.size(); ++i) gradients_[i] = at::zeros_like(weights_[i]);
    }
    const int64_t pieces = std::max<int64_t>(1, chunks);
    for (int64_t i = 0; i < pieces; ++i) {
      const int64_t begin = example_.rows * i / pieces;
      const at::Tensor rows = input_.narrow(0, begin, example_.rows * (i + 1) / pieces - begin);
      method == LinearMethod::kInPlace ? add_in_place(rows) : add_with_autograd(rows);
    }
    return loss_;
  }

  const std::array<at::Tensor, 2>& gradients() const { return gradients_; }

 private:
  void add_loss(const at::Tensor& y) {
    if (y.is_meta()) return;
    const auto norm = at::linalg_vector_norm(y.detach()).item<double>();
    loss_ += 0.5 * norm * norm / static_cast<double>(example_.rows);
  }

  void add_with_autograd(const at::Tensor& rows) {
    std::array<at::Tensor, 2> leaves;
    for (size_t i = 0; i < leaves.size(); ++i) {
      leaves[i] = weights_[i].detach().requires_grad_();
      leaves[i].mutable_grad() = gradients_[i];
    }
    {
      const at::AutoGradMode with_grad(true);
      // One map after the other: the backward pass then adds the second weight's gradient to the sum before
      // it makes the first one's.
      at::Tensor y = at::mm(rows, leaves[0].t());
      y = at::mm(y, leaves[1].t());
      add_loss(y);
      const at::Tensor dy = y.detach() / static_cast<double>(example_.rows);
      torch::autograd::backward({y}, {dy});
    }
    for (size_t i = 0; i < leaves.size(); ++i) gradients_[i] = leaves[i].grad();
  }

  void add_in_place(const at::Tensor& rows) {
    const at::NoGradGuard no_grad;
    std::array<Parameter, 2> parameters;
    for (size_t i = 0; i < parameters.size(); ++i) parameters[i] = {"", weights_[i], gradients_[i]};
    const Linear first{"first", &parameters[0]}, second{"second", &parameters[1]};
    at::Tensor hidden = linear_forward(first, rows);
    at::Tensor y = linear_forward(second, hidden);
    add_loss(y);
    const at::Tensor dy = y.div_(static_cast<double>(example_.rows));
    linear_accumulate(second, hidden, dy);
    hidden.reset();
    at::Tensor d_hidden;
    linear_backward_input(second, dy, d_hidden);
    linear_accumulate(first, rows, d_hidden);
  }

  const LinearExample& example_;
  at::Tensor input_;
  std::array<at::Tensor, 2> weights_;
  std::array<at::Tensor, 2> gradients_;
  double loss_ = 0.0;
};

double difference(const std::array<at::Tensor, 2>& a, const std::array<at::Tensor, 2>& b) {
  double worst = 0.0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double error = (a[i] - b[i]).abs_().max().item<double>() / b[i].abs().max().item<double>();
    if (!(error <= worst)) worst = error;  // a NaN stays
  }
  return worst;
}

}  // namespace

std::string linear_method_name(LinearMethod method) {
  return method == LinearMethod::kStandard  ? "standard"
         : method == LinearMethod::kChunked ? "chunked"
                                            : "in-place";
}

std::vector<LinearRun> run_linear_example(const LinearExample& example, const std::vector<int64_t>& chunks,
                                          int64_t repeats) {
  for (const int64_t number : chunks) {
    if (number > example.rows)
      throw InputError("{} chunks of {} rows: expected a row in each", number, example.rows);
  }
  Maps maps(example);
  const bool predicted = example.device.is_meta();
  std::array<at::Tensor, 2> expected;
  std::vector<LinearRun> runs{{LinearMethod::kStandard, 0}};
  for (const LinearMethod method : {LinearMethod::kChunked, LinearMethod::kInPlace}) {
    for (const int64_t number : chunks) runs.push_back({method, number});
  }
  for (LinearRun& run : runs) {
    int64_t kept = 0;  // what is alive for the comparison alone
    for (const at::Tensor& tensor : expected)
      kept += tensor.defined() ? static_cast<int64_t>(tensor.nbytes()) : 0;
    for (int64_t i = 0; i < (predicted ? 1 : repeats); ++i) {
      maps.forget_gradients();
      synchronize(example.device);
      reset_peak(example.device);
      const auto start = std::chrono::steady_clock::now();
      const double loss = maps.run(run.method, run.chunks);
      synchronize(example.device);
      const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
      run.peak_bytes = std::max(run.peak_bytes, read_meter(example.device).peak_bytes - kept);
      if (predicted) continue;
      run.seconds.push_back(seconds);
      run.loss = loss;
    }
    run.intermediate_bytes = run.peak_bytes - maps.resident_bytes();
    if (run.method == LinearMethod::kStandard) expected = maps.gradients();
    if (!predicted) run.error = difference(maps.gradients(), expected);
  }
  return runs;
}

double linear_error_limit(int64_t rows, at::ScalarType dtype) {
  const double rounding =
      dtype == at::kDouble ? std::numeric_limits<double>::epsilon() : std::numeric_limits<float>::epsilon();
  return 4.0 * std::sqrt(static_cast<double>(rows)) * rounding;
}

}  // namespace streambp::bench
