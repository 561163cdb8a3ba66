#include "reference/objectives/objectives_grpo.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "reference/ops/ops.h"
#include "reference/require.h"

namespace streambp::STREAMBP_REFERENCE {
namespace {

using Reals = std::vector<Number>;

/// The entries of x [n, 1], held constant.
Reals numbers(const Var& x) {
  Reals result;
  for (const Scalar& entry : x.value().reshaped()) result.push_back(real_part(entry));
  return result;
}

/// Every token's share in the loss, by which its y is multiplied.
Reals token_weights(const GrpoOptions& options, const TokenLayout& layout) {
  const auto tokens = static_cast<Number>(layout.tokens());
  const Number sequences = layout.sequences;
  const auto equal_shares = [&layout](Number divisor) { return Reals(layout.tokens(), 1.0 / divisor); };
  switch (options.loss_type) {
    case GrpoLoss::kGrpo:
    case GrpoLoss::kSapo: {
      Reals weights = spread(layout, token_counts(layout));
      for (Number& weight : weights) weight = 1.0 / (sequences * weight);
      return weights;
    }
    case GrpoLoss::kBnpo:
      return equal_shares(std::max(tokens, Number{1}));
    case GrpoLoss::kDrGrpo:
      require(options.max_completion_length > 0.0, "grpo", "expected a positive max_completion_length");
      return equal_shares(sequences * options.max_completion_length);
    case GrpoLoss::kDapo:
    case GrpoLoss::kCispo:
    case GrpoLoss::kVespo:
      require(options.num_items_in_batch > 0.0, "grpo", "expected a positive num_items_in_batch");
      return equal_shares(options.num_items_in_batch);
    case GrpoLoss::kLuspo:
      return equal_shares(sequences);
  }
  throw std::invalid_argument("grpo: no such loss type");
}

void require_fitting(const GrpoOptions& options, const GrpoInputs& inputs) {
  const std::size_t tokens = inputs.layout.tokens();
  require_valid("grpo", inputs.layout);
  require_range("grpo", "epsilon_low", options.epsilon_low, 0.0, kInfinity);
  require_range("grpo", "epsilon_high", options.epsilon_high, 0.0, kInfinity);
  require_range("grpo", "delta", options.delta.value_or(0.0), 0.0, kInfinity);
  require_range("grpo", "clip_ratio_c", options.clip_ratio_c.value_or(1.0), 1.0, kInfinity);
  require_range("grpo", "beta", options.beta, 0.0, kInfinity);
  require_range("grpo", "top_entropy_quantile", options.top_entropy_quantile, 0.0, 1.0);
  require_range("grpo", "entropy_coef", options.entropy_coef, -kInfinity, kInfinity);
  require(options.sapo_temperature_pos > 0.0 && options.sapo_temperature_neg > 0.0, "grpo",
          "expected positive sapo_temperatures");
  require_size("grpo", "advantages", inputs.advantages, tokens);
  const auto require_optional = [tokens](const std::string& name, const Reals& x, bool is_needed) {
    if (is_needed || !x.empty()) require_size("grpo", name, x, tokens);
  };
  require_optional("old log-probabilities", inputs.old_log_probabilities, false);
  require_optional("reference log-probabilities", inputs.reference_log_probabilities, options.beta > 0.0);
  require_optional("sampling log-probabilities", inputs.sampling_log_probabilities, false);
  require_optional("importance sampling ratios", inputs.importance_sampling_ratio, false);
}

/// vespo's phi of every token's sequence, from the tokens' lp - old.
Reals gamma_weights(const GrpoOptions& options, const GrpoInputs& inputs, Reals log_ratios) {
  const Number least = std::log(Number{1e-8});
  for (std::size_t t = 0; t < log_ratios.size(); ++t) {
    log_ratios[t] = std::clamp<Number>(log_ratios[t], -20.0, 20.0);
    if (!inputs.importance_sampling_ratio.empty()) {
      log_ratios[t] += std::clamp<Number>(std::log(inputs.importance_sampling_ratio[t]), least, 20.0);
    }
  }
  Reals phi = spread(inputs.layout, sum_by_sequence(inputs.layout, log_ratios));
  for (std::size_t t = 0; t < phi.size(); ++t) {
    const bool positive = inputs.advantages[t] >= 0.0;
    const Number k = positive ? options.vespo_k_pos : options.vespo_k_neg;
    const Number lambda = positive ? options.vespo_lambda_pos : options.vespo_lambda_neg;
    const Number log_w = std::clamp<Number>(phi[t], least, 20.0);
    phi[t] = std::exp(lambda + k * log_w - lambda * std::exp(log_w));
    if (!std::isfinite(phi[t])) phi[t] = 0.0;
  }
  return phi;
}

/// The policy terms x, before anything is left out.
Var policy_terms(Tape& tape, const GrpoOptions& options, const GrpoInputs& inputs, const Var& lp,
                 const Var& log_ratio, const Var& ratio) {
  const Reals& advantages = inputs.advantages;
  switch (options.loss_type) {
    case GrpoLoss::kCispo: {
      Reals factors = numbers(ratio);
      for (std::size_t t = 0; t < factors.size(); ++t) {
        factors[t] = -std::min(factors[t], options.epsilon_high) * advantages[t];
      }
      return mul(lp, constant(tape, factors));
    }
    case GrpoLoss::kSapo: {
      Reals steepness, heights;
      for (Number a : advantages) {
        steepness.push_back(a > 0.0 ? options.sapo_temperature_pos : options.sapo_temperature_neg);
        heights.push_back(-4.0 / steepness.back() * a);
      }
      const Var gate = log_sigmoid(mul(offset(ratio, -1.0), constant(tape, steepness)));
      return mul(exp(gate), constant(tape, heights));
    }
    case GrpoLoss::kVespo: {
      Reals factors = gamma_weights(options, inputs, numbers(log_ratio));
      for (std::size_t t = 0; t < factors.size(); ++t) factors[t] *= -advantages[t];
      return mul(lp, constant(tape, factors));
    }
    default:
      return clipped_loss(tape, ratio, advantages,
                          {options.epsilon_low, options.epsilon_high, options.delta, options.clip_ratio_c});
  }
}

/// 0 for the tokens of negative advantage in sequences that drifted too far, else 1.
Reals near_policy(Number threshold, const GrpoInputs& inputs, const Reals& lp) {
  const Reals& sampling = inputs.sampling_log_probabilities.empty() ? inputs.old_log_probabilities
                                                                    : inputs.sampling_log_probabilities;
  Reals drift(lp.size(), 0.0);
  if (!sampling.empty()) {
    for (std::size_t t = 0; t < lp.size(); ++t) {
      if (!std::isnan(static_cast<double>(sampling[t]))) drift[t] = sampling[t] - lp[t];
    }
  }
  const Reals counts = token_counts(inputs.layout);
  Reals means = sum_by_sequence(inputs.layout, drift);
  for (std::size_t s = 0; s < means.size(); ++s) means[s] /= std::max(counts[s], Number{1});
  Reals kept = spread(inputs.layout, means);
  for (std::size_t t = 0; t < kept.size(); ++t) {
    kept[t] = inputs.advantages[t] >= 0.0 || kept[t] <= threshold ? 1.0 : 0.0;
  }
  return kept;
}

/// 1 for the entropies that are at least the (1 - share)-quantile of all, else 0. Where one is
/// NaN, which no order knows, all are NaN.
Reals highest(Number share, const Reals& entropies) {
  if (entropies.empty()) return {};
  for (Number entropy : entropies) {
    if (std::isnan(entropy)) return Reals(entropies.size(), entropy);
  }
  Reals ascending = entropies;
  std::sort(ascending.begin(), ascending.end());
  Number entry = (1.0 - share) * static_cast<Number>(ascending.size() - 1);
  // (1 - 0.7) 10 is the entry 3, whatever the last bit of 1 - 0.7.
  if (std::abs(entry - std::round(entry)) < 1e-9) entry = std::round(entry);
  const auto below = static_cast<std::size_t>(std::floor(entry));
  const Number upper = ascending[std::min(below + 1, ascending.size() - 1)];
  const Number threshold = ascending[below] + (entry - std::floor(entry)) * (upper - ascending[below]);
  Reals kept;
  for (Number entropy : entropies) kept.push_back(entropy >= threshold ? 1.0 : 0.0);
  return kept;
}

void multiply(Reals& x, const Reals& y) {
  for (std::size_t t = 0; t < x.size(); ++t) x[t] *= y[t];
}

}  // namespace

TokenObjective grpo(const GrpoOptions& options, const GrpoInputs& inputs) {
  require_fitting(options, inputs);
  TokenObjective objective;
  objective.temperature = options.temperature;
  objective.entropies = options.entropy_coef != 0.0 || options.top_entropy_quantile < 1.0;
  objective.loss = [options, inputs, weights = token_weights(options, inputs.layout)](
                       Tape& tape, const TokenValues& heads) {
    const Var& lp = heads.log_probabilities;
    require_shape("grpo", "the log-probabilities", lp.value(), static_cast<Index>(weights.size()), 1);
    const bool on_policy = inputs.old_log_probabilities.empty();
    const Var old = on_policy ? detached(tape, lp) : constant(tape, inputs.old_log_probabilities);
    const Var log_ratio = sub(lp, old);
    const Var level = options.sequence_level ? gather_rows(sequence_means(tape, log_ratio, inputs.layout),
                                                           inputs.layout.sequence_of_token)
                                             : log_ratio;
    const Var ratio = exp(capped(level));

    Reals shares = weights;
    Reals kept(weights.size(), 1.0);
    if (options.top_entropy_quantile < 1.0) {
      kept = highest(options.top_entropy_quantile, numbers(heads.entropies));
    }
    multiply(shares, kept);
    if (options.off_policy_mask_threshold) {
      multiply(shares, near_policy(*options.off_policy_mask_threshold, inputs, numbers(lp)));
    }
    if (!inputs.importance_sampling_ratio.empty() && options.loss_type != GrpoLoss::kVespo) {
      multiply(shares, inputs.importance_sampling_ratio);
    }
    Var loss = weighted_sum(tape, policy_terms(tape, options, inputs, lp, log_ratio, ratio), shares);
    if (options.beta > 0.0) {
      Var kl = kl_estimate(options.kl_estimator, constant(tape, inputs.reference_log_probabilities), lp);
      if (options.use_bias_correction_kl) kl = mul(kl, ratio);
      loss = add(loss, scale(weighted_sum(tape, kl, weights), options.beta));
    }
    if (options.entropy_coef != 0.0) {
      Number count = 0.0;
      for (Number one : kept) count += one;
      const Number share = options.entropy_coef / std::max(count, Number{1});
      loss = sub(loss, scale(weighted_sum(tape, heads.entropies, kept), share));
    }
    return loss;
  };
  return objective;
}

TokenObjective rloo(const RlooOptions& options, const TokenLayout& layout, const Reals& advantages,
                    const Reals& old_sums) {
  const auto sequences = static_cast<std::size_t>(layout.sequences);
  require_valid("rloo", layout);
  require_range("rloo", "epsilon_low", options.epsilon_low, 0.0, kInfinity);
  require_range("rloo", "epsilon_high", options.epsilon_high, 0.0, kInfinity);
  require_size("rloo", "advantages", advantages, sequences);
  if (!old_sums.empty()) require_size("rloo", "old sums", old_sums, sequences);
  const ClipRange range = {options.epsilon_low, options.epsilon_high, std::nullopt, std::nullopt};

  TokenObjective objective;
  objective.temperature = options.temperature;
  objective.loss = [layout, advantages, old_sums, range](Tape& tape, const TokenValues& heads) {
    const Var sums = sequence_sums(heads.log_probabilities, layout);
    const Var old = old_sums.empty() ? detached(tape, sums) : constant(tape, old_sums);
    return mean(clipped_loss(tape, exp(capped(sub(sums, old))), advantages, range));
  };
  return objective;
}

}  // namespace streambp::STREAMBP_REFERENCE
