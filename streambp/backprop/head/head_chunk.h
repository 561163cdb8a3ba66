// One chunk of scored tokens through the head and back, without autograd.
#pragma once

#include <functional>
#include <memory>

#include <ATen/ATen.h>

#include "streambp/backprop/head/head.h"
#include "streambp/model/final_rows.h"

namespace streambp {

/// The rows of a chunk before the LM head.
struct HeadRows {
  const HeadPass& pass;
  at::Tensor normed;      // [rows, D], in the head's dtype
  at::Tensor targets;     // [rows, 1]
  at::Tensor has_target;  // [rows] bool, or undefined: all
  /// The rows of the teacher's hidden states, [rows, Dt]: with a divergence only.
  std::function<at::Tensor()> teacher_hidden;
};

/// The distributions that the LM head gives the rows, and what the objective asks of them. One implementation
/// for each kind of request: see make_distributions.
class Distributions {
 public:
  virtual ~Distributions() = default;

  /// Fills in what is asked of the distributions, [rows] float64 each.
  virtual void values(TokenValues& values) = 0;

  /// Adds the head's gradients for d loss / d values and returns that of the normed rows, [rows, D]. To be
  /// called once.
  virtual at::Tensor backward(const TokenValues& d_values) = 0;
};

/// A request for the targets' log-probabilities alone, of logits that are not capped, is served by TargetHead
/// where that can be, else by kernels over the logits where the device has them; all others by operations on
/// the whole log-softmax. `goes_back`: backward() will follow.
std::unique_ptr<Distributions> make_distributions(const HeadRows& rows, bool goes_back);

class HeadChunk {
 public:
  /// Scored tokens [begin, end) of `pass` out of hidden states [n, D] of the stream's tokens from `offset`
  /// on: norm, logits, log-softmax. `goes_back`: backward() will follow.
  HeadChunk(const HeadPass& pass, const at::Tensor& hidden, int64_t offset, int64_t begin, int64_t end,
            bool goes_back);

  /// Their values, [rows] float64 each.
  TokenValues values();

  /// Adds the gradients for d loss / d values ([rows] float64 each, undefined: zero) and writes that of the
  /// hidden states over them. To be called once.
  void backward(const TokenValues& d_values, at::Tensor& hidden);

 private:
  /// The chunk's rows of the hidden states of the stream's tokens from `offset` on.
  at::Tensor rows_of(const at::Tensor& hidden, int64_t offset) const;

  const HeadPass& pass_;
  int64_t offset_;
  int64_t first_ = 0;   // index of the first row in the stream
  int64_t count_ = 0;   // rows
  at::Tensor indices_;  // of the rows in the stream, where they are not contiguous
  at::Tensor normed_;   // [rows, D]
  FinalRowsSaved saved_;
  std::unique_ptr<Distributions> distributions_;  // null where only values of the value head are asked for
};

}  // namespace streambp
