// Verdicts on gradients with the noise of a low precision, synthetic and of golden cases.
#include "verify/compare/noise.h"

#include <cmath>
#include <filesystem>
#include <fmt/format.h>
#include <functional>
#include <gtest/gtest.h>
#include <limits>

#include "streambp/model/config/rope_frequencies.h"
#include "streambp/ops/transformers_rounding.h"
#include "verify/compare/judge.h"
#include "verify/compare/truth.h"
#include "verify/evaluation.h"
#include "verify/tests/verify/compare/testing.h"

namespace streambp::verify {
namespace {

constexpr int kParameters = 40;

std::string parameter_name(uint64_t i) {
  return fmt::format("p{}", i);
}

/// A model's worth of parameters, of sizes of their own.
Tensors truth_of_many() {
  Tensors truth;
  for (uint64_t i = 0; i < kParameters; ++i)
    truth.emplace(parameter_name(i), random_tensor({9, 7}, i) * std::pow(10.0, -static_cast<double>(i % 4)));
  return truth;
}

/// The truth times `factor`, and relative noise of `size` in each parameter.
Tensors noisy(const Tensors& truth, double size, uint64_t seed, double factor = 1.0) {
  Tensors result;
  for (const auto& [name, t] : truth) {
    const at::Tensor noise = random_tensor(t.sizes(), seed++);
    result.emplace(name, (t + noise * (size * norm_of(t) / norm_of(noise))) * factor);
  }
  return result;
}

Judging measured(at::ScalarType dtype, double size) {
  Judging judging;
  judging.dtype = dtype;
  judging.noise = {noise_sample(noisy(truth_of_many(), size, 1000), truth_of_many())};
  return judging;
}

TEST(CompareNoise, GradientsAsNoisyAsWhatWasMeasuredAreExact) {
  const Tensors truth = truth_of_many();
  for (const auto& [dtype, size] : {std::pair{at::kBFloat16, 0.066}, {at::kFloat, 2e-6}}) {
    const Comparison comparison = compare_gradients(noisy(truth, size, 2000), truth, measured(dtype, size));
    EXPECT_EQ(comparison.verdict, Verdict::kExact) << size;
    EXPECT_NEAR(comparison.middle_ratio, 1.0, 0.1);
    EXPECT_LT(comparison.fit.low, 1.0);
    EXPECT_GT(comparison.fit.high, 1.0);
    // Half of it is fine, twice of it everywhere is not, nor is 4 x in one parameter.
    EXPECT_EQ(compare_gradients(noisy(truth, 0.5 * size, 3000), truth, measured(dtype, size)).verdict,
              Verdict::kExact);
    EXPECT_EQ(compare_gradients(noisy(truth, 2.0 * size, 4000), truth, measured(dtype, size)).verdict,
              Verdict::kWrong);
    Tensors one = noisy(truth, size, 5000);
    one["p7"] = noisy(truth, 4.0 * size, 6000)["p7"];
    const Comparison found = compare_gradients(one, truth, measured(dtype, size));
    EXPECT_EQ(found.verdict, Verdict::kWrong);
    EXPECT_EQ(found.findings.front().of.name, "p7");
  }
}

TEST(CompareNoise, AFactorIsFoundBelowTheNoise) {
  const Tensors truth = truth_of_many();
  for (const double n : {20.0, 12.0}) {
    const double factor = (n - 1.0) / n;
    const Comparison comparison =
        compare_gradients(noisy(truth, 0.066, 7000, factor), truth, measured(at::kBFloat16, 0.066));
    EXPECT_EQ(comparison.verdict, Verdict::kScaled) << n;
    EXPECT_LT(comparison.fit.low, factor);
    EXPECT_GT(comparison.fit.high, factor);
  }
  for (const double n : {1e4, 1e5}) {
    const double factor = (n - 1.0) / n;
    const Comparison comparison =
        compare_gradients(noisy(truth, 1e-6, 8000, factor), truth, measured(at::kFloat, 1e-6));
    EXPECT_EQ(comparison.verdict, Verdict::kScaled) << n;
    EXPECT_NEAR(comparison.factor, factor, 1e-6);
  }
}

TEST(CompareNoise, AFactorThatCorrectArithmeticHasByItselfIsNone) {
  const Tensors truth = truth_of_many();
  Judging judging;
  judging.dtype = at::kBFloat16;
  judging.noise = {noise_sample(noisy(truth, 0.01, 1000, 1.02), truth)};
  EXPECT_EQ(compare_gradients(noisy(truth, 0.01, 2000, 0.99), truth, judging).verdict, Verdict::kExact);
  EXPECT_EQ(compare_gradients(noisy(truth, 0.01, 2000, 0.8), truth, judging).verdict, Verdict::kScaled);
}

TEST(CompareNoise, WrongParametersDoNotMoveTheFactor) {
  const Tensors truth = truth_of_many();
  Tensors gradients = noisy(truth, 1e-12, 9000, 0.75);
  for (uint64_t i = 0; i < kParameters / 3; ++i) gradients[parameter_name(i)].neg_();
  const Comparison comparison = compare_gradients(gradients, truth);
  EXPECT_EQ(comparison.verdict, Verdict::kWrong);
  EXPECT_NEAR(comparison.factor, 0.75, 1e-10);
  int beyond = 0;
  for (const ParameterFinding& finding : comparison.findings) beyond += finding.within() ? 0 : 1;
  EXPECT_EQ(beyond, kParameters / 3);
}

TEST(CompareNoise, WhatATieLeavesOpenIsUndecided) {
  const Tensors truth = truth_of_many();
  Tensors gradients = noisy(truth, 0.02, 100);
  gradients["p3"] = noisy(truth, 0.6, 200)["p3"];
  Judging judging = measured(at::kBFloat16, 0.02);
  EXPECT_EQ(compare_gradients(gradients, truth, judging).verdict, Verdict::kWrong);
  judging.unsettled = {"p3"};
  EXPECT_EQ(compare_gradients(gradients, truth, judging).verdict, Verdict::kUndecided);
  gradients["p4"] = noisy(truth, 0.6, 300)["p4"];
  EXPECT_EQ(compare_gradients(gradients, truth, judging).verdict, Verdict::kWrong);
  gradients = noisy(truth, 0.02, 100);
  gradients["p3"][0][0] = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(compare_gradients(gradients, truth, judging).verdict, Verdict::kWrong);
}

TEST(CompareNoise, WhereTheTruthIsZeroRoundingErrorsAreAllowed) {
  Tensors truth = truth_of_many();
  truth["p0"].zero_();
  Tensors gradients = noisy(truth, 1e-6, 100);
  gradients["p0"].fill_(1e-9);
  EXPECT_EQ(compare_gradients(gradients, truth, measured(at::kFloat, 1e-6)).verdict, Verdict::kExact);
  gradients["p0"].fill_(1e-3);
  EXPECT_EQ(compare_gradients(gradients, truth, measured(at::kFloat, 1e-6)).verdict, Verdict::kWrong);
  // Eight units in the last place of a typical entry, which is about 0.01 here: in bfloat16 0.0003.
  EXPECT_EQ(compare_gradients(gradients, truth, measured(at::kBFloat16, 1e-6)).verdict, Verdict::kWrong);
  gradients["p0"].fill_(2e-4);
  EXPECT_EQ(compare_gradients(gradients, truth, measured(at::kBFloat16, 1e-6)).verdict, Verdict::kExact);
}

CompareReport judged(const Golden& golden, const std::function<at::Tensor(const at::Tensor&)>& change) {
  Tensors gradients;
  for (const auto& [name, gradient] : golden.gradients) gradients.emplace(name, change(gradient));
  Truth truth = open_truth(golden.options);
  return judge(truth, golden.options, gradients);
}

/// The project's own gradients of a golden case's batch in `dtype`, by checkpointing.
Tensors gradients_in(const Golden& golden, at::ScalarType dtype, double factor = 1.0) {
  Truth low = open_truth(golden.options, dtype);
  Settings settings;
  settings.method = Method::kTiled;
  settings.chunk = 5;
  Tensors gradients = evaluate(low.model, low.batch, *low.objective, settings).gradients;
  for (auto& [name, gradient] : gradients) gradient.mul_(factor);
  return gradients;
}

TEST(CompareJudge, GoldenGradientsRoundedToALowPrecision) {
  for (const auto& [model, name] : {std::pair{"qwen3", "qwen3-sft-b3_left"},
                                    {"gemma3", "gemma3-sft-b1"},
                                    {"qwen3-moe", "qwen3-moe-sft-b1"}}) {
    const Golden golden = open_golden(model, name);
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      const CompareReport report = judged(golden, [=](const at::Tensor& g) { return g.to(dtype); });
      EXPECT_EQ(report.comparison.verdict, Verdict::kExact) << name << " " << c10::toString(dtype);
      const CompareReport widened =
          judged(golden, [=](const at::Tensor& g) { return g.to(dtype).to(at::kDouble); });
      EXPECT_EQ(widened.comparison.verdict, Verdict::kUndecided) << name << " " << c10::toString(dtype);
      EXPECT_EQ(widened.comparison.dtype, dtype) << name;
    }
    const CompareReport scaled =
        judged(golden, [](const at::Tensor& g) { return (g * (9999.0 / 10000.0)).to(at::kFloat); });
    EXPECT_EQ(scaled.comparison.verdict, Verdict::kScaled) << name;
  }
}

TEST(CompareJudge, GradientsComputedInALowPrecision) {
  const Golden golden = open_golden("gemma2", "gemma2-sft-b3_right");
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    Truth truth = open_truth(golden.options);
    const CompareReport report = judge(truth, golden.options, gradients_in(golden, dtype));
    EXPECT_EQ(report.comparison.verdict, Verdict::kExact) << c10::toString(dtype);
    EXPECT_GE(report.noise_runs, 1);
    Truth again = open_truth(golden.options);
    EXPECT_EQ(judge(again, golden.options, gradients_in(golden, dtype, 0.9)).comparison.verdict,
              Verdict::kScaled)
        << c10::toString(dtype);
  }
}

TEST(CompareJudge, WideGradientsOfNarrowArithmetic) {
  Golden golden = open_golden("qwen3", "qwen3-sft-b3_left");
  Tensors gradients = gradients_in(golden, at::kBFloat16);
  for (auto& [name, gradient] : gradients) gradient = gradient.to(at::kFloat) * (1.0F + 0x1p-20F);
  Truth truth = open_truth(golden.options);
  const CompareReport guessed = judge(truth, golden.options, gradients);
  EXPECT_EQ(guessed.comparison.verdict, Verdict::kUndecided);
  EXPECT_EQ(guessed.comparison.dtype, at::kBFloat16);
  golden.options.compute_dtype = at::kBFloat16;
  Truth again = open_truth(golden.options);
  EXPECT_EQ(judge(again, golden.options, gradients).comparison.verdict, Verdict::kExact);
}

/// What explains wrong gradients is looked for under those weights.
TEST(CompareJudge, LeavesTheWeightsThatTheVerdictIsAbout) {
  const Golden golden = open_golden("qwen3", "qwen3-sft-b1");
  ASSERT_FALSE(are_numbers_of(at::kFloat, open_truth(golden.options).model));
  const auto weights_after = [&](Tensors gradients, Verdict verdict) {
    Truth truth = open_truth(golden.options);
    EXPECT_EQ(judge(truth, golden.options, gradients).comparison.verdict, verdict);
    for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16}) {
      Truth opened = open_truth(golden.options);
      if (dtype != at::kDouble) round_weights(opened, dtype);
      if (std::all_of(opened.model.parameters().begin(), opened.model.parameters().end(), [&](const auto& p) {
            return at::equal(p->value, truth.model.parameter(p->name).value);
          }))
        return dtype;
    }
    return at::ScalarType::Undefined;
  };
  EXPECT_EQ(weights_after(gradients_in(golden, at::kBFloat16), Verdict::kExact), at::kBFloat16);
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble}) {
    Tensors wrong = gradients_in(golden, dtype);
    wrong.begin()->second.mul_(3.0);
    EXPECT_EQ(weights_after(wrong, Verdict::kWrong), dtype);
  }
}

TEST(CompareJudge, NarrowGradientsOfWideArithmeticAreHeldToTheWideLimit) {
  Golden golden = open_golden("qwen3", "qwen3-sft-b1");
  golden.options.compute_dtype = at::kDouble;
  const CompareReport report = judged(golden, [](const at::Tensor& g) { return g.to(at::kFloat); });
  EXPECT_EQ(report.comparison.dtype, at::kDouble);
  EXPECT_EQ(report.comparison.verdict, Verdict::kWrong);
}

TEST(CompareJudge, AnglesOfLowPrecisionsAreThoseOfFloat32) {
  const Golden golden = open_golden("qwen3", "qwen3-sft-b1");
  constexpr int64_t kLength = 3000;
  const Batch batch = random_batch({kLength}, 83, /*seed=*/0);
  const TransformersRounding as_transformers;
  const Truth low = open_truth(golden.options, at::kFloat);
  const Config& config = low.model.config();
  const std::vector<double> frequencies = rope_inverse_frequencies(config.rope, config.rotary_dim, kLength);
  const at::Tensor angles = at::arange(kLength, at::kFloat).unsqueeze(1) *
                            at::tensor(at::ArrayRef<double>(frequencies)).to(at::kFloat);
  EXPECT_TRUE(at::equal(low.model.prepare(batch).rope.cosine, angles.cos()));
  const at::Tensor exact = open_truth(golden.options).model.prepare(batch).rope.cosine;
  EXPECT_GT((exact - angles.cos()).abs().max().item<double>(), 1e-6);
}

/// QLoRA's base, in nf4 and int8, whose values have no memory between the runs of their layer.
Truth quantised_truth(const std::string& name, at::ScalarType dtype) {
  constexpr uint64_t kSeed = 3;
  Model::Placement placement{dtype, at::kCPU, dtype, [](const std::string&) { return false; }};
  const auto folder = std::filesystem::path(STREAMBP_GOLDENS) / "quantized" / name;
  Truth truth{Model::load(Checkpoint::open(folder), placement),
              std::nullopt,
              {},
              nullptr,
              {},
              {},
              [name](at::ScalarType other) { return quantised_truth(name, other); }};
  LoraConfig lora;
  lora.r = 3;
  lora.target_modules = {kAllLinear};
  truth.model.attach_adapters(lora, kSeed);
  at::Generator generator = at::detail::createCPUGenerator(kSeed);
  for (const auto& parameter : truth.model.parameters()) {
    if (parameter->trainable())
      parameter->value.copy_(at::randn(parameter->value.sizes(), generator, at::kDouble).mul_(0.1));
  }
  truth.batch = random_batch({9, 6}, truth.model.config().vocab_size, kSeed);
  truth.input_ids = unpack(truth.batch, truth.batch.tokens);
  truth.objective = make_objective("sft", truth.batch);
  return truth;
}

TEST(CompareJudge, AdaptersOfAQuantisedBaseAreJudgedInEveryDtype) {
  for (const char* name : {"nf4", "int8"}) {
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      Truth truth = quantised_truth(name, at::kDouble), low = quantised_truth(name, dtype);
      const auto verdict_at = [&](double factor) {
        Tensors gradients = evaluate(low.model, low.batch, *low.objective, {}).gradients;
        for (auto& [parameter, gradient] : gradients) gradient = gradient * factor;
        return judge(truth, {}, gradients).comparison.verdict;
      };
      EXPECT_EQ(verdict_at(1.0), Verdict::kExact) << name << " " << c10::toString(dtype);
      EXPECT_EQ(verdict_at(2.0), Verdict::kScaled) << name << " " << c10::toString(dtype);
    }
    // Values that are held are there to be read: --diagnose makes its mistakes of them.
    Truth truth = quantised_truth(name, at::kDouble);
    hold_values(truth.model);
    for (const auto& parameter : truth.model.parameters())
      EXPECT_GT(norm_of(parameter->value), 0.0) << parameter->name;
    const Tensors gradients = evaluate(truth.model, truth.batch, *truth.objective, {}).gradients;
    EXPECT_EQ(judge(truth, {}, gradients).comparison.verdict, Verdict::kExact) << name;
  }
}

TEST(CompareJudge, ChoicesOfExpertsNearATieAreCounted) {
  const Golden golden = open_golden("qwen3-moe", "qwen3-moe-sft-b3_left");
  Truth exact = open_truth(golden.options);
  const NearTies ties = find_near_ties(exact, at::kBFloat16);
  EXPECT_EQ(ties.tokens, exact.batch.size());
  EXPECT_GT(ties.near, 0);
  EXPECT_LT(ties.near, ties.tokens);
  EXPECT_FALSE(ties.layers.empty());
  for (const std::string& name : ties.unsettled) EXPECT_NO_THROW(exact.model.parameter(name)) << name;
  const NearTies in_double = find_near_ties(exact, at::kDouble);
  EXPECT_EQ(in_double.near, 0);
  const Golden dense = open_golden("qwen3", "qwen3-sft-b3_left");
  Truth other = open_truth(dense.options);
  EXPECT_EQ(find_near_ties(other, at::kBFloat16).tokens, 0);
}

TEST(CompareJudge, ChoicesAmongGroupsOfExpertsAreCounted) {  // whose routers choose groups first
  for (const char* model : {"deepseek-v3", "nemotron-h"}) {
    const Golden golden = open_golden(model, fmt::format("{}-sft-b3_left", model));
    Truth exact = open_truth(golden.options);
    const NearTies ties = find_near_ties(exact, at::kBFloat16);
    EXPECT_EQ(ties.tokens, exact.batch.size()) << model;
    for (const std::string& name : ties.unsettled) EXPECT_NO_THROW(exact.model.parameter(name)) << name;
    EXPECT_EQ(find_near_ties(exact, at::kDouble).near, 0) << model;
  }
}

}  // namespace
}  // namespace streambp::verify
