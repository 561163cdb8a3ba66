// An objective as it is at one policy: a sum over scored tokens, of each value times the loss's slope by it.
// Whatever the objective, the gradient is then a sum over rows, and over the terms of the loss, whose parts
// can be had one by one.
#pragma once

#include <cstdint>
#include <vector>

#include "streambp/backprop/head/head.h"
#include "streambp/model/model.h"
#include "verify/evaluation.h"

namespace streambp::verify {

/// Numbers of the scored tokens of a batch, or of its sequences' embeddings where there is pooling.
struct ScoredValues {
  Columns columns;        // [M] each; undefined where they are not asked for
  at::Tensor embeddings;  // [S, D]
};

/// d loss / d values of `objective` at `values`; undefined where the loss does not depend on them.
ScoredValues slopes_at(const Objective& objective, const ScoredValues& values);

/// a + factor b, of what either has.
ScoredValues sum_of(const ScoredValues& a, const ScoredValues& b, double factor = 1.0);

bool is_zero(const ScoredValues& slopes);

/// The gradients of a loss that is a sum of the values of a batch's scored tokens times `slopes`, as
/// `request` asks for them: without the routers' loss.
Tensors gradients_of_slopes(Model& model, const Batch& batch, const ScoredValues& slopes,
                            const HeadRequest& request, Model* teacher);

/// The objectives of a batch at the policy of a model, which is run once.
class Linearised {
 public:
  /// All must outlive it; `teacher` may be null.
  Linearised(Model& model, const Batch& batch, const Objective& objective, Model* teacher);

  /// The gradients of the objective itself.
  const Tensors& gradients() const { return gradients_; }
  /// What it sees, and entropies and mean log-probabilities where it looks at logits, asked for or not.
  const ScoredValues& values() const { return values_; }
  const ScoredValues& slopes() const { return slopes_; }

  /// The scored tokens of each sequence, [M] bool.
  at::Tensor of_sequence(int64_t sequence) const;

  /// The gradients of a loss with such slopes, of those sequences alone: without the routers' loss.
  Tensors gradients_of(const ScoredValues& slopes, const std::vector<int64_t>& sequences) const;
  Tensors gradients_of(const ScoredValues& slopes) const;

 private:
  Model& model_;
  Batch batch_;  // with the objective's own targets
  Model* teacher_;
  HeadRequest request_;
  at::Tensor sequences_;  // [M] int64: of each scored token
  Tensors gradients_;
  ScoredValues values_, slopes_;
};

}  // namespace streambp::verify
