// A training objective: a function of the log-probabilities of the scored tokens.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include <ATen/ATen.h>

#include "streambp/model/batch.h"

namespace streambp {

/// loss = f(log p_1, ..., log p_M) over the M scored tokens of a batch (those with a target), in stream
/// order. An objective sees its batch once, when it is made: per-token inputs and normalisers are those of
/// the whole batch, never of a chunk.
class Objective {
 public:
  virtual ~Objective() = default;

  virtual std::string name() const = 0;

  /// Whether the loss is a sum over tokens of terms that depend on that token's log-probability alone: then
  /// one pass over the head yields the gradient. Otherwise a first pass collects the log-probabilities.
  virtual bool separable() const = 0;

  /// The terms of scored tokens [begin, end) as one differentiable number (float64), given their
  /// log-probabilities [end - begin] (float64). Only a separable objective is asked for less than the whole.
  virtual at::Tensor loss(const at::Tensor& log_probabilities, int64_t begin, int64_t end) const = 0;
};

/// Supervised fine-tuning: minus the sum of the scored tokens' log-probabilities over `divisor`; by default
/// over their number in the whole batch (transformers, loss_utils.py, ForCausalLMLoss: reduction mean, or sum
/// / num_items_in_batch). Throws InputError for a divisor that is not a positive number.
std::unique_ptr<Objective> make_sft(const Batch& batch, std::optional<double> divisor = std::nullopt);

}  // namespace streambp
