// The frequencies of the reference's rotary embedding, type by type, at values that can be worked out by
// hand.
#include <cmath>
#include <gtest/gtest.h>
#include <numbers>
#include <stdexcept>

#include "reference/ops/ops.h"
#include "reference/rope_frequencies.h"

namespace streambp::reference {
namespace {

RopeSettings settings_of(RopeType type, double theta) {
  RopeSettings rope;
  rope.type = type;
  rope.theta = theta;
  return rope;
}

TEST(ReferenceRope, DefaultFrequenciesArePowersOfTheta) {
  const std::vector<double> f = rope_inverse_frequencies(settings_of(RopeType::kDefault, 500.0), 16, 7.0);
  ASSERT_EQ(f.size(), 8U);
  EXPECT_EQ(f[0], 1.0);
  EXPECT_DOUBLE_EQ(f[4], 1.0 / std::sqrt(500.0));
}

TEST(ReferenceRope, LinearDividesByTheFactor) {
  RopeSettings rope = settings_of(RopeType::kLinear, 10000.0);
  rope.factor = 8.0;
  const std::vector<double> f = rope_inverse_frequencies(rope, 4, 7.0);
  ASSERT_EQ(f.size(), 2U);
  EXPECT_DOUBLE_EQ(f[0], 1.0 / 8.0);
  EXPECT_DOUBLE_EQ(f[1], 1.0 / 800.0);
}

TEST(ReferenceRope, DynamicRaisesThetaBeyondTheContext) {
  RopeSettings rope = settings_of(RopeType::kDynamic, 10000.0);
  rope.factor = 2.0;
  rope.original_max_position_embeddings = 10;
  for (double length : {0.0, 4.0, 10.0}) {
    const std::vector<double> f = rope_inverse_frequencies(rope, 4, length);
    EXPECT_EQ(f[0], 1.0);
    EXPECT_DOUBLE_EQ(f[1], 1.0 / 100.0) << "length " << length;
  }
  // 2 * 15 / 10 - 1 = 2, and to the power 4 / (4 - 2) it makes theta 40000.
  const std::vector<double> f = rope_inverse_frequencies(rope, 4, 15.0);
  EXPECT_EQ(f[0], 1.0);
  EXPECT_DOUBLE_EQ(f[1], 1.0 / 200.0);
}

TEST(ReferenceRope, Llama3LeavesFastPairsAndSlowsSlowOnes) {
  RopeSettings rope = settings_of(RopeType::kDefault, 500.0);
  const std::vector<double> plain = rope_inverse_frequencies(rope, 16, 7.0);
  rope.type = RopeType::kLlama3;
  rope.factor = 8.0;
  rope.original_max_position_embeddings = 64;
  const std::vector<double> llama3 = rope_inverse_frequencies(rope, 16, 7.0);
  int kept = 0;
  int slowed = 0;
  for (std::size_t i = 0; i < 8; ++i) {
    const double wavelength = 2 * std::numbers::pi / plain[i];
    double expected = plain[i];
    if (wavelength > 64.0 / 1.0) {
      expected = plain[i] / 8.0;
      ++slowed;
    } else if (wavelength >= 64.0 / 4.0) {
      const double smooth = (64.0 / wavelength - 1.0) / (4.0 - 1.0);
      expected = (1 - smooth) * plain[i] / 8.0 + smooth * plain[i];
    } else {
      ++kept;
    }
    EXPECT_NEAR(llama3[i] / expected, 1.0, 1e-15) << "pair " << i;
  }
  EXPECT_TRUE(kept > 0 && slowed > 0 && kept + slowed < 8) << "the three ranges are not all covered";
}

/// Qwen2.5's settings: 64 pairs, of which 23.596 makes 32 turns over the context and 39.651 one.
RopeSettings qwen_yarn() {
  RopeSettings rope = settings_of(RopeType::kYarn, 1e6);
  rope.factor = 4.0;
  rope.original_max_position_embeddings = 32768;
  return rope;
}

TEST(ReferenceRope, YarnGoesFromKeptToSlowedPairs) {
  const std::vector<double> plain = rope_inverse_frequencies(settings_of(RopeType::kDefault, 1e6), 128, 7.0);
  RopeSettings rope = qwen_yarn();
  const std::vector<double> f = rope_inverse_frequencies(rope, 128, 7.0);
  for (std::size_t i : {0U, 10U, 23U}) EXPECT_DOUBLE_EQ(f[i], plain[i]) << "pair " << i;
  // 8 of the 17 steps from 23 to 40: 8/17 / 4 + 9/17.
  EXPECT_DOUBLE_EQ(f[31], plain[31] * 11.0 / 17.0);
  for (std::size_t i : {40U, 50U, 63U}) EXPECT_DOUBLE_EQ(f[i], plain[i] / 4.0) << "pair " << i;

  rope.truncate = false;
  const std::vector<double> exact = rope_inverse_frequencies(rope, 128, 7.0);
  const double low = 128 * std::log(32768 / (64 * std::numbers::pi)) / (2 * std::log(1e6));
  const double high = 128 * std::log(32768 / (2 * std::numbers::pi)) / (2 * std::log(1e6));
  EXPECT_NEAR(low, 23.595948, 1e-6);
  EXPECT_NEAR(high, 39.650881, 1e-6);
  const double s = (31 - low) / (high - low);
  EXPECT_NEAR(exact[31] / plain[31], s / 4 + 1 - s, 1e-14);
  EXPECT_GT(std::abs(exact[31] - f[31]) / f[31], 1e-3);
}

TEST(ReferenceRope, YarnEndsTheRampAtTheLastEntry) {
  // All pairs make more than one turn over so long a context: pair 6, of which there are 2, would make one.
  RopeSettings rope = settings_of(RopeType::kYarn, 100.0);
  rope.factor = 4.0;
  rope.original_max_position_embeddings = 6e6;
  rope.beta_fast = 1e6;
  const std::vector<double> f = rope_inverse_frequencies(rope, 4, 7.0);
  EXPECT_DOUBLE_EQ(f[0], 1.0);
  EXPECT_DOUBLE_EQ(f[1], 0.1 * (1.0 / 3.0 / 4.0 + 2.0 / 3.0));
}

TEST(ReferenceRope, YarnWithARampOfNoLength) {
  // Both ends are below the first pair, so that the ramp is from 0 to 0.001.
  RopeSettings rope = qwen_yarn();
  rope.original_max_position_embeddings = 6;
  const std::vector<double> f = rope_inverse_frequencies(rope, 8, 7.0);
  EXPECT_DOUBLE_EQ(f[0], 1.0);
  for (std::size_t i : {1U, 2U, 3U}) {
    EXPECT_DOUBLE_EQ(f[i], std::pow(1e6, -2.0 * static_cast<double>(i) / 8.0) / 4.0) << "pair " << i;
  }
}

TEST(ReferenceRope, LongropeHasOneFactorForEveryPair) {
  RopeSettings rope = settings_of(RopeType::kLongrope, 10000.0);
  rope.original_max_position_embeddings = 8;
  rope.short_factor = {1.0, 2.0};
  rope.long_factor = {4.0, 5.0};
  for (double length : {0.0, 8.0}) {
    const std::vector<double> f = rope_inverse_frequencies(rope, 4, length);
    EXPECT_DOUBLE_EQ(f[0], 1.0) << "length " << length;
    EXPECT_DOUBLE_EQ(f[1], 1.0 / 200.0) << "length " << length;
  }
  const std::vector<double> f = rope_inverse_frequencies(rope, 4, 9.0);
  EXPECT_DOUBLE_EQ(f[0], 1.0 / 4.0);
  EXPECT_DOUBLE_EQ(f[1], 1.0 / 500.0);
}

TEST(ReferenceRope, TurnsAndStretchesOnlyTheFirstEntriesOfAHead) {
  Tape tape;
  Matrix x(1, 8);
  x << 1, 2, 3, 4, 5, 6, 7, 8;
  const RopeOptions quarter_turn{{std::numbers::pi / 2}, 4, 3.0};
  const Matrix y = rope(tape.leaf(x), {1.0}, quarter_turn).value();
  Matrix expected(1, 8);
  expected << -6, 3, 3, 4, -18, 15, 7, 8;
  EXPECT_LE((y - expected).cwiseAbs().maxCoeff(), 1e-14) << y;
}

TEST(ReferenceRope, RefusesSettingsThatDoNotFit) {
  const RopeSettings plain = settings_of(RopeType::kDefault, 500.0);
  for (int rotary_dim : {-2, 0, 3}) {
    EXPECT_THROW(rope_inverse_frequencies(plain, rotary_dim, 7.0), std::invalid_argument) << rotary_dim;
  }
  for (RopeType type : {RopeType::kDynamic, RopeType::kLlama3, RopeType::kYarn, RopeType::kLongrope}) {
    EXPECT_THROW(rope_inverse_frequencies(settings_of(type, 500.0), 4, 7.0), std::invalid_argument);
  }
  RopeSettings dynamic = settings_of(RopeType::kDynamic, 500.0);
  dynamic.original_max_position_embeddings = 10;
  EXPECT_THROW(rope_inverse_frequencies(dynamic, 2, 7.0), std::invalid_argument);
  RopeSettings longrope = settings_of(RopeType::kLongrope, 500.0);
  longrope.original_max_position_embeddings = 10;
  longrope.short_factor = {1.0, 1.0};
  longrope.long_factor = {1.0};
  EXPECT_THROW(rope_inverse_frequencies(longrope, 4, 7.0), std::invalid_argument);
  RopeSettings linear = settings_of(RopeType::kLinear, 500.0);
  linear.factor = 0.0;
  EXPECT_THROW(rope_inverse_frequencies(linear, 4, 7.0), std::invalid_argument);
}

}  // namespace
}  // namespace streambp::reference
