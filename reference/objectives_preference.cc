#include "reference/objectives_preference.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>

#include "reference/ops.h"
#include "reference/require.h"

namespace streambp::reference {
namespace {

void require_pairs(const std::string& objective, const TokenLayout& layout) {
  require_valid(objective, layout);
  require(layout.sequences > 0 && layout.sequences % 2 == 0, objective,
          "expected an even number of sequences, chosen ones before rejected "
          "ones, got " +
              std::to_string(layout.sequences));
}

void require_beta(const std::string& objective, double beta) {
  require_range(objective, "beta", beta, 0.0, kInfinity);
}

/// x_i - x_{n + i} of x [2n, 1].
Var chosen_minus_rejected(const Var& x) {
  std::vector<int> chosen(static_cast<std::size_t>(x.rows() / 2));
  std::iota(chosen.begin(), chosen.end(), 0);
  std::vector<int> rejected(chosen.size());
  std::iota(rejected.begin(), rejected.end(), static_cast<int>(chosen.size()));
  return sub(gather_rows(x, chosen), gather_rows(x, rejected));
}

/// a ln sigma(z) + b ln sigma(-z)
Var log_sigmoids(const Var& z, double a, double b) {
  return add(scale(log_sigmoid(z), a), scale(log_sigmoid(scale(z, -1.0)), b));
}

}  // namespace

TokenObjective dpo(const DpoOptions& options, const TokenLayout& layout,
                   const std::vector<double>& reference_sums) {
  const double beta = options.beta;
  const double e = options.label_smoothing;
  const bool smooths = options.loss_type == DpoLoss::kSigmoid || options.loss_type == DpoLoss::kRobust;
  require_pairs("dpo", layout);
  require_beta("dpo", beta);
  require_range("dpo", "label_smoothing", e, 0.0, smooths ? 1.0 : 0.0);
  require(options.loss_type != DpoLoss::kRobust || e < 0.5, "dpo",
          "expected label_smoothing below 0.5 with the robust loss, got " + std::to_string(e));
  require(options.loss_type != DpoLoss::kIpo || beta > 0.0, "dpo",
          "expected a positive beta with the ipo loss, got " + std::to_string(beta));
  std::vector<double> reference = reference_sums;
  if (reference.empty()) reference.assign(static_cast<std::size_t>(layout.sequences), 0.0);
  require_size("dpo", "reference sums", reference, static_cast<std::size_t>(layout.sequences));

  TokenObjective objective;
  objective.loss = [=](Tape& tape, const TokenValues& heads) {
    const Var l = sub(sequence_sums(heads.log_probabilities, layout), constant(tape, reference));
    if (options.loss_type == DpoLoss::kIpo) {
      std::vector<double> shares = token_counts(layout);
      for (double& count : shares) count = 1.0 / std::max(count, 1.0);
      const Var difference = chosen_minus_rejected(mul(l, constant(tape, shares)));
      const Var miss = offset(difference, -1.0 / (2.0 * beta));
      return mean(mul(miss, miss));
    }
    const Var z = scale(chosen_minus_rejected(l), beta);
    if (options.loss_type == DpoLoss::kHinge) {
      const Var gap = offset(scale(z, -1.0), 1.0);
      return mean(maximum(gap, tape.leaf(Matrix::Zero(gap.rows(), 1))));
    }
    if (options.loss_type == DpoLoss::kRobust) {
      return mean(log_sigmoids(z, -(1.0 - e) / (1.0 - 2.0 * e), e / (1.0 - 2.0 * e)));
    }
    return mean(log_sigmoids(z, -(1.0 - e), -e));
  };
  return objective;
}

TokenObjective simpo(const SimpoOptions& options, const TokenLayout& layout) {
  const double e = options.label_smoothing;
  require_pairs("simpo", layout);
  require_beta("simpo", options.beta);
  require_range("simpo", "gamma", options.gamma, -kInfinity, kInfinity);
  require_range("simpo", "label_smoothing", e, 0.0, 1.0);
  TokenObjective objective;
  objective.loss = [=](Tape& tape, const TokenValues& heads) {
    const Var averages = sequence_means(tape, heads.log_probabilities, layout);
    const Var z = offset(scale(chosen_minus_rejected(averages), options.beta), -options.gamma);
    return mean(log_sigmoids(z, -(1.0 - e), -e));
  };
  return objective;
}

TokenObjective orpo(double beta, const TokenLayout& layout) {
  require_pairs("orpo", layout);
  require_beta("orpo", beta);
  const std::vector<double> counts = token_counts(layout);
  for (double count : counts) require(count > 0.0, "orpo", "expected scored tokens in every sequence");
  std::vector<double> is_chosen(counts.size(), 0.0);
  std::fill_n(is_chosen.begin(), counts.size() / 2, 1.0);
  const double chosen_tokens = std::accumulate(counts.begin(), counts.begin() + layout.sequences / 2, 0.0);

  TokenObjective objective;
  objective.loss = [=](Tape& tape, const TokenValues& heads) {
    const Var sums = sequence_sums(heads.log_probabilities, layout);
    const Var likelihood = scale(weighted_sum(tape, sums, is_chosen), -1.0 / chosen_tokens);
    const Var averages = sequence_means(tape, heads.log_probabilities, layout);
    const Var a = clip(averages, -kInfinity, -std::ldexp(1.0, -53));
    const Var log_odds_ratio = chosen_minus_rejected(sub(a, log1mexp(a)));
    return add(likelihood, scale(mean(log_sigmoid(log_odds_ratio)), -beta));
  };
  return objective;
}

TokenObjective kto(const KtoOptions& options, const TokenLayout& layout, const std::vector<KtoRole>& roles,
                   const std::vector<double>& reference_sums) {
  require_valid("kto", layout);
  require_beta("kto", options.beta);
  require_range("kto", "desirable_weight", options.desirable_weight, 0.0, kInfinity);
  require_range("kto", "undesirable_weight", options.undesirable_weight, 0.0, kInfinity);
  const auto sequences = static_cast<std::size_t>(layout.sequences);
  require(roles.size() == sequences, "kto",
          "expected " + std::to_string(sequences) + " roles, got " + std::to_string(roles.size()));
  require_size("kto", "reference sums", reference_sums, sequences);

  std::vector<int> judged;
  std::vector<int> unrelated;
  std::vector<double> slopes;   // -beta where desirable, beta where not
  std::vector<double> weights;  // of the judged ones, over their number below
  for (std::size_t s = 0; s < sequences; ++s) {
    if (roles[s] == KtoRole::kUnrelated) {
      unrelated.push_back(static_cast<int>(s));
      continue;
    }
    const bool desirable = roles[s] == KtoRole::kDesirable;
    judged.push_back(static_cast<int>(s));
    slopes.push_back(desirable ? -options.beta : options.beta);
    weights.push_back(desirable ? options.desirable_weight : options.undesirable_weight);
  }
  require(!judged.empty(), "kto", "expected a sequence that is desirable or undesirable");
  for (double& weight : weights) weight /= static_cast<double>(judged.size());

  TokenObjective objective;
  objective.loss = [=](Tape& tape, const TokenValues& heads) {
    const Var l = sub(sequence_sums(heads.log_probabilities, layout), constant(tape, reference_sums));
    double k = 0.0;
    if (!unrelated.empty()) k = l.value()(unrelated, Eigen::all).mean();
    if (k < 0.0) k = 0.0;  // not std::max, which may lose a NaN
    // 1 - sigma(x) = sigma(-x), and sigma = e^{ln sigma} does not overflow.
    const Var x = mul(offset(gather_rows(l, judged), -k), constant(tape, slopes));
    return weighted_sum(tape, exp(log_sigmoid(x)), weights);
  };
  return objective;
}

}  // namespace streambp::reference
