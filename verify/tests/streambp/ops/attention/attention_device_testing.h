// Plain formulas instead of a GPU library's attention kernels.
#pragma once

#include <chrono>
#include <gtest/gtest.h>
#include <limits>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "streambp/ops/attention/attention_device.h"
#include "verify/tests/streambp/ops/ops_testing.h"

namespace streambp {

/// While it lives, `kernels` serve tensors on the CPU.
struct ServeAttention {
  explicit ServeAttention(std::vector<DeviceAttention> kernels, Served served = Served::kAll) {
    set_device_attention(c10::DeviceType::CPU, std::move(kernels), served);
  }
  ~ServeAttention() { set_device_attention(c10::DeviceType::CPU, {}); }
  ServeAttention(const ServeAttention&) = delete;
  ServeAttention& operator=(const ServeAttention&) = delete;
};

/// softmax(scores) v of a block under autograd, by the formula, with the masks that the libraries know.
struct Formula {
  at::Tensor q, k, v, output, log_sum_exp;

  explicit Formula(const AttentionOperands& x)
      : q(x.q.detach().requires_grad_()), k(x.k.detach().requires_grad_()), v(x.v.detach().requires_grad_()) {
    const at::AutoGradMode with_grad(true);
    const int64_t n = q.size(0), m = k.size(0), groups = q.size(1) / k.size(1);
    const auto heads = [&](const at::Tensor& keys) {
      return keys.repeat_interleave(groups, 1).transpose(0, 1);
    };
    at::Tensor scores = at::matmul(q.transpose(0, 1), heads(k).transpose(1, 2)) * x.scale;
    const at::Tensor own = at::arange(m - n, m).unsqueeze(1), key = at::arange(m).unsqueeze(0);
    if (x.causal) scores = scores.masked_fill(key > own, -std::numeric_limits<double>::infinity());
    if (x.window > 0)
      scores = scores.masked_fill(key <= own - x.window, -std::numeric_limits<double>::infinity());
    if (!x.offsets.empty()) {
      const at::Tensor sequence =
          at::searchsorted(at::tensor(x.offsets), at::arange(n), /*out_int32=*/false, /*right=*/true);
      scores = scores.masked_fill(sequence.unsqueeze(1).ne(sequence.unsqueeze(0)),
                                  -std::numeric_limits<double>::infinity());
    }
    log_sum_exp = at::logsumexp(scores, -1);  // [H, n]
    output = at::matmul(scores.softmax(-1), heads(v)).transpose(0, 1);
  }
};

/// A library that counts its calls.
struct Library {
  int forward = 0, backward = 0;
  std::vector<std::string> shapes;

  DeviceAttention named(const char* name, bool lower_right) {
    return {name, lower_right,
            [this, lower_right](const AttentionOperands& x) {
              EXPECT_TRUE(lower_right || !x.causal || x.is_square())
                  << "a block that only the first library knows: " << x.shape();
              ++forward;
              shapes.push_back(x.shape());
              const Formula formula(x);
              return AttentionBlock{formula.output.detach(), formula.log_sum_exp.detach().t()};
            },
            [this](const AttentionOperands& x, const at::Tensor& d_output, const AttentionBlock& saved) {
              ++backward;
              EXPECT_TRUE(saved.log_sum_exp.is_contiguous() && saved.log_sum_exp.size(0) == x.q.size(1));
              EXPECT_TRUE(saved.output.is_contiguous() && d_output.is_contiguous());
              return backward_of(x, d_output, saved);
            }};
  }

  /// The formula of a block's backward pass with the whole rows' output and log-sum-exps.
  static AttentionBlockGradients backward_of(const AttentionOperands& x, const at::Tensor& d_output,
                                             const AttentionBlock& saved) {
    const Formula formula(x);
    // Weights relative to the whole row: exp(score - lse) = softmax of the block * exp(its lse - the row's).
    const at::Tensor share = (formula.log_sum_exp.detach() - saved.log_sum_exp).exp().t().unsqueeze(-1);
    // d score = p (d_output . v - d_output . output); the block's own softmax has its own output in place of
    // the row's: the difference goes through the log-sum-exp.
    const at::Tensor d_block = d_output * share;
    const at::Tensor d_sum =
        ((d_block * formula.output.detach()).sum(-1) - (d_block * saved.output).sum(-1)).t();
    const auto d = torch::autograd::grad({formula.output, formula.log_sum_exp},
                                         {formula.q, formula.k, formula.v}, {d_block, d_sum});
    return {d[0], d[1], d[2]};
  }
};

/// A library that computes nothing and notes the shapes that it is asked for.
struct Shapes {
  std::vector<std::string> forward, backward;

  DeviceAttention named(const char* name, bool lower_right) {
    return {
        name, lower_right,
        [this](const AttentionOperands& x) {
          forward.push_back(x.shape());
          return AttentionBlock{at::zeros_like(x.q), at::zeros({x.q.size(1), x.q.size(0)}, at::kDouble).t()};
        },
        [this](const AttentionOperands& x, const at::Tensor&, const AttentionBlock&) {
          backward.push_back(x.shape());
          return AttentionBlockGradients{at::zeros_like(x.q), at::zeros_like(x.k), at::zeros_like(x.v)};
        }};
  }
};

/// A library of formulas that takes `seconds` longer than it needs.
inline DeviceAttention slow(DeviceAttention library, double seconds) {
  const auto wait = [seconds] { std::this_thread::sleep_for(std::chrono::duration<double>(seconds)); };
  library.forward = [wait, forward = library.forward](const AttentionOperands& x) {
    wait();
    return forward(x);
  };
  return library;
}

}  // namespace streambp
