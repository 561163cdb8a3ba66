// Checks of the objectives that make texts likely or preferred (check_objectives.h).
#include "reference/check/check_objectives.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "reference/ops/ops.h"

namespace streambp::STREAMBP_REFERENCE {
namespace {

void check_likelihood(Suite& suite) {
  const DoubleMatrix lp = some_log_probabilities(suite, kSparse);
  const DoubleMatrix other = suite.matrix(5, 1, -6.0, -3.0);
  check_objective(
      suite, "sft with label_smoothing", sft(3.5, 0.15), {lp, other},
      [](const Vars& x) {
        TokenValues heads;
        heads.log_probabilities = x[0];
        heads.mean_log_probabilities = x[1];
        return heads;
      },
      [](const Matrices& x) {
        Real total = 0;
        for (std::size_t t = 0; t < 5; ++t) {
          total -= (1 - Real{0.15}) * entry(x, 0, t) + Real{0.15} * entry(x, 1, t);
        }
        return scalar(total / Real{3.5});
      },
      false);
  DistillOptions options;
  options.temperature = 1.7;
  options.alpha = 0.4;
  options.divisor = 6.0;
  check_objective(
      suite, "distill", distill(options, Matrix::Zero(5, 3)), {lp, suite.matrix(5, 1, 0.1, 2.0)},
      [](const Vars& x) {
        TokenValues heads;
        heads.log_probabilities = x[0];
        heads.divergences = x[1];
        return heads;
      },
      [](const Matrices& x) {
        Real total = 0;
        for (std::size_t t = 0; t < 5; ++t) {
          total += Real{0.4} * Real{1.7} * Real{1.7} * entry(x, 1, t) - (1 - Real{0.4}) * entry(x, 0, t);
        }
        return scalar(total / 6);
      },
      false);
}

void check_dpo(Suite& suite) {
  const std::pair<DpoLoss, std::string> losses[] = {{DpoLoss::kSigmoid, "sigmoid"},
                                                    {DpoLoss::kHinge, "hinge"},
                                                    {DpoLoss::kIpo, "ipo"},
                                                    {DpoLoss::kRobust, "robust"}};
  for (const auto& [loss, name] : losses) {
    for (bool reference_free : {false, true}) {
      if (reference_free && loss == DpoLoss::kHinge) continue;
      const bool smooths = loss == DpoLoss::kSigmoid || loss == DpoLoss::kRobust;
      DpoOptions options;
      options.loss_type = loss;
      options.beta = 0.7;
      (loss == DpoLoss::kSigmoid ? options.cdpo_label_smoothing : options.label_smoothing) =
          smooths ? 0.2 : 0.0;
      const DoubleMatrix lp = some_log_probabilities(suite, kSparse);
      Numbers reference = numbers(suite.matrix(6, 1, -4.0, -0.5));
      if (reference_free) reference = {};
      if (loss == DpoLoss::kHinge) {
        // On both sides of the kink at z = 1, and not near it.
        reference = plus(sums_in_doubles(kSparse, lp), {-0.9, 0.4, -3.0, 0.3, 0.2, -0.1});
      }
      check_objective(suite, "dpo " + name + (reference_free ? " without a reference" : ""),
                      dpo(options, kSparse, reference), {lp}, log_probabilities_only, [=](const Matrices& x) {
                        const Sums sums(x, kSparse);
                        const Real beta = options.beta;
                        const Real e = options.label_smoothing + options.cdpo_label_smoothing;
                        Real total = 0;
                        for (std::size_t i = 0; i < 3; ++i) {
                          const Real chosen = sums.sum[i] - (reference_free ? 0 : Real{reference[i]});
                          const Real rejected =
                              sums.sum[i + 3] - (reference_free ? 0 : Real{reference[i + 3]});
                          const Real z = beta * (chosen - rejected);
                          const Real averages = chosen / std::max<Real>(sums.count[i], 1) -
                                                rejected / std::max<Real>(sums.count[i + 3], 1);
                          const Real likes = -std::log(sigma(z));
                          const Real dislikes = -std::log(sigma(-z));
                          switch (loss) {
                            case DpoLoss::kSigmoid:
                              total += (1 - e) * likes + e * dislikes;
                              break;
                            case DpoLoss::kHinge:
                              total += z < 1 ? 1 - z : 0;
                              break;
                            case DpoLoss::kIpo:
                              total += std::pow(averages - 1 / (2 * beta), Real{2});
                              break;
                            case DpoLoss::kRobust:
                              total += ((1 - e) * likes - e * dislikes) / (1 - 2 * e);
                              break;
                            default:  // the others are in check_preference.cc
                              break;
                          }
                        }
                        return scalar(total / 3);
                      });
    }
  }
}

void check_other_preferences(Suite& suite) {
  check_objective(suite, "simpo", simpo({2.5, 0.8, 0.1}, kSparse), {some_log_probabilities(suite, kSparse)},
                  log_probabilities_only, [](const Matrices& x) {
                    const Sums sums(x, kSparse);
                    Real total = 0;
                    for (std::size_t i = 0; i < 3; ++i) {
                      const Real z = Real{2.5} * (sums.mean(i) - sums.mean(i + 3) - Real{0.8} / Real{2.5});
                      total -= (1 - Real{0.1}) * std::log(sigma(z)) + Real{0.1} * std::log(sigma(-z));
                    }
                    return scalar(total / 3);
                  });
  check_objective(suite, "orpo", orpo(0.6, kDense), {some_log_probabilities(suite, kDense)},
                  log_probabilities_only, [](const Matrices& x) {
                    const Sums sums(x, kDense);
                    const auto odds = [&sums](std::size_t s) {
                      const Real p = std::exp(sums.mean(s));
                      return p / (1 - p);
                    };
                    const Real nll = -(sums.sum[0] + sums.sum[1]) / 3;
                    Real total = 0;
                    for (std::size_t i = 0; i < 2; ++i) {
                      const Real ratio = odds(i) / odds(i + 2);
                      total -= Real{0.6} * std::log(ratio / (1 + ratio));
                    }
                    return scalar(nll + total / 2);
                  });

  // The unrelated sequences are held constant by the loss and so must be by the differences: they are no
  // input.
  const std::vector<KtoRole> roles = {KtoRole::kDesirable, KtoRole::kUnrelated,   KtoRole::kUndesirable,
                                      KtoRole::kDesirable, KtoRole::kUndesirable, KtoRole::kUnrelated};
  const Numbers reference = numbers(suite.matrix(6, 1, -3.0, -0.5));
  const DoubleMatrix judged = suite.matrix(4, 1, -3.0, -0.3);
  for (double unrelated : {-0.2, -9.0}) {  // one moves the reference point, one is cut off at 0
    const std::string name = "kto with an unrelated completion at " + number_text(unrelated);
    const TokenObjective objective = kto({0.8, 1.3, 0.6}, kSparse, roles, reference);
    suite.check(
        name,
        [objective, unrelated](Tape& tape, const Vars& x) {
          TokenValues heads;
          heads.log_probabilities = concat_rows({x[0], tape.leaf(Matrix::Constant(1, 1, unrelated))});
          return objective.loss(tape, heads);
        },
        {judged},
        [=](const Matrices& x) {
          const std::vector<Real> sums = {
              entry(x, 0, 0) + entry(x, 0, 1), 0, entry(x, 0, 2), entry(x, 0, 3), 0, unrelated};
          std::vector<Real> l;
          for (std::size_t s = 0; s < 6; ++s) l.push_back(sums[s] - Real{reference[s]});
          const Real k = std::max<Real>((l[1] + l[5]) / 2, 0);
          Real total = 0;
          for (std::size_t s : {0U, 3U}) total += Real{1.3} * (1 - sigma(Real{0.8} * (l[s] - k)));
          for (std::size_t s : {2U, 4U}) total += Real{0.6} * (1 - sigma(Real{0.8} * (k - l[s])));
          return scalar(total / 4);
        });
  }
}

void check_texts(Suite& suite) {
  check_objective(
      suite, "reward", reward({0.3, {0.5, -0.2, 0.0}}), {suite.matrix(6, 1)},
      [](const Vars& x) {
        TokenValues heads;
        heads.values = x[0];
        return heads;
      },
      [](const Matrices& x) {
        const Real margins[] = {Real{0.5}, Real{-0.2}, 0};
        Real total = 0;
        for (std::size_t i = 0; i < 3; ++i) {
          const Real chosen = entry(x, 0, i), rejected = entry(x, 0, i + 3);
          total += -std::log(sigma(chosen - rejected - margins[i])) +
                   Real{0.3} * (chosen + rejected) * (chosen + rejected);
        }
        return scalar(total / 3);
      });
  for (const bool cosine : {true, false}) {
    for (const bool symmetric : {false, true}) {
      const int negatives = symmetric ? 0 : 1;
      const int rows = 3 * (2 + negatives);
      const TokenObjective objective = info_nce({Pooling::kLast, 2.5, cosine, negatives, symmetric});
      CheckOptions options;
      options.length_scales = {0.2};
      options.refused = {{suite.matrix(rows + 1, 4)}};
      suite.check(
          std::string("infonce ") + (cosine ? "cosine" : "dot") + (symmetric ? ", symmetric" : ""),
          [=](Tape& tape, const Vars& x) {
            TokenValues heads;
            heads.embeddings = x[0];
            return objective.loss(tape, heads);
          },
          {suite.matrix(rows, 4)},
          [=](const Matrices& x) {
            const auto product = [&](Index i, Index j) {
              Real sum = 0;
              for (Index c = 0; c < 4; ++c) sum += Real{x[0](i, c)} * Real{x[0](j, c)};
              return sum;
            };
            const auto score = [&](Index i, Index j) {
              const Real lengths = cosine ? std::sqrt(product(i, i) * product(j, j)) : Real{1};
              return Real{2.5} * product(i, j) / lengths;
            };
            Real to_documents = 0, to_anchors = 0;
            for (Index i = 0; i < 3; ++i) {
              Real documents = 0, anchors = 0;
              for (Index j = 3; j < rows; ++j) documents += std::exp(score(i, j));
              for (Index j = 0; j < 3; ++j) anchors += std::exp(score(j, 3 + i));
              to_documents += std::log(documents) - score(i, 3 + i);
              to_anchors += std::log(anchors) - score(i, 3 + i);
            }
            return scalar((symmetric ? (to_documents + to_anchors) / 2 : to_documents) / 3);
          },
          options);
    }
  }
}

}  // namespace

void check_objectives(Suite& suite) {
  check_likelihood(suite);
  check_dpo(suite);
  check_other_preferences(suite);
  check_policy_objectives(suite);
  check_texts(suite);
}

}  // namespace streambp::STREAMBP_REFERENCE
