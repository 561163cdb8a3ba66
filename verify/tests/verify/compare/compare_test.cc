// The verdict on a file of gradients.
#include "verify/compare/compare.h"

#include <cmath>
#include <functional>
#include <gtest/gtest.h>
#include <limits>

#include "verify/tests/verify/compare/testing.h"

namespace streambp::verify {
namespace {

constexpr const char* kNorm = "model.norm.weight";

Tensors random_truth() {
  return {{kEmbedding, random_tensor({11, 6}, 1)},
          {kProjection, random_tensor({8, 6}, 2) * 1e-3},
          {kNorm, random_tensor({6}, 3)}};
}

Tensors mapped(const Tensors& tensors, const std::function<at::Tensor(const at::Tensor&)>& f) {
  Tensors result;
  for (const auto& [name, tensor] : tensors) result.emplace(name, f(tensor));
  return result;
}

Judging within(double tolerance) {
  Judging judging;
  judging.tolerance = tolerance;
  return judging;
}

Verdict verdict_of(const Tensors& gradients, const Tensors& truth, const Judging& judging = {}) {
  return compare_gradients(gradients, truth, judging).verdict;
}

TEST(Compare, TheTruthIsExactInEveryDtype) {
  const Tensors truth = random_truth();
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf}) {
    const Comparison comparison =
        compare_gradients(mapped(truth, [=](const at::Tensor& t) { return t.to(dtype); }), truth);
    EXPECT_EQ(comparison.verdict, Verdict::kExact)
        << c10::toString(dtype) << " " << comparison.findings.front().of.error;
    EXPECT_EQ(comparison.dtype, dtype);
    EXPECT_FALSE(comparison.differs) << c10::toString(dtype) << " " << comparison.factor;
    EXPECT_EQ(comparison.tolerance == 1e-10, dtype == at::kDouble) << comparison.tolerance;
  }
}

TEST(Compare, TheNarrowestDtypeSetsTheLimits) {
  Tensors gradients = random_truth();
  gradients[kNorm] = gradients[kNorm].to(at::kFloat);
  EXPECT_EQ(compare_gradients(gradients, random_truth()).dtype, at::kFloat);
  EXPECT_EQ(verdict_of(gradients, random_truth(), within(1e-10)), Verdict::kWrong);
  Judging wide;
  wide.dtype = at::kDouble;
  EXPECT_EQ(verdict_of(gradients, random_truth(), wide), Verdict::kWrong);
}

TEST(Compare, OneFactorForAllIsAScale) {
  const Tensors truth = random_truth();
  for (const double c : {0.9, 65.0 / 66.0, 4.0, -1.0, 1e-6}) {
    const Comparison comparison =
        compare_gradients(mapped(truth, [=](const at::Tensor& t) { return t * c; }), truth);
    EXPECT_EQ(comparison.verdict, Verdict::kScaled) << c;
    EXPECT_NEAR(comparison.factor, c, 1e-12 * std::abs(c));
    for (const ParameterFinding& finding : comparison.findings) {
      EXPECT_NEAR(finding.factor, c, 1e-12 * std::abs(c));
      EXPECT_NEAR(finding.cosine, c > 0 ? 1.0 : -1.0, 1e-12);
    }
  }
}

TEST(Compare, AFactorOfOneParameterOnlyIsWrong) {
  Tensors gradients = mapped(random_truth(), [](const at::Tensor& t) { return t * 0.9; });
  gradients[kProjection] = random_truth()[kProjection] * 0.8;
  const Comparison comparison = compare_gradients(gradients, random_truth());
  EXPECT_EQ(comparison.verdict, Verdict::kWrong);
  EXPECT_EQ(comparison.findings.front().of.name, kProjection);
  EXPECT_NEAR(comparison.findings.front().factor, 0.8, 1e-12);
}

TEST(Compare, AScaleAndASmallErrorIsWrong) {
  Tensors gradients = mapped(random_truth(), [](const at::Tensor& t) { return t * 0.9; });
  gradients[kNorm][0] += 1e-6;
  EXPECT_EQ(verdict_of(gradients, random_truth()), Verdict::kWrong);
  EXPECT_EQ(verdict_of(gradients, random_truth(), within(1e-4)), Verdict::kScaled);
}

TEST(Compare, AFactorIsTakenOutOfTheErrorsOnlyWhereHalfOfThemVanish) {
  for (const int agreeing : {2, 3}) {
    Tensors truth, gradients;
    for (int i = 0; i < 5; ++i) {
      const std::string name = std::to_string(i);
      truth[name] = at::ones({4}, at::kDouble);
      // What is added stands at a right angle to the truth: every factor is 0.75.
      const double added = i < agreeing ? 0.0 : 0.1;
      gradients[name] = truth[name] * 0.75 + at::tensor({added, -added, added, -added}, at::kDouble);
    }
    const Comparison comparison = compare_gradients(gradients, truth);
    EXPECT_EQ(comparison.verdict, Verdict::kWrong);
    EXPECT_NEAR(comparison.factor, 0.75, 1e-12);
    for (const ParameterFinding& finding : comparison.findings)
      EXPECT_EQ(finding.judged, agreeing == 3 ? finding.residual : finding.of.error) << agreeing;
  }
}

TEST(Compare, AnErrorAlongTheTruthIsABiasWithinTheNoise) {
  Tensors truth{{kNorm, random_tensor({64}, 1)}};
  for (int i = 0; i < 8; ++i)
    truth["model.layers." + std::to_string(i) + ".mlp.up_proj.weight"] = random_tensor({40, 30}, 10 + i);
  // Noise of a fifth of each gradient, in all directions.
  const auto noisy = [&](uint64_t seed) {
    Tensors gradients = truth;
    for (auto& [name, gradient] : gradients) {
      at::Tensor off = random_tensor(gradient.sizes(), seed++);
      off = off - gradient * ((off * gradient).sum() / gradient.square().sum());
      gradient = (gradient + off * (0.19 * norm_of(gradient) / norm_of(off))).to(at::kBFloat16);
    }
    return gradients;
  };
  Judging judging;
  for (uint64_t run = 0; run < 3; ++run) {
    judging.noise.push_back(noise_sample(noisy(100 * (run + 1)), truth));
    EXPECT_EQ(verdict_of(noisy(900), truth, judging), Verdict::kExact);
    Tensors biased = noisy(900);
    biased[kNorm] = (truth.at(kNorm) * 0.8).to(at::kBFloat16);
    const Comparison comparison = compare_gradients(biased, truth, judging);
    EXPECT_TRUE(comparison.bias_suspected);
    EXPECT_EQ(comparison.verdict, run < 2 ? Verdict::kExact : Verdict::kWrong);
    EXPECT_EQ(comparison.notes.empty(), run < 2);
    const Power power = power_of(comparison);
    EXPECT_TRUE(power.middle > 0.5 && power.middle <= power.worst && power.worst < 0.72) << power.worst;
  }
}

TEST(Compare, AFlippedSignIsWrongAndNamed) {
  Tensors gradients = random_truth();
  gradients[kProjection].neg_();
  const Comparison comparison = compare_gradients(gradients, random_truth());
  EXPECT_EQ(comparison.verdict, Verdict::kWrong);
  EXPECT_EQ(comparison.findings.front().of.name, kProjection);
  EXPECT_NEAR(comparison.findings.front().of.error, 2.0, 1e-12);
  EXPECT_NEAR(comparison.findings.front().cosine, -1.0, 1e-12);
}

TEST(Compare, NaNIsWrongWhateverTheTolerance) {
  for (const double bad :
       {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
    Tensors gradients = random_truth();
    gradients[kNorm][2] = bad;
    const Comparison comparison = compare_gradients(gradients, random_truth(), within(1e300));
    EXPECT_EQ(comparison.verdict, Verdict::kWrong);
    EXPECT_EQ(comparison.findings.front().of.name, kNorm);
    EXPECT_EQ(comparison.findings.front().of.problem, "holds NaN or infinity");
  }
}

TEST(Compare, ZerosAreWrong) {
  const Tensors zeros = mapped(random_truth(), [](const at::Tensor& t) { return at::zeros_like(t); });
  EXPECT_EQ(verdict_of(zeros, random_truth()), Verdict::kWrong);
  EXPECT_EQ(verdict_of(random_truth(), zeros), Verdict::kWrong);
  EXPECT_EQ(verdict_of(zeros, zeros), Verdict::kExact);
}

TEST(Compare, NamesAndShapesHaveToBeTheModels) {
  Tensors gradients = random_truth();
  gradients.erase(kNorm);
  gradients.emplace("model.extra.weight", at::zeros({2}));
  const Comparison renamed = compare_gradients(gradients, random_truth(), within(1e300));
  EXPECT_EQ(renamed.verdict, Verdict::kIncomplete);
  EXPECT_EQ(renamed.missing, std::vector<std::string>{kNorm});
  EXPECT_EQ(renamed.surplus, std::vector<std::string>{"model.extra.weight"});

  gradients = random_truth();
  gradients[kProjection] = gradients[kProjection].t();
  EXPECT_EQ(verdict_of(gradients, random_truth(), within(1e300)), Verdict::kIncomplete);
  gradients = random_truth();
  gradients[kProjection] = gradients[kProjection].to(at::kLong);
  EXPECT_EQ(verdict_of(gradients, random_truth(), within(1e300)), Verdict::kIncomplete);
}

TEST(ExplainFactor, NamesTheNormaliserThatFits) {
  const std::vector<Normaliser> counts{{"scored tokens", 65.0}, {"tokens", 80.0}, {"rows", 3.0}};
  const std::vector<std::string> by_tokens = explain_factor(65.0 / 80.0, 65.0, counts, 1e-10);
  ASSERT_EQ(by_tokens.size(), 1u);
  EXPECT_NE(by_tokens[0].find("tokens = 80 instead of 65"), std::string::npos) << by_tokens[0];
  const std::vector<std::string> averaged = explain_factor(0.25, 65.0, counts, 1e-10);
  ASSERT_EQ(averaged.size(), 1u);
  EXPECT_NE(averaged[0].find("averaged over 4"), std::string::npos) << averaged[0];
  EXPECT_TRUE(explain_factor(0.9137, 65.0, counts, 1e-10).empty());
  EXPECT_TRUE(explain_factor(std::numeric_limits<double>::quiet_NaN(), 65.0, counts, 1.0).empty());
}

/// A gradient that is rounding alone is held against that, and the others' limit stays what it is.
TEST(Compare, TheLimitIsNotThatOfWhatIsLostInRounding) {
  Judging judging;
  Tensors gradients = random_truth();
  judging.noise = {noise_sample(gradients, gradients)};
  judging.noise.front().at(kProjection).error = 2.0;
  gradients[kProjection] = gradients[kProjection] * 2.5;
  const Comparison comparison = compare_gradients(gradients, random_truth(), judging);
  EXPECT_EQ(comparison.verdict, Verdict::kExact);
  EXPECT_EQ(comparison.tolerance, 1e-10);
}

/// Zeros of an indexer, which is never trained, are no surplus; anything else of it is.
TEST(Compare, ZerosOfWhatIsNotTrainedAreLeftOut) {
  Golden golden = open_golden("deepseek-v32", "deepseek-v32-sft-b1");
  const std::string indexer = "model.layers.0.self_attn.indexer.k_norm.weight";
  Tensors gradients = golden.gradients;
  gradients[indexer] = at::zeros({8}, at::kDouble);
  EXPECT_TRUE(is_exact(golden, gradients));
  gradients[indexer][0] = 1e-300;
  EXPECT_FALSE(is_exact(golden, gradients));
  gradients.erase(indexer);
  gradients["model.layers.0.self_attn.unheard.weight"] = at::zeros({8}, at::kDouble);
  EXPECT_FALSE(is_exact(golden, gradients));
}

}  // namespace
}  // namespace streambp::verify
