// The end of the network: final norm, LM head, log-probabilities, objective.
#pragma once

#include <cstdint>

#include <ATen/ATen.h>

#include "streambp/model/model.h"
#include "streambp/objective/objective.h"

namespace streambp {

/// The scored tokens of a stream.
struct Scored {
  at::Tensor places;   // [M] int64, ascending, on the CPU: where they are in the stream
  at::Tensor targets;  // [M] int64, on the model's device

  int64_t size() const { return places.size(0); }
};

Scored find_scored(const Batch& batch, c10::Device device);

/// What the head knows of the scored tokens after its pass.
struct HeadOutcome {
  double loss = 0.0;
  at::Tensor log_probabilities;  // [M] float64
};

/// The loss of hidden states [N, D] under autograd with the logits of every token in full, [N, V], as Hugging
/// Face computes it. Returns the differentiable loss; `outcome` receives its value and the log-probabilities.
at::Tensor full_head(Model& model, const Scored& scored, const Objective& objective, const at::Tensor& hidden,
                     HeadOutcome& outcome);

/// The same by chunks of `chunk` scored tokens, with the backward pass: adds the gradients of head and norm
/// and overwrites `hidden` [N, D] with its own gradient. Tokens that are not scored never reach the head.
HeadOutcome streamed_head(Model& model, const Scored& scored, const Objective& objective, int64_t chunk,
                          at::Tensor& hidden);

}  // namespace streambp
