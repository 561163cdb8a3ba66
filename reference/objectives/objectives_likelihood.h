// Losses that make a given text, or a teacher's choices, likely.
#pragma once

#include "reference/model.h"

namespace streambp::STREAMBP_REFERENCE {

/// Supervised fine-tuning: loss = -(sum of log p) / divisor. The divisor is the number of targets for the
/// mean over tokens, and the number of targets of all batches where gradients are accumulated over several.
/// The objective throws std::invalid_argument when it is evaluated with a divisor that is not positive.
Objective sft(Number divisor);

/// The same with the targets smoothed, a share e = label_smoothing of each spread evenly over the V tokens of
/// the vocabulary (Szegedy et al. 2016, https://arxiv.org/abs/1512.00567; PyTorch's cross_entropy):
///     loss = (1 / divisor) sum over tokens of [-(1 - e) ln p_target - e (1 / V) sum_v ln p_v]
/// Throws std::invalid_argument unless divisor > 0 and 0 <= e <= 1.
TokenObjective sft(Number divisor, Number label_smoothing);

/// Dynamic fine-tuning (Wu et al. 2025, https://arxiv.org/abs/2508.05629; TRL, sft_trainer.py): every token's
/// cross-entropy times its own probability, which is held constant:
///     loss = -(1 / divisor) sum over tokens of p ln p
/// Throws std::invalid_argument unless divisor > 0.
TokenObjective dft(Number divisor);

struct DistillOptions {
  Number beta = 0.0;  // the divergence, see Teacher: 0 from the teacher, 1 to it, between them a mixture
  Number temperature = 1.0;  // tau
  Number alpha = 1.0;        // the share of the teacher; the rest is the given text's
  Number divisor = 1.0;      // the number of scored tokens, for a mean over them
  bool softening = true;     // w = tau^2; false: w = 1, as TRL's GKDTrainer and DistillationTrainer have it
  bool shares_first_tokens = false;  // see Teacher
};

/// Distillation (Hinton et al. 2015, https://arxiv.org/abs/1503.02531; reverse: Gu et al. 2023,
/// https://arxiv.org/abs/2306.08543; generalised: Agarwal et al. 2023, https://arxiv.org/abs/2306.13649),
/// with D_tau the divergence between both distributions at temperature tau, which shrinks gradients by tau^2:
///     loss = (1 / divisor) sum over tokens of [alpha w D_tau - (1 - alpha) ln p_target]
/// and ln p at temperature 1, as in the paper. `teacher_logits` are [M, V] over the scored tokens. Throws
/// std::invalid_argument unless tau > 0, 0 <= alpha <= 1, 0 <= beta <= 1 and divisor > 0.
TokenObjective distill(const DistillOptions& options, const Matrix& teacher_logits);

}  // namespace streambp::STREAMBP_REFERENCE
