// What the tests of the reference's model share: a small model, two sequences for it, and comparisons.
#pragma once

#include <cmath>
#include <cstdio>
#include <functional>
#include <gtest/gtest.h>
#include <initializer_list>
#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

#include "reference/model.h"
#include "reference/objectives/objectives.h"

namespace streambp::reference {

inline constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

inline Matrix row(std::initializer_list<double> entries) {
  Matrix result(1, static_cast<Index>(entries.size()));
  Index j = 0;
  for (double entry : entries) result(0, j++) = entry;
  return result;
}

inline ModelConfig small_model() {
  ModelConfig config;
  config.vocab_size = 13;
  config.hidden_size = 10;
  config.intermediate_size = 9;
  config.num_hidden_layers = 2;
  config.num_attention_heads = 4;
  config.num_key_value_heads = 2;
  config.head_dim = 6;
  config.qkv_bias = true;
  config.qk_norm = true;
  return config;
}

inline const Sequence kSequence = {
    {3, 1, 4, 1, 5, 9, 2}, {0, 1, 2, 3, 4, 5, 6}, {1, 4, 1, 5, 9, 2, kNoTarget}};
inline const Sequence kOther = {{7, 12, 0}, {0, 1, 2}, {kNoTarget, 0, 8}};

inline double relative_error(const Matrix& actual, const Matrix& expected) {
  return (actual - expected).norm() / expected.norm();
}

inline const std::vector<Sequence> kBatch = {kSequence, kOther};

/// The log-probabilities of all tokens of a batch.
inline std::vector<double> scores(const ModelConfig& config, const Weights& weights,
                                  const std::vector<Sequence>& batch = kBatch) {
  return evaluate(config, weights, batch, sft(1.0)).log_probabilities;
}

/// The logits of the given hidden states.
inline Matrix logits_of(const ModelConfig& config, const Weights& weights, const Matrix& hidden) {
  Tape tape;
  Parameters parameters;
  for (const auto& [name, weight] : weights) parameters.emplace(name, tape.leaf(weight));
  return logits(config, parameters, tape.leaf(hidden)).value();
}

inline double largest_difference(const std::vector<double>& a, const std::vector<double>& b) {
  EXPECT_EQ(a.size(), b.size());
  double largest = 0.0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (!(std::abs(a[i] - b[i]) <= largest)) largest = std::abs(a[i] - b[i]);
  }
  return largest;
}

/// Prints the difference, and fails above 1e-13 or with a NaN.
inline void expect_same(const std::vector<double>& a, const std::vector<double>& b) {
  const double difference = largest_difference(a, b);
  std::printf("largest difference %.1e\n", difference);
  EXPECT_FALSE(!(difference <= 1e-13)) << difference;
}

/// The same of gradients, relative and parameter by parameter.
inline void expect_same(const Weights& actual, const Weights& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (const auto& [name, gradient] : expected) {
    const double error = relative_error(actual.at(name), gradient);
    EXPECT_FALSE(!(error <= 1e-13)) << name << " reached " << error;
  }
}

/// Whether a config that `spoil` has changed is refused with a message that mentions `mentioned`.
inline void expect_refused(ModelConfig config, const std::function<void(ModelConfig&)>& spoil,
                           const std::string& mentioned) {
  spoil(config);
  try {
    parameter_shapes(config);
    ADD_FAILURE() << "accepted; expected a refusal that mentions " << mentioned;
  } catch (const std::invalid_argument& error) {
    EXPECT_NE(std::string(error.what()).find(mentioned), std::string::npos) << error.what();
  }
}

}  // namespace streambp::reference
