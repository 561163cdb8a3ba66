#include "reference/objectives/objectives_policy.h"

#include <stdexcept>
#include <string>

#include "reference/ops/ops.h"
#include "reference/require.h"

namespace streambp::STREAMBP_REFERENCE {
namespace {

/// The tokens that a mask keeps.
std::vector<int> kept(const std::string& name, const std::vector<Number>& mask) {
  std::vector<int> tokens;
  for (std::size_t t = 0; t < mask.size(); ++t) {
    require(mask[t] == 0.0 || mask[t] == 1.0, "ppo",
            "expected a " + name + " of 0 and 1, got " + std::to_string(mask[t]));
    if (mask[t] == 1.0) tokens.push_back(static_cast<int>(t));
  }
  return tokens;
}

std::vector<Number> at(const std::vector<Number>& x, const std::vector<int>& tokens) {
  std::vector<Number> result;
  for (int t : tokens) result.push_back(x[static_cast<std::size_t>(t)]);
  return result;
}

std::vector<Number> shifted(std::vector<Number> x, Number c) {
  for (Number& entry : x) entry += c;
  return x;
}

}  // namespace

Var kl_estimate(KlEstimator estimator, const Var& reference, const Var& policy) {
  const Var d = sub(policy, reference);
  switch (estimator) {
    case KlEstimator::kK1:
      return d;
    case KlEstimator::kK2:
      return scale(mul(d, d), 0.5);
    case KlEstimator::kK3:
      return k3(reference, policy);
  }
  throw std::invalid_argument("kl_estimate: no such estimator");
}

Var clipped_loss(Tape& tape, const Var& ratio, const std::vector<Number>& advantages,
                 const ClipRange& range) {
  const Var given = constant(tape, advantages);
  const Var bounded = range.delta ? clip(ratio, -kInfinity, *range.delta) : ratio;
  Var s = minimum(mul(bounded, given), mul(clip(ratio, 1.0 - range.low, 1.0 + range.high), given));
  if (range.clip_ratio_c) {
    std::vector<Number> bounds;
    for (Number a : advantages) bounds.push_back(a < 0.0 ? *range.clip_ratio_c * a : -kInfinity);
    s = maximum(s, constant(tape, bounds));
  }
  return scale(s, -1.0);
}

TokenObjective ppo_policy(const PpoOptions& options, const PpoInputs& inputs) {
  const std::size_t tokens = inputs.policy_mask.size();
  const bool has_kl = options.kl_coef > 0.0;
  require_range("ppo", "cliprange", options.cliprange, 0.0, kInfinity);
  require_range("ppo", "kl_coef", options.kl_coef, 0.0, kInfinity);
  require_range("ppo", "entropy_coef", options.entropy_coef, -kInfinity, kInfinity);
  require_size("ppo", "old log-probabilities", inputs.old_log_probabilities, tokens);
  require_size("ppo", "advantages", inputs.advantages, tokens);
  if (has_kl) require_size("ppo", "reference log-probabilities", inputs.reference_log_probabilities, tokens);
  if (options.clip_ratio_c) require_range("ppo", "clip_ratio_c", *options.clip_ratio_c, 1.0, kInfinity);
  const std::vector<int> chosen = kept("policy mask", inputs.policy_mask);
  const ClipRange range = {options.cliprange, options.cliprange, std::nullopt, options.clip_ratio_c};

  TokenObjective objective;
  objective.temperature = options.temperature;
  objective.entropies = options.entropy_coef != 0.0;
  objective.loss = [=](Tape& tape, const TokenValues& heads) {
    require_shape("ppo", "the log-probabilities", heads.log_probabilities.value(), static_cast<Index>(tokens),
                  1);
    const auto given = [&](const std::vector<Number>& x) { return constant(tape, at(x, chosen)); };
    const Var lp = gather_rows(heads.log_probabilities, chosen);
    const Var ratio = exp(capped(sub(lp, given(inputs.old_log_probabilities))));
    Var loss = mean(clipped_loss(tape, ratio, at(inputs.advantages, chosen), range));
    if (options.entropy_coef != 0.0) {
      loss = add(loss, scale(mean(gather_rows(heads.entropies, chosen)), -options.entropy_coef));
    }
    if (has_kl) {
      const Var reference = given(inputs.reference_log_probabilities);
      loss = add(loss, scale(mean(kl_estimate(options.kl_estimator, reference, lp)), options.kl_coef));
    }
    return loss;
  };
  return objective;
}

TokenObjective ppo_value(const PpoOptions& options, const PpoInputs& inputs) {
  const std::size_t tokens = inputs.value_mask.size();
  require_range("ppo", "cliprange_value", options.cliprange_value, 0.0, kInfinity);
  require_range("ppo", "vf_coef", options.vf_coef, -kInfinity, kInfinity);
  require_size("ppo", "old values", inputs.old_values, tokens);
  require_size("ppo", "returns", inputs.returns, tokens);
  const std::vector<int> chosen = kept("value mask", inputs.value_mask);

  TokenObjective objective;
  objective.log_probabilities = false;
  objective.values = true;
  objective.loss = [=](Tape& tape, const TokenValues& heads) {
    require_shape("ppo", "the values", heads.values.value(), static_cast<Index>(tokens), 1);
    const std::vector<Number> old = at(inputs.old_values, chosen);
    const Var returns = constant(tape, at(inputs.returns, chosen));
    const Var low = constant(tape, shifted(old, -options.cliprange_value));
    const Var high = constant(tape, shifted(old, options.cliprange_value));
    const Var v = gather_rows(heads.values, chosen);
    const Var free_miss = sub(v, returns);
    const Var clipped_miss = sub(minimum(maximum(v, low), high), returns);
    const Var squares = maximum(mul(free_miss, free_miss), mul(clipped_miss, clipped_miss));
    return scale(mean(squares), 0.5 * options.vf_coef);
  };
  return objective;
}

TokenObjective ppo(const PpoOptions& options, const PpoInputs& inputs) {
  require_size("ppo", "entries of the value mask", inputs.value_mask, inputs.policy_mask.size());
  const TokenObjective policy = ppo_policy(options, inputs);
  const TokenObjective value = ppo_value(options, inputs);
  TokenObjective both = policy;
  both.values = true;
  both.loss = [policy, value](Tape& tape, const TokenValues& heads) {
    return add(policy.loss(tape, heads), value.loss(tape, heads));
  };
  return both;
}

}  // namespace streambp::STREAMBP_REFERENCE
