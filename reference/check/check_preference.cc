// Checks of the losses of pairs beyond those of check_objectives.cc, each against a second version of its
// formula in extended precision.
#include <algorithm>
#include <cmath>
#include <map>

#include "reference/check/check_suite.h"
#include "reference/objectives/objectives.h"
#include "reference/ops/ops.h"

namespace streambp::STREAMBP_REFERENCE {
namespace {

using Numbers = std::vector<Number>;

// Three pairs of 2, 1, 0 and 1, 2, 1 tokens.
const TokenLayout kPairs = {6, {0, 0, 1, 3, 4, 4, 5}};
const Numbers kReference = {-1.9, -2.3, 0.4, -0.8, -3.6, -1.1};
constexpr double kBeta = 0.7;

Real sigmoid(Real z) {
  return 1 / (1 + std::exp(-z));
}

/// One pair: log-ratios, their scores, the numbers of tokens.
struct Pair {
  Real l_c, l_r, f_c, f_r, n_c, n_r;
  Real z() const { return kBeta * (f_c - f_r); }
  Real mean_margin() const { return f_c / std::max<Real>(n_c, 1) - f_r / std::max<Real>(n_r, 1); }
};

using Score = std::function<Real(Real)>;

/// Per-sequence sums of `lp`, each token times its weight.
std::vector<Real> sums_of(const DoubleMatrix& lp, const Numbers& weights) {
  std::vector<Real> sums(6, 0);
  for (std::size_t t = 0; t < kPairs.tokens(); ++t) {
    sums[static_cast<std::size_t>(kPairs.sequence_of_token[t])] +=
        Real{lp(static_cast<Index>(t), 0)} * (weights.empty() ? 1 : Real{weights[t]});
  }
  return sums;
}

std::vector<Pair> pairs_of(const DoubleMatrix& lp, const Score& score, const Numbers& weights) {
  const std::vector<Real> sums = sums_of(lp, weights);
  const Numbers counts = token_counts(kPairs);
  std::vector<Pair> pairs;
  for (std::size_t i = 0; i < 3; ++i) {
    const Real l_c = sums[i] - Real{kReference[i]}, l_r = sums[i + 3] - Real{kReference[i + 3]};
    pairs.push_back({l_c, l_r, score(l_c), score(l_r), counts[i], counts[i + 3]});
  }
  return pairs;
}

Real cross_entropy(const DoubleMatrix& lp) {
  const std::vector<Real> sums = sums_of(lp, {});
  return -(sums[0] + sums[1] + sums[2]) / 3;
}

/// The mean of `terms` over the pairs against `options`, as a function of the log-probabilities.
void check_pairs(Suite& suite, const std::string& name, const DpoOptions& options, const Score& score,
                 const std::function<Real(const std::vector<Pair>&, const DoubleMatrix&)>& loss,
                 const Numbers& weights = {}, const DoubleMatrix& log_sum_squares = {}) {
  CheckOptions check;
  check.length_scales = {0.2};
  const TokenObjective objective = dpo(options, kPairs, kReference);
  suite.check(
      "dpo " + name,
      [=](Tape& tape, const Vars& x) {
        TokenValues heads;
        heads.log_probabilities = x[0];
        if (log_sum_squares.size() > 0) heads.log_sum_squares = tape.leaf(on_tape(log_sum_squares));
        return objective.loss(tape, heads);
      },
      {suite.matrix(static_cast<Index>(kPairs.tokens()), 1, -3.0, -0.3)},
      [=](const Matrices& x) {
        return DoubleMatrix::Constant(1, 1, static_cast<double>(loss(pairs_of(x[0], score, weights), x[0])));
      },
      check);
}

Real same(Real l) {
  return l;
}

/// The losses that are one number for each pair.
Real term(DpoLoss loss, const Pair& p, const DpoOptions& options) {
  const Real e = options.label_smoothing, b = kBeta;
  const Real s = sigmoid(p.z());
  switch (loss) {
    case DpoLoss::kSigmoidNorm:
      return -std::log(sigmoid(b * p.mean_margin()));
    case DpoLoss::kExoPair:
      return s * std::log(s / (1 - e)) + (1 - s) * std::log((1 - s) / e);
    case DpoLoss::kNcaPair:
      return -std::log(sigmoid(b * p.l_c)) -
             (std::log(sigmoid(-b * p.l_c)) + std::log(sigmoid(-b * p.l_r))) / 2;
    case DpoLoss::kBcoPair:
      return -std::log(sigmoid(b * p.l_c)) - std::log(sigmoid(-b * p.l_r));
    case DpoLoss::kSppoHard:
      return std::pow(p.l_c - 1 / (2 * b), Real{2}) + std::pow(p.l_r + 1 / (2 * b), Real{2});
    case DpoLoss::kApoZero:
      return 1 - sigmoid(b * p.l_c) + sigmoid(b * p.l_r);
    case DpoLoss::kApoDown:
      return sigmoid(b * p.l_c) + 1 - sigmoid(b * (p.l_c - p.l_r));
    case DpoLoss::kDiscopop: {
      const Real m = sigmoid(p.z() / Real{options.discopop_tau});
      return (1 - m) * std::log(1 + std::exp(-p.z())) + m * std::exp(-p.z());
    }
    default:
      return -std::log(s);
  }
}

void check_terms(Suite& suite) {
  const std::map<DpoLoss, std::string> names{
      {DpoLoss::kSigmoidNorm, "sigmoid_norm"}, {DpoLoss::kExoPair, "exo_pair"},
      {DpoLoss::kNcaPair, "nca_pair"},         {DpoLoss::kBcoPair, "bco_pair"},
      {DpoLoss::kSppoHard, "sppo_hard"},       {DpoLoss::kApoZero, "apo_zero"},
      {DpoLoss::kApoDown, "apo_down"},         {DpoLoss::kDiscopop, "discopop"}};
  for (const auto& [loss, name] : names) {
    DpoOptions options;
    options.beta = kBeta;
    options.loss_type = loss;
    options.discopop_tau = 0.9;
    if (loss == DpoLoss::kExoPair) options.label_smoothing = 0.05;
    check_pairs(suite, name, options, same,
                [loss = loss, options](const std::vector<Pair>& pairs, const DoubleMatrix&) {
                  Real total = 0;
                  for (const Pair& p : pairs) total += term(loss, p, options);
                  return total / 3;
                });
  }
}

/// What the settings make of the sigmoid loss.
void check_settings(Suite& suite) {
  const auto mean_sigmoid = [](const std::vector<Pair>& pairs, const DoubleMatrix&) {
    Real total = 0;
    for (const Pair& p : pairs) total -= std::log(sigmoid(p.z()));
    return total / 3;
  };
  DpoOptions options;
  options.beta = kBeta;
  options.f_divergence_type = FDivergence::kForwardKl;
  check_pairs(
      suite, "with forward_kl", options, [](Real l) { return 1 - std::exp(-l); }, mean_sigmoid);
  options.f_divergence_type = FDivergence::kJs;
  const Score js = [](Real l) { return std::log(2 * std::exp(l) / (1 + std::exp(l))); };
  check_pairs(suite, "with js_divergence", options, js, mean_sigmoid);
  options.f_divergence_type = FDivergence::kAlpha;
  options.f_alpha_divergence_coef = 0.3;
  check_pairs(
      suite, "with alpha_divergence", options,
      [](Real l) { return (std::pow(std::exp(l), Real{0.3} - 1) - 1) / (Real{0.3} - 1); }, mean_sigmoid);

  DpoOptions lengths;
  lengths.beta = kBeta;
  lengths.ld_alpha = 0.25;
  check_pairs(suite, "with ld_alpha", lengths, same, mean_sigmoid, {1, 0.25, 1, 1, 1, 0.25, 0.25});

  DpoOptions mix;
  mix.beta = kBeta;
  mix.mix = {{DpoLoss::kSigmoid, 0.8}, {DpoLoss::kSft, 1.5}, {DpoLoss::kBcoPair, 0.2}};
  check_pairs(suite, "of a mix", mix, same, [mix](const std::vector<Pair>& pairs, const DoubleMatrix& lp) {
    Real total = Real{1.5} * 3 * cross_entropy(lp);
    for (const Pair& p : pairs)
      total += Real{0.8} * term(DpoLoss::kSigmoid, p, mix) + Real{0.2} * term(DpoLoss::kBcoPair, p, mix);
    return total / 3;
  });

  DpoOptions sorted;
  sorted.beta = kBeta;
  sorted.loss_type = DpoLoss::kAotUnpaired;
  sorted.label_smoothing = 0.1;
  check_pairs(suite, "aot_unpaired", sorted, same, [](const std::vector<Pair>& pairs, const DoubleMatrix&) {
    std::vector<Real> chosen, rejected;
    for (const Pair& p : pairs) {
      chosen.push_back(p.l_c);
      rejected.push_back(p.l_r);
    }
    std::sort(chosen.begin(), chosen.end());
    std::sort(rejected.begin(), rejected.end());
    Real total = 0;
    for (std::size_t i = 0; i < 3; ++i) {
      const Real s = sigmoid(kBeta * (chosen[i] - rejected[i]));
      total -= Real{0.9} * std::log(s) + Real{0.1} * std::log(1 - s);
    }
    return total / 3;
  });
  sorted.loss_type = DpoLoss::kAot;
  sorted.label_smoothing = 0.0;
  check_pairs(suite, "aot", sorted, same, [](const std::vector<Pair>& pairs, const DoubleMatrix&) {
    std::vector<Real> policy, reference;
    for (std::size_t i = 0; i < 3; ++i) {
      reference.push_back(Real{kReference[i]} - Real{kReference[i + 3]});
      policy.push_back(pairs[i].l_c - pairs[i].l_r + reference.back());
    }
    std::sort(policy.begin(), policy.end());
    std::sort(reference.begin(), reference.end());
    Real total = 0;
    for (std::size_t i = 0; i < 3; ++i) total -= std::log(sigmoid(kBeta * (policy[i] - reference[i])));
    return total / 3;
  });
}

// The weights are held constant by the loss and so must be by the differences: what they are made of is what
// the differences leave alone. Each pair's weight is taken from tokens that are no input.
void check_weighting(Suite& suite) {
  DpoOptions options;
  options.beta = kBeta;
  options.use_weighting = true;
  const DoubleMatrix lp = suite.matrix(static_cast<Index>(kPairs.tokens()), 1, -3.0, -0.3);
  const DoubleMatrix squares = suite.matrix(static_cast<Index>(kPairs.tokens()), 1, -2.0, -0.1);
  const TokenObjective weighted = dpo(options, kPairs, kReference);
  std::vector<Real> aligned(6, 0);
  const Numbers counts = token_counts(kPairs);
  for (std::size_t t = 0; t < kPairs.tokens(); ++t) {
    const auto s = static_cast<std::size_t>(kPairs.sequence_of_token[t]);
    const auto row = static_cast<Index>(t);
    aligned[s] += (Real{lp(row, 0)} - Real{squares(row, 0)}) / Real{counts[s]};
  }
  // e^(a - b) with b chosen so that the weights stay what they are at `lp`.
  suite.check(
      "dpo with use_weighting",
      [weighted, lp, squares](Tape& tape, const Vars& x) {
        TokenValues heads;
        heads.log_probabilities = x[0];
        heads.log_sum_squares = tape.leaf(on_tape(squares) + x[0].value() - on_tape(lp));
        return weighted.loss(tape, heads);
      },
      {lp},
      [aligned](const Matrices& x) {
        Real total = 0;
        const std::vector<Pair> pairs = pairs_of(x[0], same, {});
        for (std::size_t i = 0; i < 3; ++i)
          total -= std::log(sigmoid(pairs[i].z())) * std::exp(aligned[i]) * std::exp(aligned[i + 3]);
        return DoubleMatrix::Constant(1, 1, static_cast<double>(total / 3));
      });
}

void check_cpo(Suite& suite) {
  for (CpoLoss loss : {CpoLoss::kSigmoid, CpoLoss::kHinge, CpoLoss::kIpo, CpoLoss::kSimpo}) {
    for (double alpha : {0.0, 0.4}) {
      const bool smooths = loss == CpoLoss::kSigmoid || loss == CpoLoss::kSimpo;
      const CpoOptions options{loss, 0.3, 0.6, smooths ? 0.2 : 0.0, alpha, 0.8};
      const TokenObjective objective = cpo(options, kPairs);
      suite.check(
          "cpo " + std::to_string(static_cast<int>(loss)) + " with alpha " + number_text(alpha),
          [objective](Tape& tape, const Vars& x) {
            TokenValues heads;
            heads.log_probabilities = x[0];
            return objective.loss(tape, heads);
          },
          {suite.matrix(static_cast<Index>(kPairs.tokens()), 1, -1.5, -0.3)},
          [=](const Matrices& x) {
            const std::vector<Real> sums = sums_of(x[0], {});
            const Numbers counts = token_counts(kPairs);
            const bool averages = loss == CpoLoss::kIpo || loss == CpoLoss::kSimpo;
            const auto reward = [&](std::size_t s) {
              const Real a = averages ? sums[s] / std::max<Real>(counts[s], 1) : sums[s];
              return alpha == 0.0 ? a : (1 - std::pow(std::exp(a), -Real{alpha})) / Real{alpha};
            };
            Real total = 0;
            for (std::size_t i = 0; i < 3; ++i) {
              const Real m = reward(i) - reward(i + 3);
              const Real z = Real{0.3} * m - (loss == CpoLoss::kSimpo ? Real{0.6} : 0);
              if (loss == CpoLoss::kHinge) {
                total += z < 1 ? 1 - z : 0;
              } else if (loss == CpoLoss::kIpo) {
                total += std::pow(m - 1 / Real{0.6}, Real{2});
              } else {
                total -= Real{0.8} * std::log(sigmoid(z)) + Real{0.2} * std::log(sigmoid(-z));
              }
            }
            return DoubleMatrix::Constant(1, 1,
                                          static_cast<double>(total / 3 + Real{0.8} * cross_entropy(x[0])));
          });
    }
  }
}

}  // namespace

void check_preference(Suite& suite) {
  check_terms(suite);
  check_settings(suite);
  check_weighting(suite);
  check_cpo(suite);
}

}  // namespace streambp::STREAMBP_REFERENCE
