// Losses that make one completion likelier than another: sequences come in pairs, or each with a judgement.
#pragma once

#include <vector>

#include "reference/objective_terms.h"

namespace streambp::reference {

enum class DpoLoss { kSigmoid, kHinge, kIpo, kRobust };

struct DpoOptions {
  DpoLoss loss_type = DpoLoss::kSigmoid;
  double beta = 0.1;
  double label_smoothing = 0.0;
};

/// Direct preference optimisation (Rafailov et al. 2023, https://arxiv.org/abs/2305.18290; TRL,
/// dpo_trainer.py). Of the 2n sequences i < n is chosen and n + i rejected. With l = (sum of the sequence's
/// ln p) - (the reference's sum), z = beta (l_chosen - l_rejected), e = label_smoothing and |.| the number of
/// a sequence's scored tokens (at least 1), the loss is the mean over pairs of
/// - sigmoid: -(1 - e) ln sigma(z) - e ln sigma(-z)   (Mitchell 2023, https://ericmitchell.ai/cdpo.pdf)
/// - hinge: max(0, 1 - z)   (Zhao et al. 2023, https://arxiv.org/abs/2305.10425)
/// - ipo: (l_chosen / |chosen| - l_rejected / |rejected| - 1 / (2 beta))^2   (Azar et al. 2023,
///   https://arxiv.org/abs/2310.12036, with TRL's means over tokens)
/// - robust: [-(1 - e) ln sigma(z) + e ln sigma(-z)] / (1 - 2 e)   (Chowdhury et al. 2024,
///   https://arxiv.org/abs/2403.00409)
/// `reference_sums` has one entry for every sequence, or none: then the reference counts as 0
/// ("reference-free"). Throws std::invalid_argument for an odd number of sequences or none, beta < 0 (ipo:
/// beta <= 0), e outside of [0, 1] (robust: [0, 0.5)), e > 0 with hinge or ipo, and another number of
/// reference sums.
TokenObjective dpo(const DpoOptions& options, const TokenLayout& layout,
                   const std::vector<double>& reference_sums);

struct SimpoOptions {
  double beta = 2.0;
  double gamma = 1.0;  // TRL's simpo_gamma: the paper's target margin
  double label_smoothing = 0.0;
};

/// SimPO (Meng et al. 2024, https://arxiv.org/abs/2405.14734; TRL, cpo_trainer.py with loss_type "simpo" and
/// cpo_alpha 0): DPO's sigmoid loss of z = beta (a_chosen - a_rejected) - gamma with a the mean of a
/// sequence's ln p, and no reference. Throws std::invalid_argument as dpo.
TokenObjective simpo(const SimpoOptions& options, const TokenLayout& layout);

/// Odds-ratio preference optimisation (Hong et al. 2024, https://arxiv.org/abs/2403.07691; TRL,
/// orpo_trainer.py). With a the mean of a sequence's ln p and odds(a) = e^a / (1 - e^a),
///     loss = -(sum of the chosen sequences' ln p) / (number of their scored tokens)
///            - mean over pairs of beta ln sigma(ln odds(a_chosen) - ln odds(a_rejected))
/// (TRL's first term counts the prompt's tokens too; here a token counts if it is scored.) e^a is taken for
/// at most 1 - 2^-53, the largest double below 1, and held constant above. Throws std::invalid_argument as
/// dpo, and if a sequence has no scored token, of which there are no odds.
TokenObjective orpo(double beta, const TokenLayout& layout);

/// What a sequence is to KTO: a completion that is judged, or one that belongs to another prompt and is only
/// there to tell how far the policy has moved.
enum class KtoRole { kUndesirable = 0, kDesirable = 1, kUnrelated = 2 };

struct KtoOptions {
  double beta = 0.1;
  double desirable_weight = 1.0;
  double undesirable_weight = 1.0;
};

/// Kahneman-Tversky optimisation (Ethayarajh et al. 2024, https://arxiv.org/abs/2402.01306; TRL,
/// kto_trainer.py). With l = (sum of the sequence's ln p) - (the reference's sum) and k = max(mean of l over
/// the unrelated sequences, 0), 0 without any and held constant, the loss is the mean over the judged
/// sequences of
///     desirable: w_d (1 - sigma(beta (l - k))),   undesirable: w_u (1 - sigma(beta (k - l)))
/// Throws std::invalid_argument without a judged sequence, for beta < 0, a negative weight, and another
/// number of roles or reference sums than of sequences.
TokenObjective kto(const KtoOptions& options, const TokenLayout& layout, const std::vector<KtoRole>& roles,
                   const std::vector<double>& reference_sums);

}  // namespace streambp::reference
