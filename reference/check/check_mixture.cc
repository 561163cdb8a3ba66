// Checks of the mixture of experts and of the loss of its routers. Which experts a token has is found a
// second time by counting the better ones.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "reference/check/check_suite.h"
#include "reference/mixture.h"
#include "reference/ops/ops.h"

namespace streambp::STREAMBP_REFERENCE {
namespace {

/// Whether e is among the `count` largest entries of row t, the first of equals before the others.
bool is_chosen(const DoubleMatrix& p, Index t, Index e, int count) {
  int better = 0;
  for (Index other = 0; other < p.cols(); ++other) {
    if (p(t, other) > p(t, e) || (p(t, other) == p(t, e) && other < e)) ++better;
  }
  return better < count;
}

/// Entries so far apart that no step of a difference changes their order, in another order in every row.
DoubleMatrix distinct_probabilities(Suite& suite, Index rows, Index experts) {
  const DoubleMatrix noise = suite.matrix(rows, experts, 0.0, 0.02);
  return build(rows, experts, [&](Index t, Index e) {
    return Real{0.1} + Real{0.15} * ((2 * t + (t % 2 == 0 ? e : experts - e)) % experts) + Real{noise(t, e)};
  });
}

void check_mixture_case(Suite& suite, Index rows, const MixtureSettings& mixture) {
  const Index hidden = 3;
  Matrices inputs = {suite.matrix(rows, hidden), distinct_probabilities(suite, rows, mixture.num_experts)};
  for (int e = 0; e < mixture.num_experts; ++e) inputs.push_back(suite.matrix(hidden, hidden));
  CheckOptions options;
  options.length_scales.assign(inputs.size(), 1.0);
  options.length_scales[1] = 0.2;
  options.refused = {inputs, inputs};
  options.refused[0][1] = DoubleMatrix::Zero(rows + 1, mixture.num_experts);
  options.refused[1][1] = DoubleMatrix::Zero(rows, mixture.num_experts + 1);
  const std::string name = "mixture_of_experts " + std::to_string(mixture.num_experts_per_tok) +
                           (mixture.norm_topk_prob ? " normalised" : "");
  suite.check(
      name,
      [mixture](Tape&, const Vars& v) {
        return mixture_of_experts(mixture, v[0], v[1], [&v](int e, const Var& x) {
          return linear(x, v[2 + static_cast<std::size_t>(e)]);
        });
      },
      inputs,
      [mixture](const Matrices& v) {
        const DoubleMatrix& p = v[1];
        return build(v[0].rows(), v[0].cols(), [&](Index t, Index i) {
          Real total = 0;
          Real y = 0;
          for (Index e = 0; e < p.cols(); ++e) {
            if (!is_chosen(p, t, e, mixture.num_experts_per_tok)) continue;
            total += p(t, e);
            for (Index j = 0; j < v[0].cols(); ++j) {
              y += Real{p(t, e)} * Real{v[2 + static_cast<std::size_t>(e)](i, j)} * Real{v[0](t, j)};
            }
          }
          return mixture.norm_topk_prob ? y / total : y;
        });
      },
      options);
}

/// By how much the last of the `count` largest entries of a row is ahead of the next; infinite without one.
double lead(const DoubleMatrix& row, int count) {
  if (count >= row.cols()) return std::numeric_limits<double>::infinity();
  std::vector<double> falling(row.data(), row.data() + row.size());
  std::sort(falling.begin(), falling.end(), std::greater<>());
  const auto last = static_cast<std::size_t>(count) - 1;
  return falling[last] - falling[last + 1];
}

/// The sum of the two largest corrected scores of each group of one token.
std::vector<Real> sums_of_groups(const MixtureSettings& mixture, const DoubleMatrix& p,
                                 const DoubleMatrix& correction) {
  const Index size = p.cols() / mixture.n_group;
  std::vector<Real> sums;
  for (Index first = 0; first < p.cols(); first += size) {
    Real sum = -std::numeric_limits<Real>::infinity();
    for (Index a = first; a < first + size; ++a) {
      for (Index b = first; b < a; ++b) {
        sum = std::max(sum, Real{p(0, a)} + Real{correction(0, a)} + Real{p(0, b)} + Real{correction(0, b)});
      }
    }
    sums.push_back(sum);
  }
  return sums;
}

/// Whether a token's group is among its topk_group best ones.
bool is_open(const MixtureSettings& mixture, const std::vector<Real>& sums, std::size_t group) {
  const auto better = std::count_if(sums.begin(), sums.end(), [&](Real sum) { return sum > sums[group]; });
  return better < mixture.topk_group;
}

/// The corrected scores of a token's experts in open groups, and a large negative number for the others.
DoubleMatrix open_scores(const MixtureSettings& mixture, const DoubleMatrix& p,
                         const DoubleMatrix& correction) {
  const std::vector<Real> sums = sums_of_groups(mixture, p, correction);
  const Index size = p.cols() / mixture.n_group;
  DoubleMatrix scores = p + correction;
  for (Index e = 0; e < p.cols(); ++e) {
    if (!is_open(mixture, sums, static_cast<std::size_t>(e / size))) scores(0, e) = -1e9;
  }
  return scores;
}

/// A router of sigmoids, whose groups and corrections decide who is chosen but not how much they weigh.
void check_sigmoid_mixture(Suite& suite, Index rows, const MixtureSettings& mixture) {
  const Index hidden = 3;
  DoubleMatrix p, correction;
  const auto smallest_lead = [&] {
    double smallest = std::numeric_limits<double>::infinity();
    for (Index t = 0; t < rows; ++t) {
      smallest = std::min(smallest, lead_of_choice(mixture, p.row(t), correction));
    }
    return smallest;
  };
  do {
    p = suite.matrix(rows, mixture.num_experts, 0.1, 0.9);
    correction = suite.matrix(1, mixture.num_experts, -0.4, 0.4);
  } while (!(smallest_lead() > 0.1));
  Matrices inputs = {suite.matrix(rows, hidden), p};
  for (int e = 0; e < mixture.num_experts; ++e) inputs.push_back(suite.matrix(hidden, hidden));
  CheckOptions options;
  options.length_scales.assign(inputs.size(), 1.0);
  options.length_scales[1] = 0.2;
  suite.check(
      "mixture_of_experts of a sigmoid router, " + std::to_string(mixture.topk_group) + " of " +
          std::to_string(mixture.n_group) + " groups" + (mixture.norm_topk_prob ? ", normalised" : ""),
      [mixture, correction](Tape&, const Vars& v) {
        const auto expert = [&v](int e, const Var& x) {
          return linear(x, v[2 + static_cast<std::size_t>(e)]);
        };
        return mixture_of_experts(mixture, v[0], v[1], expert, on_tape(correction));
      },
      inputs,
      [mixture, correction](const Matrices& v) {
        return build(v[0].rows(), v[0].cols(), [&](Index t, Index i) {
          const DoubleMatrix scores = open_scores(mixture, v[1].row(t), correction);
          Real total = 1e-20;
          Real y = 0;
          for (Index e = 0; e < scores.cols(); ++e) {
            if (!is_chosen(scores, 0, e, mixture.num_experts_per_tok)) continue;
            total += v[1](t, e);
            for (Index j = 0; j < v[0].cols(); ++j) {
              y += Real{v[1](t, e)} * Real{v[2 + static_cast<std::size_t>(e)](i, j)} * Real{v[0](t, j)};
            }
          }
          return Real{mixture.routed_scaling_factor} * (mixture.norm_topk_prob ? y / total : y);
        });
      },
      options);
}

void check_load_balancing(Suite& suite, Index rows, const MixtureSettings& mixture) {
  CheckOptions options;
  options.length_scales = {0.2};
  options.refused = {{DoubleMatrix::Zero(0, mixture.num_experts)},
                     {DoubleMatrix::Zero(rows, mixture.num_experts + 1)}};
  suite.check(
      "load_balancing_loss " + std::to_string(mixture.num_experts_per_tok),
      [mixture](Tape& tape, const Vars& v) { return load_balancing_loss(tape, mixture, v[0]); },
      {distinct_probabilities(suite, rows, mixture.num_experts)},
      [mixture](const Matrices& v) {
        const DoubleMatrix& p = v[0];
        return build(1, 1, [&](Index, Index) {
          Real loss = 0;
          for (Index e = 0; e < p.cols(); ++e) {
            Real count = 0;
            Real total = 0;
            for (Index t = 0; t < p.rows(); ++t) {
              count += is_chosen(p, t, e, mixture.num_experts_per_tok) ? 1 : 0;
              total += p(t, e);
            }
            loss += count * total;
          }
          return loss * p.cols() / (Real{1} * p.rows() * p.rows());
        });
      },
      options);
}

/// Entries within a limit of 1.5, above and below it, and none where a difference would meet the bend.
DoubleMatrix apart(Suite& suite, Index rows, Index cols, Index shift) {
  const DoubleMatrix x = suite.matrix(rows, cols, -1.3, 1.3);
  return build(rows, cols,
               [&](Index i, Index j) { return Real{x(i, j)} + Real{3} * ((2 * i + j + shift) % 3 - 1); });
}

CheckOptions options_of_bends(Index rows, Index cols) {
  CheckOptions options;
  options.length_scales = {0.5, 0.5};
  options.refused = {{DoubleMatrix::Zero(rows, cols), DoubleMatrix::Zero(rows, cols + 1)}};
  return options;
}

void check_clamped_swiglu(Suite& suite, Index rows, Index cols, double alpha) {
  const double limit = 1.5;
  suite.check(
      "clamped_swiglu of alpha " + number_text(alpha),
      [=](Tape&, const Vars& v) { return clamped_swiglu(v[0], v[1], alpha, limit); },
      {apart(suite, rows, cols, 0), apart(suite, rows, cols, cols == 1 ? 0 : 1)},
      [=](const Matrices& v) {
        return build(rows, cols, [&](Index i, Index j) {
          const Real gate = std::min(Real{v[0](i, j)}, Real{limit});
          const Real up = std::clamp(Real{v[1](i, j)}, Real{-limit}, Real{limit});
          return (up + 1) * gate / (1 + std::exp(-Real{alpha} * gate));
        });
      },
      options_of_bends(rows, cols));
}

void check_limited_swiglu(Suite& suite, Index rows, Index cols) {
  const double limit = 1.5;
  suite.check(
      "limited_swiglu", [=](Tape&, const Vars& v) { return limited_swiglu(v[0], v[1], limit); },
      {apart(suite, rows, cols, 0), apart(suite, rows, cols, cols == 1 ? 0 : 1)},
      [=](const Matrices& v) {
        return build(rows, cols, [&](Index i, Index j) {
          return std::min(Real{v[0](i, j)}, Real{limit}) *
                 std::clamp(Real{v[1](i, j)}, Real{-limit}, Real{limit});
        });
      },
      options_of_bends(rows, cols));
}

}  // namespace

double lead_of_choice(const MixtureSettings& mixture, const DoubleMatrix& p, const DoubleMatrix& correction) {
  if (!mixture.corrected) return lead(p.array().log().matrix(), mixture.num_experts_per_tok);
  const std::vector<Real> sums = sums_of_groups(mixture, p, correction);
  DoubleMatrix groups(1, mixture.n_group);
  for (Index group = 0; group < mixture.n_group; ++group) {
    groups(0, group) = static_cast<double>(sums[static_cast<std::size_t>(group)]);
  }
  return 4.0 * std::min(lead(groups, mixture.topk_group),
                        lead(open_scores(mixture, p, correction), mixture.num_experts_per_tok));
}

void check_mixture(Suite& suite) {
  for (double alpha : {1.0, 1.702}) {
    check_clamped_swiglu(suite, 1, 1, alpha);
    check_clamped_swiglu(suite, 4, 7, alpha);
  }
  check_limited_swiglu(suite, 1, 1);
  check_limited_swiglu(suite, 4, 7);
  const std::pair<int, int> choices[] = {{1, 1}, {4, 1}, {5, 2}, {4, 4}};
  for (const auto& [experts, chosen] : choices) {
    MixtureSettings mixture;
    mixture.num_experts = experts;
    mixture.num_experts_per_tok = chosen;
    for (Index rows : {1, 6}) {
      for (bool normalised : {false, true}) {
        mixture.norm_topk_prob = normalised;
        check_mixture_case(suite, rows, mixture);
      }
      check_load_balancing(suite, rows, mixture);
    }
  }
  const int groups[][4] = {{3, 1, 1, 2}, {6, 2, 1, 2}, {6, 3, 2, 3}, {8, 2, 2, 3}};
  for (const auto& [experts, all, open, chosen] : groups) {
    MixtureSettings mixture;
    mixture.sigmoid_scores = mixture.corrected = true;
    mixture.routed_scaling_factor = 2.5;
    mixture.num_experts = experts;
    mixture.n_group = all;
    mixture.topk_group = open;
    mixture.num_experts_per_tok = chosen;
    for (bool normalised : {false, true}) {
      mixture.norm_topk_prob = normalised;
      check_sigmoid_mixture(suite, 4, mixture);
    }
  }
}

}  // namespace streambp::STREAMBP_REFERENCE
