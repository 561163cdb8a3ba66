// A pass through the library's own layers, one after another under autograd, that makes mistakes around them:
// with an attention written out in plain ATen in between, for every family and adapter that the library
// knows.
#pragma once

#include <optional>

#include "verify/diagnose/wrong_engine/wrong_engine.h"

namespace streambp::verify {

/// The gradients of `subject` with the mistakes of `settings`. Throws InputError for mistakes that it does
/// not make (of rotary positions but along columns, adapters' scales, sums), and for batches whose scores
/// don't fit.
Tensors run_layer_pass(const WrongSubject& subject, const WrongSettings& settings);

/// The gradients of sft with what `with` adds of logits, the head's or the routers'; nothing where there is
/// no such loss.
std::optional<Tensors> with_terms_of_logits(const WrongSubject& subject, const WrongSettings& with);

/// What the head takes of every token of the subject's batch, and gives: final hidden states after the norm
/// [N, D], and logits [N, V], capped and divided by the temperature.
struct HeadInputs {
  at::Tensor normed, logits;
};
HeadInputs head_inputs(const WrongSubject& subject, double temperature);

}  // namespace streambp::verify
