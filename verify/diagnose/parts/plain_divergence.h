// GRPO's loss with one of its terms otherwise.
#pragma once

#include <optional>

#include "verify/diagnose/parts/fit.h"
#include "verify/diagnose/parts/slopes.h"
#include "verify/diagnose/wrong_engine/wrong_engine.h"

namespace streambp::verify {

/// The gradients, as `gauge` has them, of a loss whose KL term's log-probabilities are not divided by the
/// temperature; nothing where there is no such term, or the temperature is 1. Takes three passes. `linear` is
/// of the subject itself.
std::optional<at::Tensor> with_plain_divergence(const WrongSubject& subject, const FitGauge& gauge,
                                                const Linearised& linear);

/// The slopes by advantages of tokens that have none: those that an advantage of 1 would give them.
ScoredValues slopes_of_unit_advantages(const WrongSubject& subject, const Linearised& linear);

}  // namespace streambp::verify
