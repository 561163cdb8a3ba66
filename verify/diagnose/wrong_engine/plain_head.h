// The head with its logits in full, and what is done wrongly with them.
#pragma once

#include "streambp/backprop/head/head.h"
#include "streambp/model/model.h"
#include "verify/diagnose/wrong_engine/wrong_settings.h"

namespace streambp::verify {

/// x with a cap, or with its gradient without one.
at::Tensor capped(const at::Tensor& x, double cap, bool straight);

/// Of normed hidden states, capped.
at::Tensor logits_of(const Model& model, const WrongSettings& settings, const at::Tensor& normed);

/// What the settings add of the scored tokens' logits: the mean square of their log-sum-exp, and less the
/// mean of the targets' own.
at::Tensor terms_of_logits(const Model& model, const WrongSettings& settings, const at::Tensor& hidden,
                           const HeadTargets& scored);

/// Whether settings ask for plain_head.
bool asks_for_plain_head(const WrongSettings& settings);

/// The loss of an objective of the targets' log-probabilities alone; throws InputError for others. Where
/// slopes are rounded, the gradient of a target's logit is not p - 1 but p, rounded, less 1.
at::Tensor plain_head(const Model& model, const WrongSettings& settings, const Objective& objective,
                      const at::Tensor& hidden, const HeadTargets& scored);

}  // namespace streambp::verify
