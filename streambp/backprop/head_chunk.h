// One chunk of scored tokens on its way through the head and back, without autograd.
#pragma once

#include <optional>

#include <ATen/ATen.h>

#include "streambp/backprop/head.h"
#include "streambp/ops/rms_norm.h"
#include "streambp/ops/target_head.h"

namespace streambp {

class HeadChunk {
 public:
  /// Scored tokens [begin, end) of `pass` out of hidden states [n, D] of the stream's tokens from `offset`
  /// on: norm, logits, log-softmax. `goes_back`: backward() will follow.
  HeadChunk(const HeadPass& pass, const at::Tensor& hidden, int64_t offset, int64_t begin, int64_t end,
            bool goes_back);

  /// Their values, [rows] float64 each.
  TokenValues values();

  /// Adds the gradients for d loss / d values ([rows] float64 each, undefined: zero) and puts that of the
  /// hidden states in their place. Uses the chunk up.
  void backward(const TokenValues& d_values, at::Tensor& hidden);

 private:
  /// Out of hidden states of the stream's tokens from `offset` on.
  at::Tensor rows_of(const at::Tensor& hidden, int64_t offset) const;
  at::Tensor divergences();
  at::Tensor logits_gradient(const TokenValues& d_values);
  /// Whether the request is for log-probabilities of uncapped logits alone, on a device with kernels for
  /// them.
  bool is_plain() const;

  const HeadPass& pass_;
  int64_t offset_;
  int64_t first_ = 0;      // stream place of the first row
  at::Tensor places_;      // the rows' places, where they are not neighbours
  at::Tensor targets_;     // [rows, 1]
  at::Tensor has_target_;  // [rows] bool, or undefined
  at::Tensor normed_;      // [rows, D]
  RmsNormSaved saved_;
  at::Tensor cap_slope_;  // [rows, V], only where logits are capped: 1 - tanh^2
  at::Tensor log_p_;      // [rows, V]: log-softmax (a plain request: logits), in the end their gradient
  std::optional<TargetHead> target_head_;  // of a plain request, where it is served
  at::Tensor plain_;                       // [rows] float64: a plain request's log-probabilities
  at::Tensor sums_;  // [rows, 2] float64: what a plain request's gradient needs beside the logits
  // For divergences, over the vocabulary that both models have and at the temperature that they ask for:
  at::Tensor log_d_;      // [rows, V]: of the policy; undefined where it is log_p_
  at::Tensor log_other_;  // [rows, V]: of the teacher; once there are values, of what p is compared with
  at::Tensor excess_;     // [rows, 1]: KL(p || other)
  at::Tensor entropy_;    // [rows, 1], in the dtype of the logits
};

}  // namespace streambp
