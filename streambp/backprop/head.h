// The end of the network: final norm, LM head, value head, and what an objective asks of them.
#pragma once

#include <array>
#include <cstdint>
#include <functional>

#include <ATen/ATen.h>

#include "streambp/model/model.h"
#include "streambp/objective/objective.h"

namespace streambp {

/// The scored tokens of a stream.
struct Scored {
  at::Tensor places;  // [M] int64, ascending, on the CPU: where they are in the stream
  at::Tensor
      targets;  // [M] int64, on the model's device; 0 for a token that has none and is here for its value
  at::Tensor has_target;  // [M] bool, on the model's device; undefined where all have

  int64_t size() const { return places.size(0); }
};

Scored find_scored(const Batch& batch, c10::Device device);

/// A teacher to distil from: its final hidden states [N, Dt] on the same stream.
struct Teacher {
  const Model* model = nullptr;
  at::Tensor hidden;
};

/// One column of TokenValues after another; undefined columns stay undefined.
using Columns = std::array<at::Tensor, 5>;
Columns to_columns(const TokenValues& values);
TokenValues to_values(const Columns& columns);

/// What the head knows of the scored tokens after its pass.
struct HeadOutcome {
  double loss = 0.0;
  TokenValues values;  // [M] each
  at::Tensor logits;   // [N, V] in the model's dtype, where a full head was asked to hold them
};

/// What the head works on.
struct HeadPass {
  Model& model;
  const Scored& scored;
  HeadRequest request;
  Teacher teacher;  // with a divergence only
};

/// The loss of hidden states [N, D] under autograd with the logits of every token in full, [N, V], as Hugging
/// Face computes it; with `hold_logits` they live on in `outcome`, as in the output of its models. Returns
/// the differentiable loss; `outcome` receives its value and the tokens' values.
at::Tensor full_head(const HeadPass& pass, const Objective& objective, const at::Tensor& hidden,
                     bool hold_logits, HeadOutcome& outcome);

/// The same by chunks of `chunk` scored tokens, with the backward pass: adds the gradients of heads and norm
/// and overwrites `hidden` [N, D] with its own gradient. Tokens that are not scored never reach the head.
HeadOutcome streamed_head(const HeadPass& pass, const Objective& objective, int64_t chunk,
                          at::Tensor& hidden);

/// The scored tokens' values alone, by chunks, without gradients.
TokenValues head_values(const HeadPass& pass, int64_t chunk, const at::Tensor& hidden);

}  // namespace streambp
