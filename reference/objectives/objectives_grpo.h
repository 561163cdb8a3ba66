// GRPO and its relatives: losses of completions whose tokens come with advantages.
#pragma once

#include <optional>
#include <vector>

#include "reference/objectives/objectives_policy.h"

namespace streambp::STREAMBP_REFERENCE {

enum class GrpoLoss { kGrpo, kBnpo, kDrGrpo, kDapo, kCispo, kSapo, kLuspo, kVespo };

/// Under TRL's names; clip_ratio_c and the KL's estimator are verl's. What ends in _pos and _neg is for
/// advantages of either sign; one of 0 is negative to sapo and positive to vespo.
struct GrpoOptions {
  GrpoLoss loss_type = GrpoLoss::kGrpo;
  bool sequence_level = false;  // importance_sampling_level "sequence"
  Number epsilon_low = 0.2;
  Number epsilon_high = 0.2;
  std::optional<Number> delta = std::nullopt;
  Number beta = 0.0;
  Number temperature = 1.0;
  Number max_completion_length = 0.0;  // dr_grpo
  Number num_items_in_batch = 0.0;     // dapo, cispo, vespo
  std::optional<Number> clip_ratio_c = std::nullopt;
  Number sapo_temperature_pos = 1.0;
  Number sapo_temperature_neg = 1.05;
  Number vespo_k_pos = 2.0;
  Number vespo_k_neg = 3.0;
  Number vespo_lambda_pos = 3.0;
  Number vespo_lambda_neg = 2.0;
  Number top_entropy_quantile = 1.0;
  std::optional<Number> off_policy_mask_threshold = std::nullopt;
  Number entropy_coef = 0.0;
  KlEstimator kl_estimator = KlEstimator::kK3;
  bool use_bias_correction_kl = false;
};

/// Per-token vectors have one entry for every scored token; see `spread` for advantages of whole sequences.
struct GrpoInputs {
  TokenLayout layout;
  std::vector<Number> advantages;
  std::vector<Number> old_log_probabilities = {};        // empty: the policy's own, held constant
  std::vector<Number> reference_log_probabilities = {};  // needed if beta > 0
  std::vector<Number> sampling_log_probabilities =
      {};  // empty: the old ones; NaN: of an unknown one, no drift
  std::vector<Number> importance_sampling_ratio = {};  // empty: ones
};

/// Group relative policy optimisation (Shao et al. 2024, https://arxiv.org/abs/2402.03300; TRL 1.16,
/// grpo_trainer.py). With lp = ln p and H the entropy at the temperature, A the advantage, m a sequence's
/// number of scored tokens and
///     r = e^{capped(lp - old)}, or with sequence_level of its whole sequence
///     r = e^{capped((sum of lp - old) / max(m, 1))}   (GSPO, Zheng et al. 2025,
///                                                      https://arxiv.org/abs/2507.18071)
/// a token's policy term x is
/// - cispo: -min(r, epsilon_high) A lp, the minimum held constant   (MiniMax 2025,
///   https://arxiv.org/abs/2506.13585)
/// - sapo: -(4 / t) sigma(t (r - 1)) A, t the sapo_temperature   (Gao et al. 2025,
///   https://arxiv.org/abs/2511.20347)
/// - vespo: -phi A lp, with ln phi = lambda + k ln w - lambda w held constant,
///   ln w = clip(sum over the sequence of clip(lp - old, -20, 20) + clip(ln u, ln 1e-8, 20), ln 1e-8, 20)
///   (https://arxiv.org/abs/2602.10693)
/// - the others: clipped_loss(r, A)
/// It becomes 0 in sequences with (sum of sampling - lp) / max(m, 1) > off_policy_mask_threshold, where A < 0
/// (DeepSeek 2025, https://arxiv.org/abs/2512.02556), and where H is below the (1 - top_entropy_quantile)-
/// quantile of all tokens' entropies (Wang et al. 2025, https://arxiv.org/abs/2506.01939); the quantile q of
/// n numbers is the entry q (n - 1) of their ascending list, counted from 0, interpolated between neighbours.
/// Except in vespo it is multiplied by u, the importance_sampling_ratio. With
///     y = x + beta kl_estimate(ref, lp), the estimate times r with use_bias_correction_kl
/// the loss is
/// - grpo, sapo: mean over sequences of (sum of y) / max(m, 1)
/// - bnpo: (sum of y) / max(number of scored tokens, 1)
/// - dr_grpo: (sum of y) / (sequences max_completion_length)   (Liu et al. 2025,
///   https://arxiv.org/abs/2503.20783)
/// - dapo, cispo, vespo: (sum of y) / num_items_in_batch   (Yu et al. 2025, https://arxiv.org/abs/2503.14476)
/// - luspo: (sum of y) / sequences   (https://arxiv.org/abs/2602.05261)
/// less entropy_coef times the mean of H over the tokens that top_entropy_quantile keeps.
/// Throws std::invalid_argument for lengths that do not fit, options out of range, and a
/// max_completion_length or num_items_in_batch that is needed and not positive.
TokenObjective grpo(const GrpoOptions& options, const GrpoInputs& inputs);

/// Under TRL's names.
struct RlooOptions {
  Number epsilon_low = 0.2;
  Number epsilon_high = 0.2;
  Number temperature = 1.0;
};

/// REINFORCE leave-one-out (Ahmadian et al. 2024, https://arxiv.org/abs/2402.14740; TRL 1.16,
/// rloo_trainer.py): with r = e^{capped(sum of lp - old)} of a whole sequence and A its advantage, the mean
/// over sequences of clipped_loss(r, A). `advantages` and `old_sums` have an entry for every sequence;
/// without old_sums they are the policy's own, held constant. Throws std::invalid_argument for lengths that
/// do not fit and an epsilon below 0.
TokenObjective rloo(const RlooOptions& options, const TokenLayout& layout,
                    const std::vector<Number>& advantages, const std::vector<Number>& old_sums);

}  // namespace streambp::STREAMBP_REFERENCE
