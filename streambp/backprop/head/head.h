// The end of the network: final norm, LM head, value head, and what an objective asks of them.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <utility>

#include <ATen/ATen.h>

#include "streambp/backprop/wide_gradients.h"
#include "streambp/model/model.h"
#include "streambp/model/scored.h"
#include "streambp/objective/objective.h"

namespace streambp {

/// A teacher to distil from: its final hidden states [N, Dt] on the same stream.
struct Teacher {
  const Model* model = nullptr;
  at::Tensor hidden;
};

/// log sum_v p_v^2 for log p [..., V]: [...]. The sum is at least 1 / V, so that no maximum need be taken
/// off.
at::Tensor log_sum_squares(const at::Tensor& log_p);

/// One column of TokenValues after another, without the embeddings; undefined columns stay undefined.
using Columns = std::array<at::Tensor, 6>;
Columns to_columns(const TokenValues& values);
TokenValues to_values(const Columns& columns);

/// Those of scored tokens [begin, end) of `values`; views.
TokenValues rows_of(const TokenValues& values, int64_t begin, int64_t end);

/// What the head knows of the scored tokens after its pass.
struct HeadOutcome {
  double loss = 0.0;
  TokenValues values;            // [M] each
  std::vector<at::Tensor> held;  // by a full head's ops, until the backward pass is done
};

/// What the head works on.
struct HeadPass {
  Model& model;
  const HeadTargets& scored;
  HeadRequest request;
  Teacher teacher;  // with a divergence only

  /// The tokens that both policy and teacher have: the first ones.
  int64_t shared_vocabulary() const;
  /// Whether the policy's distribution in a divergence is the one of all other values.
  bool has_one_softmax() const;
};

/// The loss of hidden states [N, D] under autograd with the logits of every token in full, [N, V], as Hugging
/// Face computes it; `ops` may hold more in `outcome`. Returns
/// the differentiable loss; `outcome` receives its value and the tokens' values.
at::Tensor full_head(const HeadPass& pass, const Objective& objective, const at::Tensor& hidden,
                     const ModelOps& ops, HeadOutcome& outcome);

/// The scored tokens' values alone, by chunks, without gradients.
TokenValues head_values(const HeadPass& pass, int64_t chunk, const at::Tensor& hidden);

/// A loss that is summed up on its device and read once: a GPU would wait for the host at each reading.
class LossSum {
 public:
  void add(const at::Tensor& terms);
  double read() const;

 private:
  at::Tensor sum_;
};

/// The head by chunks of `chunk` scored tokens, with the backward pass. Takes the stream in one piece or in
/// several, in any order; an objective that isn't separable() wants it in one.
class StreamedHead {
 public:
  /// `pass` and `objective` must outlive it. `rows`: how much of the stream run() is given at a time, 0: all.
  StreamedHead(const HeadPass& pass, const Objective& objective, int64_t chunk, int64_t rows = 0);

  /// Tokens [begin, begin + n) of the stream, with final hidden states `hidden` [n, D]: adds the gradients of
  /// heads and norm, and overwrites the hidden states with their own gradient. Tokens that are not scored
  /// never reach the head.
  void run(int64_t begin, at::Tensor& hidden);

  /// Rounds what was summed wide, once the whole stream has been taken, for those who use the gradients while
  /// this object is there.
  void round_sums() {
    norm_sum_.reset();
    sums_.reset();
  }

  /// What is known when the whole stream has been taken.
  HeadOutcome outcome() const;

 private:
  const HeadPass& pass_;
  const Objective& objective_;
  int64_t chunk_;
  LossSum loss_;
  TokenValues values_;
  std::optional<WideGradient> norm_sum_;
  std::optional<WideHead> sums_;
};

}  // namespace streambp
