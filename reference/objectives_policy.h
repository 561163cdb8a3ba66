// Losses of reinforcement learning: tokens come with advantages, and with what older models thought of them.
#pragma once

#include <optional>
#include <vector>

#include "reference/objective_terms.h"

namespace streambp::reference {

enum class GrpoLoss { kGrpo, kBnpo, kDrGrpo, kDapo };

/// Under TRL's names.
struct GrpoOptions {
  GrpoLoss loss_type = GrpoLoss::kGrpo;
  bool sequence_level = false;  // importance_sampling_level "sequence"
  double epsilon_low = 0.2;
  double epsilon_high = 0.2;
  std::optional<double> delta = std::nullopt;
  double beta = 0.0;
  double temperature = 1.0;
  double max_completion_length = 0.0;  // dr_grpo
  double num_items_in_batch = 0.0;     // dapo
};

/// Per-token vectors have one entry for every scored token; see `spread` for advantages of whole sequences.
struct GrpoInputs {
  TokenLayout layout;
  std::vector<double> advantages;
  std::vector<double> old_log_probabilities = {};        // empty: the policy's own, held constant
  std::vector<double> reference_log_probabilities = {};  // needed if beta > 0
};

/// Group relative policy optimisation (Shao et al. 2024, https://arxiv.org/abs/2402.03300; TRL,
/// grpo_trainer.py). With lp = ln p at the temperature, A the advantage, m a sequence's number of scored
/// tokens and
///     r = e^{capped(lp - old)}, or with sequence_level of its whole sequence
///     r = e^{capped((sum of lp - old) / max(m, 1))}   (GSPO, Zheng et al. 2025,
///                                                      https://arxiv.org/abs/2507.18071)
///     x = -min(min(r, delta) A, clip(r, 1 - epsilon_low, 1 + epsilon_high) A) + beta k3(ref, lp)
/// (no bound delta where none is given) the loss is
/// - grpo: mean over sequences of (sum of x) / max(m, 1)
/// - bnpo: (sum of x) / max(number of scored tokens, 1)
/// - dr_grpo: (sum of x) / (sequences max_completion_length)   (Liu et al. 2025,
///   https://arxiv.org/abs/2503.20783)
/// - dapo: (sum of x) / num_items_in_batch   (Yu et al. 2025, https://arxiv.org/abs/2503.14476)
/// Throws std::invalid_argument for lengths that do not fit, an epsilon, delta or beta below 0, and a
/// max_completion_length or num_items_in_batch that is needed and not positive.
TokenObjective grpo(const GrpoOptions& options, const GrpoInputs& inputs);

/// Under TRL's names.
struct PpoOptions {
  double cliprange = 0.2;
  double cliprange_value = 0.2;
  double vf_coef = 0.1;
  double entropy_coef = 0.0;
  double kl_coef = 0.0;
  double temperature = 1.0;
};

/// One entry for every scored token. The masks are 0 or 1; what a mask leaves out is not looked at.
struct PpoInputs {
  std::vector<double> policy_mask;  // the tokens of the response
  std::vector<double> old_log_probabilities;
  std::vector<double> advantages;
  std::vector<double> reference_log_probabilities = {};  // needed if kl_coef > 0
  std::vector<double> value_mask;                        // where the value counts
  std::vector<double> old_values;
  std::vector<double> returns;
};

/// Proximal policy optimisation (Schulman et al. 2017, https://arxiv.org/abs/1707.06347; TRL,
/// ppo_trainer.py), the policy's part. With lp = ln p and H the entropy at the temperature,
/// r = e^{capped(lp - old)} and means over the policy mask (0 where it is empty):
///     mean of max(-A r, -A clip(r, 1 - cliprange, 1 + cliprange))
///     - entropy_coef mean of H + kl_coef mean of k3(ref, lp)
/// Throws std::invalid_argument for lengths that do not fit, a mask that is not 0 or 1, and a range or
/// kl_coef below 0.
TokenObjective ppo_policy(const PpoOptions& options, const PpoInputs& inputs);

/// The critic's part, of the values v, with c = cliprange_value and the mean over the value mask (0 where it
/// is empty):
///     vf_coef / 2 mean of max((v - return)^2, (clip(v, old - c, old + c) - return)^2)
/// Where the critic is a network of its own this is its whole loss. Throws as ppo_policy.
TokenObjective ppo_value(const PpoOptions& options, const PpoInputs& inputs);

/// The sum of both parts, for a value head on the policy's own hidden states.
TokenObjective ppo(const PpoOptions& options, const PpoInputs& inputs);

}  // namespace streambp::reference
