// Checks of the objectives: each against a second version of its formula, loop by loop in extended precision,
// and differentiated by everything that it takes from the heads.
//
// The batch is five tokens in six sequences, two of which have none, or seven tokens in four, where every
// sequence must have some. Log-ratios lie on a list that reaches every branch of the clipped losses and stays
// clear of the kinks between them, by more than the steps of the differences.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "reference/check/check_suite.h"
#include "reference/objectives/objectives.h"

namespace streambp::STREAMBP_REFERENCE {

using Numbers = std::vector<Number>;

inline const TokenLayout kSparse = {6, {0, 0, 2, 3, 5}};
inline const TokenLayout kDense = {4, {0, 0, 1, 2, 2, 2, 3}};

inline Numbers numbers(const DoubleMatrix& x) {
  return {x.data(), x.data() + x.size()};
}

/// What is given to an objective is a double in either build.
inline Numbers in_doubles(Numbers x) {
  for (Number& entry : x) entry = static_cast<double>(entry);
  return x;
}

inline Numbers plus(Numbers x, const Numbers& y) {
  for (std::size_t i = 0; i < x.size(); ++i) x[i] += y[i];
  return in_doubles(x);
}

/// The log-probabilities of every sequence summed.
inline Numbers sums_in_doubles(const TokenLayout& layout, const DoubleMatrix& log_probabilities) {
  return in_doubles(sum_by_sequence(layout, numbers(log_probabilities)));
}

inline Real entry(const Matrices& x, std::size_t input, std::size_t t) {
  return x[input](static_cast<Index>(t), 0);
}

inline Real sigma(Real z) {
  return 1 / (1 + std::exp(-z));
}

inline DoubleMatrix scalar(Real x) {
  return DoubleMatrix::Constant(1, 1, static_cast<double>(x));
}

/// The per-sequence sums of input 0, and the numbers of tokens.
struct Sums {
  Sums(const Matrices& x, const TokenLayout& layout)
      : sum(static_cast<std::size_t>(layout.sequences)), count(sum.size()) {
    for (std::size_t t = 0; t < layout.tokens(); ++t) {
      const auto s = static_cast<std::size_t>(layout.sequence_of_token[t]);
      sum[s] += entry(x, 0, t);
      count[s] += 1;
    }
  }
  Real mean(std::size_t s) const { return sum[s] / std::max<Real>(count[s], 1); }
  std::size_t pairs() const { return sum.size() / 2; }

  std::vector<Real> sum, count;
};

/// Puts the inputs into the members of TokenValues that `fill` says, and checks that another number of tokens
/// is refused.
inline void check_objective(Suite& suite, const std::string& name, const TokenObjective& objective,
                            const Matrices& inputs, const std::function<TokenValues(const Vars&)>& fill,
                            const Expected& expected, bool knows_its_size = true) {
  CheckOptions options;
  options.length_scales.assign(inputs.size(), 0.2);
  Matrices longer = inputs;
  for (DoubleMatrix& input : longer) input = DoubleMatrix::Constant(input.rows() + 1, 1, -1.0);
  if (knows_its_size) options.refused = {longer};
  suite.check(
      name, [&](Tape& tape, const Vars& x) { return objective.loss(tape, fill(x)); }, inputs, expected,
      options);
}

inline TokenValues log_probabilities_only(const Vars& x) {
  TokenValues heads;
  heads.log_probabilities = x[0];
  return heads;
}

inline DoubleMatrix some_log_probabilities(Suite& suite, const TokenLayout& layout) {
  return suite.matrix(static_cast<Index>(layout.tokens()), 1, -3.0, -0.3);
}

/// Those of objectives_grpo.h and objectives_policy.h.
void check_policy_objectives(Suite& suite);

}  // namespace streambp::STREAMBP_REFERENCE
