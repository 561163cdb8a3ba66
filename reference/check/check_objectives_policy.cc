// Checks of the objectives of reinforcement learning (check_objectives.h).
#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "reference/check/check_objectives.h"
#include "reference/ops/ops.h"

namespace streambp::STREAMBP_REFERENCE {
namespace {

/// -min(min(r, delta) A, clip(r) A), case by case, and no more than -dual A where A < 0.
Real surrogate(Real r, Real advantage, Real low, Real high, Real delta, Real dual) {
  if (advantage >= 0) return -std::min({r, delta, 1 + high}) * advantage;
  return -std::min(std::max(std::min(r, delta), 1 - low), dual) * advantage;
}

Real kl_value(KlEstimator estimator, Real reference, Real policy) {
  const Real d = reference - policy;
  if (estimator == KlEstimator::kK1) return -d;
  if (estimator == KlEstimator::kK2) return d * d / 2;
  return std::exp(d) - d - 1;
}

/// The loss of the batch kSparse, whose first sequence is the only one of more than one token, at the
/// log-probabilities x[0] and the entropies x[1].
struct GrpoValue {
  const GrpoOptions& options;
  const GrpoInputs& inputs;
  const Matrices& x;

  Real log_ratio(std::size_t t) const { return entry(x, 0, t) - Real{inputs.old_log_probabilities[t]}; }

  Real policy_term(std::size_t t, Real r) const {
    const Real a = inputs.advantages[t];
    const Real infinity = std::numeric_limits<double>::infinity();
    if (options.loss_type == GrpoLoss::kCispo)
      return -std::min<Real>(r, options.epsilon_high) * a * entry(x, 0, t);
    if (options.loss_type == GrpoLoss::kSapo) {
      const Real steepness = a > 0 ? options.sapo_temperature_pos : options.sapo_temperature_neg;
      return -4 / steepness * sigma(steepness * (r - 1)) * a;
    }
    if (options.loss_type == GrpoLoss::kVespo) {
      Real w = 1;
      for (std::size_t i = t < 2 ? 0 : t; i < (t < 2 ? 2 : t + 1); ++i) {
        w *= std::exp(std::max<Real>(log_ratio(i), -20)) * Real{inputs.importance_sampling_ratio[i]};
      }
      w = std::max<Real>(w, 1e-8L);
      const Real k = a >= 0 ? options.vespo_k_pos : options.vespo_k_neg;
      const Real lambda = a >= 0 ? options.vespo_lambda_pos : options.vespo_lambda_neg;
      return -std::exp(lambda - lambda * w) * std::pow(w, k) * a * entry(x, 0, t);
    }
    return surrogate(r, a, options.epsilon_low, options.epsilon_high,
                     options.delta ? Real{*options.delta} : infinity,
                     options.clip_ratio_c ? Real{*options.clip_ratio_c} : infinity);
  }

  /// Whether a token is among the ones of highest entropy, by counting those above it: of five, all that are
  /// not below the entry `rank` of their ascending list.
  bool is_kept(std::size_t t) const {
    if (options.top_entropy_quantile == 1.0) return true;
    int above = 0;
    for (std::size_t i = 0; i < 5; ++i) above += entry(x, 1, i) > entry(x, 1, t) ? 1 : 0;
    return above <= options.top_entropy_quantile * 4;
  }

  bool is_near(std::size_t t) const {
    if (!options.off_policy_mask_threshold || inputs.advantages[t] >= 0) return true;
    const auto drift = [&](std::size_t i) {
      return Real{inputs.sampling_log_probabilities[i]} - entry(x, 0, i);
    };
    return (t < 2 ? (drift(0) + drift(1)) / 2 : drift(t)) <= *options.off_policy_mask_threshold;
  }

  Real divisor(Real count) const {
    switch (options.loss_type) {
      case GrpoLoss::kGrpo:
      case GrpoLoss::kSapo:
        return 6 * count;
      case GrpoLoss::kBnpo:
        return 5;
      case GrpoLoss::kDrGrpo:
        return 6 * options.max_completion_length;
      case GrpoLoss::kLuspo:
        return 6;
      default:
        return options.num_items_in_batch;
    }
  }

  DoubleMatrix loss() const {
    Real total = 0;
    Real entropies = 0;
    Real kept = 0;
    for (std::size_t t = 0; t < 5; ++t) {
      const bool averaged = options.sequence_level && t < 2;
      const Real r = std::exp(averaged ? (log_ratio(0) + log_ratio(1)) / 2 : log_ratio(t));
      Real term = 0;
      if (is_kept(t)) {
        if (is_near(t)) term = policy_term(t, r);
        entropies += entry(x, 1, t);
        kept += 1;
      }
      if (options.loss_type != GrpoLoss::kVespo) term *= inputs.importance_sampling_ratio[t];
      if (options.beta > 0) {
        term += options.beta * (options.use_bias_correction_kl ? r : 1) *
                kl_value(options.kl_estimator, inputs.reference_log_probabilities[t], entry(x, 0, t));
      }
      total += term / divisor(t < 2 ? 2 : 1);
    }
    return scalar(total - options.entropy_coef * entropies / kept);
  }
};

/// Advantages of `sign` but for one, and log-ratios on both sides of every bound, or 24 to one side of them
/// all.
void check_one_grpo(Suite& suite, const std::string& name, GrpoOptions options, double sign,
                    double far_below = 0.0) {
  options.epsilon_low = 0.15;
  options.max_completion_length = 9.0;
  options.num_items_in_batch = 8.0;
  const DoubleMatrix lp = some_log_probabilities(suite, kSparse);
  GrpoInputs inputs;
  inputs.layout = kSparse;
  inputs.advantages = {sign * 0.9, sign * 1.4, sign * 0.5, sign * -0.8, sign * 1.1};
  inputs.old_log_probabilities = plus(plus(numbers(lp), {0.6, -0.1, -0.5, 0.1, -1.1}), Numbers(5, far_below));
  inputs.reference_log_probabilities = numbers(suite.matrix(5, 1, -3.0, -0.3));
  inputs.sampling_log_probabilities = plus(numbers(lp), {0.9, -0.2, 0.7, 0.3, -0.4});
  inputs.importance_sampling_ratio = {0.7, 1.6, 1.0, 2.0, 0.4};
  DoubleMatrix entropies(5, 1);
  entropies << 0.7, 1.9, 1.2, 0.4, 1.5;
  const auto fill = [](const Vars& x) {
    TokenValues heads;
    heads.log_probabilities = x[0];
    heads.entropies = x[1];
    return heads;
  };
  check_objective(suite, "grpo " + name + (sign < 0.0 ? ", most advantages negative" : ""),
                  grpo(options, inputs), {lp, entropies}, fill, [=](const Matrices& x) {
                    return GrpoValue{options, inputs, x}.loss();
                  });
}

void check_grpo(Suite& suite) {
  const std::pair<GrpoLoss, std::string> losses[] = {
      {GrpoLoss::kGrpo, "grpo"}, {GrpoLoss::kBnpo, "bnpo"}, {GrpoLoss::kDrGrpo, "dr_grpo"},
      {GrpoLoss::kDapo, "dapo"}, {GrpoLoss::kSapo, "sapo"}, {GrpoLoss::kLuspo, "luspo"}};
  for (const auto& [loss, name] : losses) {
    for (bool sequence_level : {false, true}) {
      for (double sign : {1.0, -1.0}) {
        GrpoOptions options;
        options.loss_type = loss;
        options.sequence_level = sequence_level;
        options.epsilon_high = 0.28;
        if (sign < 0.0) options.delta = 2.0;
        options.beta = sign < 0.0 ? 0.3 : 0.0;
        check_one_grpo(suite, name + (sequence_level ? " by sequence" : " by token"), options, sign);
      }
    }
  }
  for (double sign : {1.0, -1.0}) {
    GrpoOptions options;
    options.clip_ratio_c = 2.0;
    options.kl_estimator = KlEstimator::kK2;
    options.beta = 0.3;
    check_one_grpo(suite, "with dual clip and k2", options, sign);
    options.kl_estimator = KlEstimator::kK1;
    options.use_bias_correction_kl = true;
    options.off_policy_mask_threshold = 0.5;
    check_one_grpo(suite, "near the policy, with k1 times the ratio", options, sign);
    for (double share : {0.0, 0.25, 0.4, 0.9}) {
      options.top_entropy_quantile = share;
      options.entropy_coef = 0.2;
      check_one_grpo(suite, "of the highest entropies, " + number_text(share), options, sign);
    }
    // What cispo and vespo hold constant has to be so for the differences: every ratio beyond its bound.
    GrpoOptions bounded;
    bounded.epsilon_high = 0.3;
    bounded.loss_type = GrpoLoss::kCispo;
    check_one_grpo(suite, "cispo", bounded, sign);
    bounded.loss_type = GrpoLoss::kVespo;
    bounded.vespo_k_pos = 0.1;
    bounded.vespo_k_neg = 0.2;
    check_one_grpo(suite, "vespo", bounded, sign, 24.0);
  }
}

void check_rloo(Suite& suite) {
  const Numbers advantages = {0.9, 3.0, -1.4, 0.5, 2.0, -0.7};
  const DoubleMatrix lp = some_log_probabilities(suite, kSparse);
  // Ratios of the four sequences that have tokens: within the range, above it with A < 0, above and below it.
  const Numbers old = plus(sums_in_doubles(kSparse, lp), {-0.1, 0.0, -0.6, -0.7, 0.0, 0.5});
  check_objective(suite, "rloo", rloo({0.15, 0.28, 1.0}, kSparse, advantages, old), {lp},
                  log_probabilities_only, [=](const Matrices& x) {
                    const Sums sums(x, kSparse);
                    const Real infinity = std::numeric_limits<double>::infinity();
                    Real total = 0;
                    for (std::size_t s = 0; s < 6; ++s) {
                      const Real r = std::exp(sums.sum[s] - Real{old[s]});
                      total += surrogate(r, advantages[s], Real{0.15}, Real{0.28}, infinity, infinity);
                    }
                    return scalar(total / 6);
                  });
}

void check_ppo(Suite& suite) {
  PpoOptions options;
  options.cliprange = 0.15;
  options.cliprange_value = 0.3;
  options.vf_coef = 0.7;
  options.entropy_coef = 0.05;
  options.kl_coef = 0.2;
  options.clip_ratio_c = 1.5;
  const DoubleMatrix lp = suite.matrix(7, 1, -3.0, -0.3);
  const DoubleMatrix v = suite.matrix(7, 1);
  PpoInputs inputs;
  inputs.policy_mask = {1, 1, 0, 1, 1, 1, 0};
  inputs.value_mask = {1, 1, 1, 0, 1, 1, 1};
  inputs.advantages = {0.9, -1.4, 5.0, 0.5, 1.2, -0.7, 3.0};
  inputs.old_log_probabilities = plus(numbers(lp), {0.5, 0.6, 0.0, -0.05, -0.5, -0.6, 0.0});
  inputs.reference_log_probabilities = numbers(suite.matrix(7, 1, -3.0, -0.3));
  inputs.old_values = plus(numbers(v), {0.1, 0.5, -0.6, 0.0, -0.7, 0.8, -0.2});
  inputs.returns = plus(numbers(v), {0.4, -0.9, 0.8, 0.0, -0.6, 0.9, 0.7});
  const auto fill = [](const Vars& x) {
    TokenValues heads;
    heads.log_probabilities = x[0];
    heads.entropies = x[1];
    heads.values = x[2];
    return heads;
  };
  for (KlEstimator estimator : {KlEstimator::kK1, KlEstimator::kK2, KlEstimator::kK3}) {
    options.kl_estimator = estimator;
    check_objective(
        suite, "ppo", ppo(options, inputs), {lp, suite.matrix(7, 1, 0.5, 2.0), v}, fill,
        [=](const Matrices& x) {
          Real policy = 0;
          Real value = 0;
          for (std::size_t t = 0; t < 7; ++t) {
            if (inputs.policy_mask[t] == 1.0) {
              const Real r = std::exp(entry(x, 0, t) - Real{inputs.old_log_probabilities[t]});
              policy +=
                  surrogate(r, inputs.advantages[t], Real{0.15}, Real{0.15}, r, Real{1.5}) -
                  Real{0.05} * entry(x, 1, t) +
                  Real{0.2} * kl_value(estimator, inputs.reference_log_probabilities[t], entry(x, 0, t));
            }
            if (inputs.value_mask[t] == 1.0) {
              const Real old = inputs.old_values[t];
              const Real clipped = std::min(std::max(entry(x, 2, t), old - Real{0.3}), old + Real{0.3});
              const Real miss = std::abs(entry(x, 2, t) - Real{inputs.returns[t]});
              value += std::pow(std::max(miss, std::abs(clipped - Real{inputs.returns[t]})), Real{2});
            }
          }
          return scalar(policy / 5 + Real{0.7} / 2 * value / 6);
        });
  }
}

}  // namespace

void check_policy_objectives(Suite& suite) {
  check_grpo(suite);
  check_rloo(suite);
  check_ppo(suite);
}

}  // namespace streambp::STREAMBP_REFERENCE
