#include "reference/objectives_policy.h"

#include <algorithm>
#include <string>

#include "reference/ops.h"
#include "reference/require.h"

namespace streambp::reference {
namespace {

/// Every token's share in the loss, by which its x is multiplied.
std::vector<double> token_weights(const GrpoOptions& options, const TokenLayout& layout) {
  const auto tokens = static_cast<double>(layout.tokens());
  const double sequences = layout.sequences;
  const auto equal_shares = [&layout](double divisor) {
    return std::vector<double>(layout.tokens(), 1.0 / divisor);
  };
  switch (options.loss_type) {
    case GrpoLoss::kGrpo: {
      std::vector<double> weights = spread(layout, token_counts(layout));
      for (double& weight : weights) weight = 1.0 / (sequences * weight);
      return weights;
    }
    case GrpoLoss::kBnpo:
      return equal_shares(std::max(tokens, 1.0));
    case GrpoLoss::kDrGrpo:
      require(options.max_completion_length > 0.0, "grpo", "expected a positive max_completion_length");
      return equal_shares(sequences * options.max_completion_length);
    case GrpoLoss::kDapo:
      require(options.num_items_in_batch > 0.0, "grpo", "expected a positive num_items_in_batch");
      return equal_shares(options.num_items_in_batch);
  }
  throw std::invalid_argument("grpo: no such loss type");
}

/// -min(bounded A, clip(r, low, high) A), what both objectives want of a ratio r; `bounded` is r or less.
Var clipped_surrogate(const Var& bounded, const Var& ratio, const Var& advantages, double low, double high) {
  return scale(minimum(mul(bounded, advantages), mul(clip(ratio, low, high), advantages)), -1.0);
}

/// The tokens that a mask keeps.
std::vector<int> kept(const std::string& name, const std::vector<double>& mask) {
  std::vector<int> tokens;
  for (std::size_t t = 0; t < mask.size(); ++t) {
    require(mask[t] == 0.0 || mask[t] == 1.0, "ppo",
            "expected a " + name + " of 0 and 1, got " + std::to_string(mask[t]));
    if (mask[t] == 1.0) tokens.push_back(static_cast<int>(t));
  }
  return tokens;
}

std::vector<double> at(const std::vector<double>& x, const std::vector<int>& tokens) {
  std::vector<double> result;
  for (int t : tokens) result.push_back(x[static_cast<std::size_t>(t)]);
  return result;
}

std::vector<double> shifted(std::vector<double> x, double c) {
  for (double& entry : x) entry += c;
  return x;
}

}  // namespace

TokenObjective grpo(const GrpoOptions& options, const GrpoInputs& inputs) {
  const TokenLayout& layout = inputs.layout;
  const std::size_t tokens = layout.tokens();
  require_valid("grpo", layout);
  require_range("grpo", "epsilon_low", options.epsilon_low, 0.0, kInfinity);
  require_range("grpo", "epsilon_high", options.epsilon_high, 0.0, kInfinity);
  require_range("grpo", "delta", options.delta.value_or(0.0), 0.0, kInfinity);
  require_range("grpo", "beta", options.beta, 0.0, kInfinity);
  require_size("grpo", "advantages", inputs.advantages, tokens);
  if (!inputs.old_log_probabilities.empty()) {
    require_size("grpo", "old log-probabilities", inputs.old_log_probabilities, tokens);
  }
  if (options.beta > 0.0) {
    require_size("grpo", "reference log-probabilities", inputs.reference_log_probabilities, tokens);
  }

  TokenObjective objective;
  objective.temperature = options.temperature;
  objective.loss = [options, inputs, weights = token_weights(options, layout)](Tape& tape,
                                                                               const TokenValues& heads) {
    const Var& lp = heads.log_probabilities;
    const bool on_policy = inputs.old_log_probabilities.empty();
    const Var old = on_policy ? detached(tape, lp) : constant(tape, inputs.old_log_probabilities);
    Var log_ratio = sub(lp, old);
    if (options.sequence_level) {
      log_ratio =
          gather_rows(sequence_means(tape, log_ratio, inputs.layout), inputs.layout.sequence_of_token);
    }
    const Var ratio = exp(capped(log_ratio));
    const Var bounded = options.delta ? clip(ratio, -kInfinity, *options.delta) : ratio;
    Var x = clipped_surrogate(bounded, ratio, constant(tape, inputs.advantages), 1.0 - options.epsilon_low,
                              1.0 + options.epsilon_high);
    if (options.beta > 0.0) {
      x = add(x, scale(k3(constant(tape, inputs.reference_log_probabilities), lp), options.beta));
    }
    return weighted_sum(tape, x, weights);
  };
  return objective;
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
  const std::vector<int> chosen = kept("policy mask", inputs.policy_mask);

  TokenObjective objective;
  objective.temperature = options.temperature;
  objective.entropies = options.entropy_coef != 0.0;
  objective.loss = [=](Tape& tape, const TokenValues& heads) {
    require_shape("ppo", "the log-probabilities", heads.log_probabilities.value(), static_cast<Index>(tokens),
                  1);
    const auto given = [&](const std::vector<double>& x) { return constant(tape, at(x, chosen)); };
    const Var lp = gather_rows(heads.log_probabilities, chosen);
    const Var ratio = exp(capped(sub(lp, given(inputs.old_log_probabilities))));
    Var loss = mean(clipped_surrogate(ratio, ratio, given(inputs.advantages), 1.0 - options.cliprange,
                                      1.0 + options.cliprange));
    if (options.entropy_coef != 0.0) {
      loss = add(loss, scale(mean(gather_rows(heads.entropies, chosen)), -options.entropy_coef));
    }
    if (has_kl) {
      loss = add(loss, scale(mean(k3(given(inputs.reference_log_probabilities), lp)), options.kl_coef));
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
    const std::vector<double> old = at(inputs.old_values, chosen);
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

}  // namespace streambp::reference
