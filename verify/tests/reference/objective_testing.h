// What the tests of the reference's objectives share: running one on given numbers, and small batches.
#pragma once

#include <cmath>
#include <gtest/gtest.h>
#include <vector>

#include "reference/objectives/objectives.h"
#include "reference/ops/ops.h"
#include "verify/tests/reference/model_testing.h"

namespace streambp::reference {

using Numbers = std::vector<double>;

/// What an objective makes of given per-token numbers. `entropies` also stand for the mean log-probabilities
/// and the divergences, of which no objective wants more than one.
struct Outcome {
  double loss = 0.0;
  Numbers d_lp, d_entropies, d_values;
};

inline Outcome outcome(const TokenObjective& objective, const Numbers& lp, const Numbers& entropies = {},
                       const Numbers& values = {}) {
  Tape tape;
  TokenValues heads;
  heads.log_probabilities = constant(tape, lp);
  heads.entropies = heads.mean_log_probabilities = heads.divergences = constant(tape, entropies);
  heads.values = constant(tape, values);
  const Var loss = objective.loss(tape, heads);
  tape.backward(loss, Matrix::Ones(1, 1));
  const auto gradient = [](const Var& x) {
    return Numbers(x.gradient().data(), x.gradient().data() + x.gradient().size());
  };
  return {loss.value()(0, 0), gradient(heads.log_probabilities), gradient(heads.entropies),
          gradient(heads.values)};
}

inline void expect_near(const Numbers& actual, const Numbers& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (std::size_t i = 0; i < actual.size(); ++i) {
    EXPECT_FALSE(!(std::abs(actual[i] - expected[i]) <= 1e-14))
        << "entry " << i << " is " << actual[i] << " instead of " << expected[i];
  }
}

inline void expect_near(double actual, double expected) {
  expect_near(Numbers{actual}, Numbers{expected});
}

/// One pair: a chosen sequence of two tokens and a rejected one of one.
inline const TokenLayout kPair = {2, {0, 0, 1}};

/// Three sequences: of two tokens, of one, and of none.
inline GrpoInputs small_group() {
  GrpoInputs inputs;
  inputs.layout = {3, {0, 0, 1}};
  inputs.advantages = {1.0, 1.0, -2.0};
  return inputs;
}

/// Three tokens: two of the response, the last two with values. What the masks leave out is NaN.
inline PpoInputs small_episode() {
  PpoInputs inputs;
  inputs.policy_mask = {1, 1, 0};
  inputs.old_log_probabilities = {-1 - std::log(2.0), -2, kNaN};
  inputs.advantages = {1, -2, kNaN};
  inputs.reference_log_probabilities = {-1, -2 - std::log(2.0), kNaN};
  inputs.value_mask = {0, 1, 1};
  inputs.old_values = {kNaN, 1.0, 2.0};
  inputs.returns = {kNaN, 3.0, 2.2};
  return inputs;
}

}  // namespace streambp::reference
