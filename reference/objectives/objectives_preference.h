// Losses that make one completion likelier than another: sequences come in pairs, or each with a judgement.
#pragma once

#include <optional>
#include <utility>
#include <vector>

#include "reference/objectives/objective_terms.h"

namespace streambp::STREAMBP_REFERENCE {

enum class DpoLoss {
  kSigmoid,
  kSigmoidNorm,
  kHinge,
  kIpo,
  kRobust,
  kExoPair,
  kNcaPair,
  kBcoPair,
  kSppoHard,
  kAot,
  kAotUnpaired,
  kApoZero,
  kApoDown,
  kDiscopop,
  kSft
};

/// What holds the policy to the reference (Wang et al. 2023, https://arxiv.org/abs/2309.16240).
enum class FDivergence { kReverseKl, kForwardKl, kJs, kAlpha };

struct DpoOptions {
  DpoLoss loss_type = DpoLoss::kSigmoid;
  Number beta = 0.1;
  Number label_smoothing = 0.0;
  Number cdpo_label_smoothing = 0.0;  // of kSigmoid
  /// What kIpo and kSigmoidNorm divide by, an entry for every sequence; empty: its number of scored tokens.
  std::vector<Number> completion_tokens = {};
  std::vector<std::pair<DpoLoss, Number>> mix = {};  // several with weights, instead of loss_type
  FDivergence f_divergence_type = FDivergence::kReverseKl;
  Number f_alpha_divergence_coef = 0.5;
  std::optional<Number> ld_alpha = std::nullopt;
  bool use_weighting = false;
  Number discopop_tau = 0.05;
};

/// What each token's ln p is multiplied by under LD-DPO (Liu et al. 2024, https://arxiv.org/abs/2409.06411):
/// 1 up to the length of the shorter sequence of its pair, ld_alpha beyond.
std::vector<Number> ld_weights(const TokenLayout& layout, Number ld_alpha);

/// Direct preference optimisation (Rafailov et al. 2023, https://arxiv.org/abs/2305.18290; TRL,
/// dpo_trainer.py). Of the 2n sequences i < n is chosen and n + i rejected. With l = (sum of the sequence's
/// ln p, each times its ld_weights) - (the reference's sum), f = the score of l, z = beta (f_chosen -
/// f_rejected), e = label_smoothing, c = cdpo_label_smoothing and |.| a sequence's completion_tokens (at
/// least 1), the loss is the mean over pairs of
/// - sigmoid: -(1 - c) ln sigma(z) - c ln sigma(-z)   (Mitchell 2023, https://ericmitchell.ai/cdpo.pdf)
/// - sigmoid_norm: -ln sigma(beta (f_chosen / |chosen| - f_rejected / |rejected|))   (Lambert et al. 2024,
///   https://arxiv.org/abs/2411.15124)
/// - hinge: max(0, 1 - z)   (Zhao et al. 2023, https://arxiv.org/abs/2305.10425)
/// - ipo: (f_chosen / |chosen| - f_rejected / |rejected| - 1 / (2 beta))^2   (Azar et al. 2023,
///   https://arxiv.org/abs/2310.12036, with TRL's means over tokens)
/// - robust: [-(1 - e) ln sigma(z) + e ln sigma(-z)] / (1 - 2 e)   (Chowdhury et al. 2024,
///   https://arxiv.org/abs/2403.00409)
/// - exo_pair: sigma(z) ln(sigma(z) / (1 - e)) + sigma(-z) ln(sigma(-z) / e)   (Ji et al. 2024,
///   https://arxiv.org/abs/2402.00856)
/// - nca_pair: -ln sigma(beta l_chosen) - (ln sigma(-beta l_chosen) + ln sigma(-beta l_rejected)) / 2   (Chen
/// et
///   al. 2024, https://arxiv.org/abs/2402.05369)
/// - bco_pair: -ln sigma(beta l_chosen) - ln sigma(-beta l_rejected)   (Jung et al. 2024,
///   https://arxiv.org/abs/2404.04656, without its shift, as TRL)
/// - sppo_hard: (l_chosen - 1 / (2 beta))^2 + (l_rejected + 1 / (2 beta))^2   (Wu et al. 2024,
///   https://arxiv.org/abs/2405.00675)
/// - aot, aot_unpaired: sigmoid's of beta (a - b), with a and b the pairs' margins of ln p and of the
/// reference,
///   or l_chosen and l_rejected, each sorted over the pairs   (Melnyk et al. 2024,
///   https://arxiv.org/abs/2406.05882)
/// - apo_zero: sigma(-beta l_chosen) + sigma(beta l_rejected)
/// - apo_down: sigma(beta l_chosen) + sigma(-beta (l_chosen - l_rejected))   (D'Oosterlinck et al. 2024,
///   https://arxiv.org/abs/2408.06266)
/// - discopop: -(1 - m) ln sigma(z) + m e^-z with m = sigma(z / discopop_tau)   (Lu et al. 2024,
///   https://arxiv.org/abs/2406.08414)
/// - sft: the mean over the chosen sequences' tokens of -ln p
/// The score of l is l (reverse_kl), 1 - e^-l (forward_kl), ln 2 + ln sigma(l) (js_divergence) or
/// (e^((a - 1) l) - 1) / (a - 1) with a = f_alpha_divergence_coef. With use_weighting a pair's loss is
/// multiplied by its two sequences' e^(mean of ln p - ln sum_v p_v^2), held constant (Zhou et al. 2024,
/// https://arxiv.org/abs/2406.11827). Exponents are `capped`. `reference_sums` has one entry for every
/// sequence, or none: then the reference counts as 0 ("reference-free"). Throws std::invalid_argument for an
/// odd number of sequences or none, beta < 0 (ipo, sppo_hard: beta <= 0), e outside of [0, 1] (robust: [0,
/// 0.5), exo_pair: (0, 1)), e > 0 with a loss alone that has none, another divergence than reverse_kl with a
/// loss that is no function of f, aot or sft with use_weighting, and another number of reference sums.
TokenObjective dpo(const DpoOptions& options, const TokenLayout& layout,
                   const std::vector<Number>& reference_sums);

enum class CpoLoss { kSigmoid, kHinge, kIpo, kSimpo };

struct CpoOptions {
  CpoLoss loss_type = CpoLoss::kSigmoid;
  Number beta = 0.1;
  Number simpo_gamma = 0.5;
  Number label_smoothing = 0.0;
  Number alpha = 0.0;
  Number cpo_alpha = 1.0;
};

/// Contrastive preference optimisation (Xu et al. 2024, https://arxiv.org/abs/2401.08417; TRL,
/// cpo_trainer.py). With s the sum of a sequence's ln p (sigmoid, hinge) or their mean (ipo, simpo), r = s or
/// (AlphaPO, Gupta et al. 2025, https://arxiv.org/abs/2501.03884) r = (1 - e^(-alpha s)) / alpha, and m =
/// r_chosen - r_rejected, the loss is the mean over pairs of DPO's loss of this name with z = beta m (ipo: (m
/// - 1 / (2 beta))^2; simpo: sigmoid's with z = beta m - gamma), and cpo_alpha times the mean of -ln p over
/// the chosen sequences' tokens. Throws std::invalid_argument as dpo.
TokenObjective cpo(const CpoOptions& options, const TokenLayout& layout);

struct SimpoOptions {
  Number beta = 2.0;
  Number gamma = 1.0;  // TRL's simpo_gamma: the paper's target margin
  Number label_smoothing = 0.0;
};

/// SimPO (Meng et al. 2024, https://arxiv.org/abs/2405.14734; TRL, cpo_trainer.py with loss_type "simpo" and
/// cpo_alpha 0): DPO's sigmoid loss of z = beta (a_chosen - a_rejected) - gamma with a the mean of a
/// sequence's ln p, and no reference. Throws std::invalid_argument as dpo.
TokenObjective simpo(const SimpoOptions& options, const TokenLayout& layout);

/// Odds-ratio preference optimisation (Hong et al. 2024, https://arxiv.org/abs/2403.07691; TRL,
/// orpo_trainer.py). With a the mean of a sequence's ln p and odds(a) = e^a / (1 - e^a),
///     loss = -(sum of the chosen sequences' ln p) / (number of their scored tokens)
///            - mean over pairs of beta ln sigma(ln odds(a_chosen) - ln odds(a_rejected))
/// e^a is taken for at most 1 - 2^-53, the largest double below 1, and held constant above. TRL's first term
/// counts the chosen sequences' prompts too: then `completion` says of each scored token whether it is of a
/// completion, and so counts in a, and all tokens of the chosen sequences are scored. Empty: all are
/// completions'. Throws std::invalid_argument as dpo, and if a sequence has no token of a completion, of
/// which there are no odds.
TokenObjective orpo(Number beta, const TokenLayout& layout, const std::vector<Number>& completion = {});

/// What a sequence is to KTO: a completion that is judged, or one that belongs to another prompt and is only
/// there to tell how far the policy has moved.
enum class KtoRole { kUndesirable = 0, kDesirable = 1, kUnrelated = 2 };

struct KtoOptions {
  Number beta = 0.1;
  Number desirable_weight = 1.0;
  Number undesirable_weight = 1.0;
  bool apo_zero_unpaired = false;  // k = 0 (https://arxiv.org/abs/2408.06266, unpaired)
};

/// Kahneman-Tversky optimisation (Ethayarajh et al. 2024, https://arxiv.org/abs/2402.01306; TRL,
/// kto_trainer.py). With l = (sum of the sequence's ln p) - (the reference's sum) and k = max(mean of l over
/// the unrelated sequences, 0), 0 without any and held constant, the loss is the mean over the judged
/// sequences of
///     desirable: w_d (1 - sigma(beta (l - k))),   undesirable: w_u (1 - sigma(beta (k - l)))
/// The unrelated sequences are of a forward pass of their own: the routers' loss leaves them out.
/// Throws std::invalid_argument without a judged sequence, for beta < 0, a negative weight, and another
/// number of roles or reference sums than of sequences.
TokenObjective kto(const KtoOptions& options, const TokenLayout& layout, const std::vector<KtoRole>& roles,
                   const std::vector<Number>& reference_sums);

}  // namespace streambp::STREAMBP_REFERENCE
