// Losses of reinforcement learning: tokens come with advantages, and with what older models thought of them.
// Here what such losses share, and PPO.
#pragma once

#include <optional>
#include <vector>

#include "reference/objectives/objective_terms.h"

namespace streambp::STREAMBP_REFERENCE {

/// Estimates of KL(policy || ref) by one token's ln p under either (Schulman 2020,
/// http://joschu.net/blog/kl-approx.html), with d = capped(ref - lp):
///     k1 = lp - ref,   k2 = (lp - ref)^2 / 2,   k3 = e^d - d - 1
enum class KlEstimator { kK1, kK2, kK3 };

Var kl_estimate(KlEstimator estimator, const Var& reference, const Var& policy);

/// How far a ratio counts. Numbers that are not given bound nothing.
struct ClipRange {
  Number low = 0.2;
  Number high = 0.2;
  std::optional<Number> delta = std::nullopt;
  std::optional<Number> clip_ratio_c = std::nullopt;
};

/// -s for every token of ratio r and advantage A, with
///     s = min(min(r, delta) A, clip(r, 1 - low, 1 + high) A)   (Schulman et al. 2017,
///                                                               https://arxiv.org/abs/1707.06347)
/// and where A < 0 the larger one of s and clip_ratio_c A (dual clip, Ye et al. 2019,
/// https://arxiv.org/abs/1912.09729).
Var clipped_loss(Tape& tape, const Var& ratio, const std::vector<Number>& advantages, const ClipRange& range);

/// Under TRL's names; clip_ratio_c and the KL's estimator are verl's.
struct PpoOptions {
  Number cliprange = 0.2;
  Number cliprange_value = 0.2;
  Number vf_coef = 0.1;
  Number entropy_coef = 0.0;
  Number kl_coef = 0.0;
  Number temperature = 1.0;
  std::optional<Number> clip_ratio_c = std::nullopt;
  KlEstimator kl_estimator = KlEstimator::kK3;
};

/// One entry for every scored token. The masks are 0 or 1; what a mask leaves out is not looked at.
struct PpoInputs {
  std::vector<Number> policy_mask;  // the tokens of the response
  std::vector<Number> old_log_probabilities;
  std::vector<Number> advantages;
  std::vector<Number> reference_log_probabilities = {};  // needed if kl_coef > 0
  std::vector<Number> value_mask;                        // where the value counts
  std::vector<Number> old_values;
  std::vector<Number> returns;
};

/// Proximal policy optimisation (Schulman et al. 2017, https://arxiv.org/abs/1707.06347; TRL,
/// ppo_trainer.py), the policy's part. With lp = ln p and H the entropy at the temperature,
/// r = e^{capped(lp - old)} and means over the policy mask (0 where it is empty):
///     mean of clipped_loss(r, A), with low and high the cliprange
///     - entropy_coef mean of H + kl_coef mean of kl_estimate(ref, lp)
/// Throws std::invalid_argument for lengths that do not fit, a mask that is not 0 or 1, a range or kl_coef
/// below 0, and a clip_ratio_c below 1.
TokenObjective ppo_policy(const PpoOptions& options, const PpoInputs& inputs);

/// The critic's part, of the values v, with c = cliprange_value and the mean over the value mask (0 where it
/// is empty):
///     vf_coef / 2 mean of max((v - return)^2, (clip(v, old - c, old + c) - return)^2)
/// Where the critic is a network of its own this is its whole loss. Throws as ppo_policy.
TokenObjective ppo_value(const PpoOptions& options, const PpoInputs& inputs);

/// The sum of both parts, for a value head on the policy's own hidden states.
TokenObjective ppo(const PpoOptions& options, const PpoInputs& inputs);

}  // namespace streambp::STREAMBP_REFERENCE
