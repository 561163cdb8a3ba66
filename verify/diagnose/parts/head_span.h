// Whether the head's gradient can be that of any loss on the right forward pass.
#pragma once

#include "verify/diagnose/parts/parts.h"

namespace streambp::verify {

/// True where the head's gradient among `gradients` is no sum over tokens of what a loss of next tokens,
/// entropies, means of log-probabilities, squares of log-sum-exps or weight decay sends to it on the right
/// forward pass, whatever their weights: then the forward pass or its targets are others. False where that
/// can't be told. Takes a forward pass.
bool is_of_no_loss(const WrongSubject& subject, const Tensors& gradients, const PartsLimits& limits);

}  // namespace streambp::verify
