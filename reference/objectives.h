// Losses as functions of per-token log-probabilities.
#pragma once

#include "reference/model.h"

namespace streambp::reference {

/// Supervised fine-tuning: loss = -(sum of log p) / divisor. The divisor is the number of targets for the
/// mean over tokens, and the number of targets of all batches where gradients are accumulated over several.
/// The objective throws std::invalid_argument when it is evaluated with a divisor that is not positive.
Objective sft(double divisor);

}  // namespace streambp::reference
