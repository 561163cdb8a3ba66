// What the judge does with noise: how often it measures it, which weights it takes, what it calls noise.
#include "verify/compare/judge.h"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <functional>
#include <gtest/gtest.h>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "streambp/ops/transformers_rounding.h"
#include "verify/compare/noise.h"
#include "verify/diagnose/compare_diagnose.h"
#include "verify/diagnose/diagnose.h"
#include "verify/evaluation.h"
#include "verify/tests/verify/compare/testing.h"

namespace streambp::verify {
namespace {

Golden dense() {
  return open_golden("qwen3", "qwen3-sft-b3_left");
}

CompareReport judged(const Golden& golden, const Tensors& gradients) {
  Truth truth = open_truth(golden.options);
  return judge(truth, golden.options, gradients);
}

/// The float64 gradients at weights that are numbers of bfloat16, and what one run in it is off by.
struct InBfloat16 {
  explicit InBfloat16(const Golden& golden) {
    Truth truth = open_truth(golden.options);
    round_weights(truth, at::kBFloat16);
    exact = evaluate(truth.model, truth.batch, *truth.objective, {}).gradients;
    NoiseRuns runs(truth, at::kBFloat16, /*chunk=*/0);
    noise = runs.next(exact);
  }

  /// The exact gradients in float32, each off by its noise times what `times` says of its index.
  Tensors off_by(const std::function<double(size_t)>& times) const {
    Tensors gradients;
    size_t index = 0;
    for (const auto& [name, t] : exact) {
      at::Tensor direction = random_tensor(t.sizes(), 77 + index);
      direction = direction - t * (direction * t).sum() / (t * t).sum();  // no part of it is a factor
      const double norm = t.norm().item<double>(), own = direction.norm().item<double>();
      const double size = times(index++) * noise.at(name).error * norm / own;
      gradients.emplace(name, (t + direction * size).to(at::kFloat));
    }
    return gradients;
  }

  Tensors exact;
  NoiseSample noise;
};

bool has_hint(const CompareReport& report, const std::string& word) {
  const auto& hints = report.comparison.hints;
  return std::any_of(hints.begin(), hints.end(),
                     [&](const std::string& hint) { return hint.find(word) != std::string::npos; });
}

/// A head of zeros, or no scored token: any code's gradients agree. None where there should be some are
/// wrong.
TEST(CompareJudge, WhatAnyCodeWouldGiveIsNoEvidence) {
  const Golden golden = dense();
  const auto judged_after = [&](const std::function<void(Truth&)>& change) {
    Truth truth = open_truth(golden.options);
    change_always(truth, change);
    const Tensors own = evaluate(truth.model, truth.batch, *truth.objective, {}).gradients;
    return judge(truth, golden.options, own).comparison;
  };
  EXPECT_EQ(judged_after([](Truth&) {}).verdict, Verdict::kExact);
  const Comparison uniform = judged_after([](Truth& truth) { truth.model.head().weight->value.zero_(); });
  EXPECT_EQ(uniform.verdict, Verdict::kUndecided);
  EXPECT_NE(uniform.notes.back().find("the same probability"), std::string::npos) << uniform.notes.back();
  const Comparison nothing = judged_after([](Truth& truth) {
    truth.batch.targets = at::full_like(truth.batch.targets, kNoTarget);
    truth.objective = make_objective("sft", truth.batch, {});
  });
  EXPECT_EQ(nothing.verdict, Verdict::kUndecided);
  EXPECT_NE(nothing.notes.back().find("all gradients of the truth are zero"), std::string::npos);
  Tensors zeros = golden.gradients;
  for (auto& [name, gradient] : zeros) gradient = at::zeros_like(gradient);
  EXPECT_EQ(judged(golden, zeros).comparison.verdict, Verdict::kWrong);
}

/// Errors of float32 gradients that are just bfloat16's noise are undecided; those that fit under its limits
/// and are something else are wrong, with a hint.
TEST(CompareJudge, NoiseOfANarrowerDtypeIsAlikeInAllParameters) {
  const Golden golden = dense();
  const InBfloat16 low(golden);
  const auto count = static_cast<double>(low.exact.size());  // 25
  const auto verdict_at = [&](const char* what, const std::function<double(size_t)>& times,
                              Verdict expected) {
    const CompareReport report = judged(golden, low.off_by(times));
    EXPECT_EQ(report.comparison.verdict, expected) << what;
    EXPECT_EQ(report.comparison.dtype, expected == Verdict::kUndecided ? at::kBFloat16 : at::kFloat) << what;
    EXPECT_TRUE(has_hint(report, "autocast")) << what;
  };
  const auto mostly = [&](double share, double other) {
    return [=](size_t i) { return static_cast<double>(i) < share * count ? other : 1.0; };
  };
  verdict_at(
      "as large", [](size_t) { return 1.0; }, Verdict::kUndecided);
  verdict_at(
      "half as large", [](size_t) { return 0.5; }, Verdict::kUndecided);
  verdict_at(
      "a third as large", [](size_t) { return 0.33; }, Verdict::kWrong);
  verdict_at("one of ten smaller", mostly(0.05, 0.2), Verdict::kUndecided);
  verdict_at("one of seven smaller", mostly(0.13, 0.2), Verdict::kWrong);
  verdict_at("one of six a little smaller", mostly(0.17, 0.75), Verdict::kUndecided);
  verdict_at("one of ten larger", mostly(0.05, 2.2), Verdict::kUndecided);
  verdict_at("one of seven larger", mostly(0.13, 2.2), Verdict::kWrong);
  verdict_at("one of six a little larger", mostly(0.17, 1.4), Verdict::kUndecided);
}

/// A diagnosis says that nothing is wrong where the verdict is exact, and nowhere else.
TEST(CompareJudge, ADiagnosisAgreesWithTheVerdict) {
  Golden golden = dense();
  const InBfloat16 low(golden);
  golden.options.diagnose = true;
  const auto says = [&](const Tensors& gradients, Verdict expected, const std::string& words) {
    Truth truth = open_truth(golden.options);
    const CompareReport report = judge(truth, golden.options, gradients);
    EXPECT_EQ(report.comparison.verdict, expected);
    const std::string text =
        diagnosis_text(diagnose_comparison(truth, golden.options, report.comparison, gradients));
    EXPECT_NE(text.find(words), std::string::npos) << text;
    EXPECT_EQ(text.find("nothing is wrong") == std::string::npos, expected != Verdict::kExact) << text;
  };
  says(golden.gradients, Verdict::kExact, "diagnosis: nothing is wrong");
  says(low.off_by([](size_t) { return 1.0; }), Verdict::kUndecided,
       "no larger than the noise of bfloat16, and undecided is whether these were to be computed in it: in "
       "float32 they are wrong");
  Tensors off = golden.gradients;
  size_t seed = 5;
  for (auto& [name, gradient] : off)
    gradient = gradient * (1.0 + 4e-7 * random_tensor(gradient.sizes(), seed++));
  says(off, Verdict::kWrong, "by float64's own limits they are wrong");
}

TEST(CompareJudge, NoiseIsMeasuredUntilTheVerdictIsClear) {
  Golden golden = dense();
  const InBfloat16 low(golden);
  const auto runs_of = [&](Tensors gradients, Verdict expected) {
    for (auto& [name, gradient] : gradients) gradient = gradient.to(at::kBFloat16);
    const CompareReport report = judged(golden, gradients);
    EXPECT_EQ(report.comparison.verdict, expected);
    return report.noise_runs;
  };
  EXPECT_EQ(runs_of(low.off_by([](size_t) { return 0.5; }), Verdict::kExact), 1);
  EXPECT_EQ(runs_of(low.off_by([](size_t) { return 40.0; }), Verdict::kWrong), 1) << "far beyond it";
  EXPECT_EQ(runs_of(low.off_by([](size_t i) { return i == 3 ? 40.0 : 0.5; }), Verdict::kWrong),
            NoiseRuns::kRuns);
  Tensors scaled = low.off_by([](size_t) { return 0.5; });
  for (auto& [name, gradient] : scaled) gradient.mul_(0.5);
  EXPECT_EQ(runs_of(scaled, Verdict::kScaled), NoiseRuns::kRuns);
  Tensors incomplete = low.exact;
  incomplete.erase(kProjection);
  EXPECT_EQ(runs_of(incomplete, Verdict::kIncomplete), 1);
  golden.options.diagnose = true;  // which asks more of limits
  EXPECT_EQ(runs_of(low.off_by([](size_t) { return 40.0; }), Verdict::kWrong), NoiseRuns::kRuns);
}

/// Where all tokens of a sequence are the same, so are the values of the lowest layer, and its queries have
/// nothing to choose: their gradients are what is left of terms that cancel, to no digit the same for two
/// methods.
TEST(CompareJudge, CancelledGradientsInDoubleAreHeldToTheirNoise) {
  const Golden golden = dense();
  Truth truth = open_truth(golden.options);
  truth.batch.tokens.fill_(5);
  const auto gradients_of = [&](const Settings& settings) {
    return evaluate(truth.model, truth.batch, *truth.objective, settings).gradients;
  };
  Settings standard;
  standard.method = Method::kStandard;
  Tensors gradients = gradients_of(standard);
  const Tensors streamed = gradients_of({});
  ASSERT_GT(relative_error(gradients.at(kProjection), streamed.at(kProjection)), 1e-3);
  const auto verdict = [&] { return judge(truth, golden.options, gradients).comparison.verdict; };
  EXPECT_EQ(verdict(), Verdict::kExact);
  // Beyond what another method would leave; and where nothing cancels, ten digits are asked for as ever.
  gradients.at(kProjection).add_(1e-6);
  EXPECT_EQ(verdict(), Verdict::kWrong);
  gradients = gradients_of(standard);
  gradients.at("model.layers.0.mlp.up_proj.weight").mul_(1.0 + 1e-9);
  EXPECT_EQ(verdict(), Verdict::kWrong);
}

/// Of a case whose weights are not all numbers of float32.
TEST(CompareJudge, SaysWhichWeightsTheTruthHas) {
  const Golden golden = dense();
  const auto note_of = [&](const Tensors& gradients) {
    const CompareReport report = judged(golden, gradients);
    EXPECT_NE(report.comparison.verdict, Verdict::kWrong);
    for (const std::string& note : report.comparison.notes) {
      if (note.starts_with("the truth is that of the weights ")) return note.substr(33);
    }
    return std::string();
  };
  Truth truth = open_truth(golden.options);
  ASSERT_FALSE(are_numbers_of(at::kFloat, truth.model));
  round_weights(truth, at::kFloat);
  Tensors gradients = evaluate(truth.model, truth.batch, *truth.objective, {}).gradients;
  for (auto& [name, gradient] : gradients) gradient = gradient.to(at::kFloat);
  EXPECT_EQ(note_of(gradients), "rounded to float32");
  for (auto& [name, gradient] : gradients) gradient = gradient * 0.5F;
  EXPECT_EQ(note_of(gradients), "rounded to float32");
}

/// The second run sums in another order, by chunks of a quarter; those after it have weights that are moved
/// by up to a unit in the last place.
TEST(CompareNoiseRuns, AreOfFourKinds) {
  const Golden golden = dense();
  Truth truth = open_truth(golden.options);
  const Tensors exact = evaluate(truth.model, truth.batch, *truth.objective, {}).gradients;
  Tensors opened;  // the weights of the latest model in float32, which share its memory
  const auto open_again = truth.open_again;
  truth.open_again = [&](at::ScalarType dtype) {
    Truth again = open_again(dtype);
    if (dtype != at::kFloat) return again;
    opened.clear();
    for (const auto& parameter : again.model.parameters()) opened[parameter->name] = parameter->value;
    return again;
  };
  const auto sample_by = [&](const Settings& settings) {
    const TransformersRounding as_transformers;
    Truth low = open_again(at::kFloat);
    return noise_sample(evaluate(low.model, low.batch, *low.objective, settings).gradients, exact);
  };
  Settings standard, quarter;
  standard.method = Method::kStandard;
  quarter.method = Method::kStreambp;
  quarter.chunk = truth.batch.size() / 4;
  ASSERT_NE(quarter.chunk, truth.batch.size() / 5);
  NoiseRuns runs(truth, at::kFloat, /*chunk=*/0);
  for (const Settings& settings : {standard, quarter}) {
    const NoiseSample expected = sample_by(settings), found = runs.next(exact);
    for (const auto& [name, deviation] : expected) {
      if (name == kEmbedding) continue;
      EXPECT_EQ(found.at(name).error, deviation.error) << name;
    }
  }
  const double unit = 0x1p-23;
  Tensors before;
  for (const int run : {2, 3}) {
    const NoiseSample sample = runs.next(exact);
    double most = 0.0;
    for (const auto& [name, value] : opened) {
      const at::Tensor was = truth.model.parameter(name).value;
      const at::Tensor moved = (value.to(at::kDouble) - was).abs() / was.abs().clamp_min(1e-30);
      most = std::max(most, moved.max().item<double>());
      if (run == 3) {
        EXPECT_FALSE(at::equal(before.at(name), value)) << name << ": each run by itself";
      }
      before[name] = value.clone();
    }
    // Rounded to float32 before it is moved by up to a unit, and after it.
    EXPECT_TRUE(most >= 0.9 * unit && most <= 2.05 * unit) << run << " " << most / unit;
    // Against a truth of their own.
    EXPECT_LT(sample.at(kProjection).error, 1e-5);
  }
}

/// A sum of many equal terms is known in closed form.
TEST(CompareNoiseRuns, AnEmbeddingsSumsAreAddedToWhatWasMeasured) {
  const Golden golden = dense();
  for (const auto& [dtype, u, length] : {std::tuple{at::kFloat, 0x1p-24, 512},
                                         {at::kHalf, 0x1p-11, 512},
                                         {at::kBFloat16, 0x1p-8, 512},
                                         {at::kBFloat16, 0x1p-8, 3000}}) {
    Truth truth = open_truth(golden.options);
    change_always(truth, [tokens = length](Truth& of) {
      of.batch = random_batch({tokens}, 83, /*seed=*/0);
      of.batch.tokens.fill_(5);
      of.objective = make_objective("sft", of.batch);
    });
    const Tensors exact = evaluate(truth.model, truth.batch, *truth.objective, {}).gradients;
    NoiseRuns runs(truth, dtype, /*chunk=*/0);
    const double error = runs.next(exact).at(kEmbedding).error;
    const TransformersRounding as_transformers;
    Truth low = truth.open_again(dtype);
    Settings standard;
    standard.method = Method::kStandard;
    const double own = noise_sample(evaluate(low.model, low.batch, *low.objective, standard).gradients, exact)
                           .at(kEmbedding)
                           .error;
    const auto count = static_cast<double>(length);
    const double sums = std::min(1.0, std::sqrt(count) * u / 4.0 + std::pow(count * u, 2) / 64.0);
    EXPECT_NEAR(error / std::hypot(own, sums), 1.0, 1e-9) << c10::toString(dtype) << " " << length;
  }
}

/// Two experts with the same router row are tied for every token.
TEST(CompareNoiseRuns, AnExactTieLeavesItsTwoExpertsUnsettled) {
  const Golden golden = open_golden("qwen3-moe", "qwen3-moe-sft-b3_left");
  bool straddled = false;
  for (const auto& [one, other] : {std::pair{0, 1}, {2, 5}, {3, 6}, {4, 7}}) {
    Truth truth = open_truth(golden.options);
    change_always(truth, [a = one, b = other](Truth& of) {
      at::Tensor rows = of.model.parameter("model.layers.0.mlp.gate.weight").value;
      rows[b].copy_(rows[a]);
    });
    const NearTies ties = find_near_ties(truth, at::kDouble);
    EXPECT_LT(ties.near, ties.tokens);
    if (ties.near == 0) continue;
    straddled = true;
    std::set<std::string> expected;
    for (const int expert : {one, other}) {
      for (const char* map : {"gate_proj", "up_proj", "down_proj"})
        expected.insert(fmt::format("model.layers.0.mlp.experts.{}.{}.weight", expert, map));
    }
    EXPECT_EQ(ties.unsettled, expected);
    EXPECT_EQ(ties.layers, std::vector<int64_t>{0});
  }
  EXPECT_TRUE(straddled);
}

TEST(CompareJudge, ATeacherIsPartOfTheTruth) {
  Golden golden = open_golden("qwen3", "qwen3-distill-longer_teacher");
  golden.options.objective = "distill";
  golden.options.teacher = golden.options.model;
  Truth truth = open_truth(golden.options);
  ASSERT_TRUE(truth.teacher);
  for (const auto& parameter : truth.teacher->parameters()) parameter->value.mul_(1.5);
  Tensors gradients = evaluate(truth.model, truth.batch, *truth.objective, {}, &*truth.teacher).gradients;
  EXPECT_EQ(judge(truth, golden.options, gradients).comparison.verdict, Verdict::kExact);
  gradients.begin()->second.mul_(1.0 + 1e-6);
  EXPECT_EQ(judge(truth, golden.options, gradients).comparison.verdict, Verdict::kWrong);
}

}  // namespace
}  // namespace streambp::verify
