#include "reference/objectives/objectives_preference.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>

#include "reference/ops/ops.h"
#include "reference/require.h"

namespace streambp::STREAMBP_REFERENCE {
namespace {

void require_pairs(const std::string& objective, const TokenLayout& layout) {
  require_valid(objective, layout);
  require(layout.sequences > 0 && layout.sequences % 2 == 0, objective,
          "expected an even number of sequences, chosen ones before rejected "
          "ones, got " +
              std::to_string(layout.sequences));
}

void require_beta(const std::string& objective, Number beta) {
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
Var log_sigmoids(const Var& z, Number a, Number b) {
  return add(scale(log_sigmoid(z), a), scale(log_sigmoid(scale(z, -1.0)), b));
}

Var sigma(const Var& z) {
  return exp(log_sigmoid(z));
}

Var smoothed(const Var& z, Number e) {
  return log_sigmoids(z, -(1.0 - e), -e);
}

Var square(const Var& x) {
  return mul(x, x);
}

/// max(0, 1 - z)
Var hinge(Tape& tape, const Var& z) {
  const Var gap = offset(scale(z, -1.0), 1.0);
  return maximum(gap, tape.leaf(Matrix::Zero(gap.rows(), 1)));
}

/// The rows of x [n, 1] from the smallest to the largest.
Var sorted(const Var& x) {
  std::vector<int> order(static_cast<std::size_t>(x.rows()));
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&x](int a, int b) { return x.value()(a, 0) < x.value()(b, 0); });
  return gather_rows(x, order);
}

/// The mean over the chosen sequences' tokens of -ln p, [1, 1].
Var chosen_cross_entropy(Tape& tape, const Var& log_probabilities, const TokenLayout& layout) {
  const std::vector<Number> counts = token_counts(layout);
  std::vector<Number> weights(counts.size(), 0.0);
  const Number tokens = std::accumulate(counts.begin(), counts.begin() + layout.sequences / 2, Number{0});
  std::fill_n(weights.begin(), counts.size() / 2, -1.0 / std::max(tokens, Number{1}));
  return weighted_sum(tape, sequence_sums(log_probabilities, layout), weights);
}

Var score(const DpoOptions& options, const Var& l) {
  const Number power = options.f_alpha_divergence_coef - 1.0;
  switch (options.f_divergence_type) {
    case FDivergence::kForwardKl:
      return offset(scale(exp(capped(scale(l, -1.0))), -1.0), 1.0);
    case FDivergence::kJs:
      return offset(log_sigmoid(l), std::log(Number{2}));
    case FDivergence::kAlpha:
      if (std::abs(power) < 1e-6) return l;  // the limit, which TRL takes from here on
      return scale(offset(exp(capped(scale(l, power))), -1.0), 1.0 / power);
    case FDivergence::kReverseKl:
      break;
  }
  return l;
}

bool smooths(DpoLoss loss) {
  return loss == DpoLoss::kRobust || loss == DpoLoss::kExoPair || loss == DpoLoss::kAot ||
         loss == DpoLoss::kAotUnpaired;
}

bool is_of_scores(DpoLoss loss) {
  for (DpoLoss other : {DpoLoss::kNcaPair, DpoLoss::kBcoPair, DpoLoss::kSppoHard, DpoLoss::kAot,
                        DpoLoss::kAotUnpaired, DpoLoss::kApoZero, DpoLoss::kApoDown}) {
    if (loss == other) return false;
  }
  return true;
}

void require_loss(const DpoOptions& options, DpoLoss loss, bool alone) {
  const Number beta = options.beta;
  const Number e = options.label_smoothing;
  require_range("dpo", "label_smoothing", e, 0.0, smooths(loss) || !alone ? 1.0 : 0.0);
  require_range("dpo", "cdpo_label_smoothing", options.cdpo_label_smoothing, 0.0,
                loss == DpoLoss::kSigmoid || !alone ? 1.0 : 0.0);
  require(loss != DpoLoss::kRobust || e < 0.5, "dpo",
          "expected label_smoothing below 0.5 with the robust loss, got " + std::to_string(e));
  require(loss != DpoLoss::kExoPair || (e > 0.0 && e < 1.0), "dpo",
          "expected label_smoothing between 0 and 1 with the exo_pair loss, got " + std::to_string(e));
  require((loss != DpoLoss::kIpo && loss != DpoLoss::kSppoHard) || beta > 0.0, "dpo",
          "expected a positive beta with the ipo and sppo_hard losses, got " + std::to_string(beta));
  require(options.f_divergence_type == FDivergence::kReverseKl || is_of_scores(loss), "dpo",
          "expected reverse_kl with a loss that is not one of scores");
  const bool is_of_pairs = loss != DpoLoss::kAot && loss != DpoLoss::kAotUnpaired && loss != DpoLoss::kSft;
  require(!options.use_weighting || is_of_pairs, "dpo",
          "expected no use_weighting with losses that are not one number for each pair");
}

/// What the losses of pairs are made of, [n, 1] each, where not said otherwise.
struct Pairs {
  Var chosen, rejected;   // l
  Var margin;             // of the scores
  Var mean_margin;        // of the scores over the numbers of tokens
  Var policy, reference;  // margins of ln p and of the reference
  Var cross_entropy;      // [1, 1]
};

Var loss_of_pairs(Tape& tape, const DpoOptions& options, DpoLoss loss, const Pairs& pairs) {
  const Number beta = options.beta;
  const Number e = options.label_smoothing;
  const Var z = scale(pairs.margin, beta);
  const Var chosen = scale(pairs.chosen, beta);
  const Var rejected = scale(pairs.rejected, beta);
  switch (loss) {
    case DpoLoss::kSigmoid:
      return smoothed(z, options.cdpo_label_smoothing);
    case DpoLoss::kSigmoidNorm:
      return smoothed(scale(pairs.mean_margin, beta), 0.0);
    case DpoLoss::kHinge:
      return hinge(tape, z);
    case DpoLoss::kIpo:
      return square(offset(pairs.mean_margin, -1.0 / (2.0 * beta)));
    case DpoLoss::kRobust:
      return log_sigmoids(z, -(1.0 - e) / (1.0 - 2.0 * e), e / (1.0 - 2.0 * e));
    case DpoLoss::kExoPair: {
      const Var likes = log_sigmoid(z);
      const Var dislikes = log_sigmoid(scale(z, -1.0));
      return add(mul(exp(likes), offset(likes, -std::log1p(-e))),
                 mul(exp(dislikes), offset(dislikes, -std::log(e))));
    }
    case DpoLoss::kNcaPair:
      return add(log_sigmoids(chosen, -1.0, -0.5), log_sigmoids(rejected, 0.0, -0.5));
    case DpoLoss::kBcoPair:
      return add(log_sigmoids(chosen, -1.0, 0.0), log_sigmoids(rejected, 0.0, -1.0));
    case DpoLoss::kSppoHard:
      return add(square(offset(pairs.chosen, -0.5 / beta)), square(offset(pairs.rejected, 0.5 / beta)));
    case DpoLoss::kAot:
      return smoothed(scale(sub(sorted(pairs.policy), sorted(pairs.reference)), beta), e);
    case DpoLoss::kAotUnpaired:
      return smoothed(sub(sorted(chosen), sorted(rejected)), e);
    case DpoLoss::kApoZero:
      return add(sigma(scale(chosen, -1.0)), sigma(rejected));
    case DpoLoss::kApoDown:
      return add(sigma(chosen), sigma(sub(rejected, chosen)));
    case DpoLoss::kDiscopop: {
      const Var share = sigma(scale(z, 1.0 / options.discopop_tau));
      return add(mul(offset(share, -1.0), log_sigmoid(z)), mul(share, exp(capped(scale(z, -1.0)))));
    }
    case DpoLoss::kSft:
      break;
  }
  return matmul(tape.leaf(Matrix::Ones(pairs.margin.rows(), 1)), pairs.cross_entropy);
}

}  // namespace

std::vector<Number> ld_weights(const TokenLayout& layout, Number ld_alpha) {
  require_pairs("dpo", layout);
  require_range("dpo", "ld_alpha", ld_alpha, 0.0, 1.0);
  const std::vector<Number> counts = token_counts(layout);
  const std::size_t pairs = counts.size() / 2;
  std::vector<Number> seen(counts.size(), 0.0);
  std::vector<Number> weights;
  for (int sequence : layout.sequence_of_token) {
    const auto s = static_cast<std::size_t>(sequence);
    const Number other = counts[s < pairs ? s + pairs : s - pairs];
    seen[s] += 1.0;
    weights.push_back(seen[s] <= other ? 1.0 : ld_alpha);
  }
  return weights;
}

TokenObjective dpo(const DpoOptions& options, const TokenLayout& layout,
                   const std::vector<Number>& reference_sums) {
  require_pairs("dpo", layout);
  require_beta("dpo", options.beta);
  std::vector<std::pair<DpoLoss, Number>> losses = options.mix;
  if (losses.empty()) losses = {{options.loss_type, 1.0}};
  for (const auto& [loss, weight] : losses) require_loss(options, loss, losses.size() == 1);
  std::vector<Number> reference = reference_sums;
  if (reference.empty()) reference.assign(static_cast<std::size_t>(layout.sequences), 0.0);
  require_size("dpo", "reference sums", reference, static_cast<std::size_t>(layout.sequences));
  std::vector<Number> shares =
      options.completion_tokens.empty() ? token_counts(layout) : options.completion_tokens;
  require_size("dpo", "completion tokens", shares, static_cast<std::size_t>(layout.sequences));
  for (Number& count : shares) count = 1.0 / std::max(count, Number{1});
  const std::vector<Number> weights = ld_weights(layout, options.ld_alpha.value_or(1.0));

  TokenObjective objective;
  objective.log_sum_squares = options.use_weighting;
  objective.loss = [=](Tape& tape, const TokenValues& heads) {
    const Var sums = sequence_sums(mul(heads.log_probabilities, constant(tape, weights)), layout);
    const Var l = sub(sums, constant(tape, reference));
    const Var f = score(options, l);
    const Var zero = tape.leaf(Matrix::Zero(l.rows(), 1));
    std::vector<int> chosen(static_cast<std::size_t>(layout.sequences / 2));
    std::iota(chosen.begin(), chosen.end(), 0);
    const Var chosen_l = gather_rows(l, chosen);
    const Pairs pairs{chosen_l,
                      sub(chosen_l, chosen_minus_rejected(l)),
                      chosen_minus_rejected(f),
                      chosen_minus_rejected(mul(f, constant(tape, shares))),
                      chosen_minus_rejected(sums),
                      chosen_minus_rejected(sub(constant(tape, reference), zero)),
                      chosen_cross_entropy(tape, heads.log_probabilities, layout)};
    Var total = tape.leaf(Matrix::Zero(layout.sequences / 2, 1));
    for (const auto& [loss, weight] : losses)
      total = add(total, scale(loss_of_pairs(tape, options, loss, pairs), weight));
    if (!options.use_weighting) return mean(total);
    const Var aligned = sub(detached(tape, heads.log_probabilities), detached(tape, heads.log_sum_squares));
    const Matrix means = sequence_means(tape, aligned, layout).value();
    const Index n = total.rows();
    return mean(mul(total, tape.leaf((means.topRows(n) + means.bottomRows(n)).array().exp().matrix())));
  };
  return objective;
}

TokenObjective cpo(const CpoOptions& options, const TokenLayout& layout) {
  const Number e = options.label_smoothing;
  const bool averages = options.loss_type == CpoLoss::kIpo || options.loss_type == CpoLoss::kSimpo;
  const bool knows_smoothing = options.loss_type == CpoLoss::kSigmoid || options.loss_type == CpoLoss::kSimpo;
  require_pairs("cpo", layout);
  require_beta("cpo", options.beta);
  require_range("cpo", "simpo_gamma", options.simpo_gamma, -kInfinity, kInfinity);
  require_range("cpo", "label_smoothing", e, 0.0, knows_smoothing ? 1.0 : 0.0);
  require_range("cpo", "cpo_alpha", options.cpo_alpha, 0.0, kInfinity);
  require(options.loss_type != CpoLoss::kIpo || options.beta > 0.0, "cpo",
          "expected a positive beta with the ipo loss, got " + std::to_string(options.beta));
  TokenObjective objective;
  objective.loss = [=](Tape& tape, const TokenValues& heads) {
    const Var& lp = heads.log_probabilities;
    Var r = averages ? sequence_means(tape, lp, layout) : sequence_sums(lp, layout);
    if (options.alpha != 0.0)
      r = scale(offset(scale(exp(capped(scale(r, -options.alpha))), -1.0), 1.0), 1.0 / options.alpha);
    const Var margin = chosen_minus_rejected(r);
    const Var z = scale(margin, options.beta);
    Var loss;
    switch (options.loss_type) {
      case CpoLoss::kSigmoid:
        loss = mean(smoothed(z, e));
        break;
      case CpoLoss::kHinge:
        loss = mean(hinge(tape, z));
        break;
      case CpoLoss::kIpo:
        loss = mean(square(offset(margin, -1.0 / (2.0 * options.beta))));
        break;
      case CpoLoss::kSimpo:
        loss = mean(smoothed(offset(z, -options.simpo_gamma), e));
        break;
    }
    return add(loss, scale(chosen_cross_entropy(tape, lp, layout), options.cpo_alpha));
  };
  return objective;
}

TokenObjective simpo(const SimpoOptions& options, const TokenLayout& layout) {
  return cpo({CpoLoss::kSimpo, options.beta, options.gamma, options.label_smoothing, 0.0, 0.0}, layout);
}

TokenObjective orpo(Number beta, const TokenLayout& layout, const std::vector<Number>& completion) {
  require_pairs("orpo", layout);
  require_beta("orpo", beta);
  std::vector<Number> counts_in_odds(layout.tokens(), 1.0);
  if (!completion.empty()) counts_in_odds = completion;
  require_size("orpo", "marks of completions", counts_in_odds, layout.tokens());
  std::vector<Number> shares = sum_by_sequence(layout, counts_in_odds);
  for (Number& count : shares) {
    require(count > 0.0, "orpo", "expected scored tokens in every sequence");
    count = 1.0 / count;
  }

  TokenObjective objective;
  if (!completion.empty()) objective.whole_sequences = layout.sequences / 2;
  objective.loss = [=](Tape& tape, const TokenValues& heads) {
    const Var of_completions = mul(heads.log_probabilities, constant(tape, counts_in_odds));
    const Var averages = mul(sequence_sums(of_completions, layout), constant(tape, shares));
    const Var a = clip(averages, -kInfinity, -std::ldexp(1.0, -53));
    const Var log_odds_ratio = chosen_minus_rejected(sub(a, log1mexp(a)));
    return add(chosen_cross_entropy(tape, heads.log_probabilities, layout),
               scale(mean(log_sigmoid(log_odds_ratio)), -beta));
  };
  return objective;
}

TokenObjective kto(const KtoOptions& options, const TokenLayout& layout, const std::vector<KtoRole>& roles,
                   const std::vector<Number>& reference_sums) {
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
  std::vector<Number> slopes;   // -beta where desirable, beta where not
  std::vector<Number> weights;  // of the judged ones, over their number below
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
  for (Number& weight : weights) weight /= static_cast<Number>(judged.size());

  TokenObjective objective;
  for (KtoRole role : roles) objective.router.left_out.push_back(role == KtoRole::kUnrelated);
  objective.loss = [=](Tape& tape, const TokenValues& heads) {
    const Var l = sub(sequence_sums(heads.log_probabilities, layout), constant(tape, reference_sums));
    Number k = 0.0;
    if (!unrelated.empty() && !options.apo_zero_unpaired)
      k = real_part(l.value()(unrelated, Eigen::all).mean());
    if (k < 0.0) k = 0.0;  // not std::max, which may lose a NaN
    // 1 - sigma(x) = sigma(-x), and sigma = e^{ln sigma} does not overflow.
    const Var x = mul(offset(gather_rows(l, judged), -k), constant(tape, slopes));
    return weighted_sum(tape, exp(log_sigmoid(x)), weights);
  };
  return objective;
}

}  // namespace streambp::STREAMBP_REFERENCE
