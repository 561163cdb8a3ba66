// Objectives that ask the head for more than the labels' log-probabilities: teachers of other sizes, scores
// at the ends of texts, embeddings.
#include <cmath>
#include <gtest/gtest.h>

#include "streambp/data/objective_inputs.h"
#include "streambp/error.h"
#include "streambp/model/scored.h"
#include "streambp/objective/terms.h"
#include "verify/equality/batches.h"
#include "verify/evaluation.h"
#include "verify/tests/streambp/objective/objective_testing.h"

namespace streambp {

using namespace verify;
namespace {

using Given = std::map<std::string, std::string>;

std::string refusal(const std::function<void()>& action) {
  try {
    action();
  } catch (const InputError& error) {
    return error.what();
  }
  return "nothing was refused";
}

const auto kFrozen = [](const std::string&) { return false; };

Evaluation distilled(const Batch& batch, const Given& given, Model& teacher, const Settings& settings = {}) {
  Model model = equality_model("qwen3-tiny", 3);
  return evaluate(model, batch, *make_objective("distill", batch, given), settings, &teacher);
}

TEST(Distillation, LabelsAreTakenAtTemperatureOne) {
  const Batch batch = equality_batch("masked", 19, preset("qwen3-tiny").vocab_size, 5);
  Model teacher = equality_model("qwen3-tiny", 4, kFrozen);
  Model model = equality_model("qwen3-tiny", 3);
  const Evaluation labels = evaluate(model, batch, *make_objective("sft", batch), {});
  const Evaluation given = distilled(batch, {{"alpha", "0"}, {"temperature", "3"}}, teacher);
  EXPECT_TRUE(measure(given, labels).worst() <= 1e-13) << measure(given, labels).worst();
}

TEST(Distillation, TakesATeacherOfAnotherSize) {
  const int64_t vocabulary = preset("qwen3-tiny").vocab_size;
  Batch batch = equality_batch("three", 19, vocabulary, 5);
  batch.tokens.clamp_max_(vocabulary - 10);
  const Given shared{
      {"vocabulary", "shared"}, {"divergence", "jsd"}, {"temperature", "1.5"}, {"alpha", "0.6"}};
  for (const int64_t more : {-8, 8}) {
    Model teacher = equality_model("qwen3-tiny", 4, kFrozen, more);
    EXPECT_NE(refusal([&] { distilled(batch, {}, teacher); }).find("vocabulary=shared"), std::string::npos);
    Settings full;
    full.method = Method::kStandard;
    Settings streamed;
    streamed.chunk = 7;
    streamed.head_chunk = 3;
    const double error =
        measure(distilled(batch, shared, teacher, streamed), distilled(batch, shared, teacher, full)).worst();
    EXPECT_TRUE(error <= 1e-12) << more << " tokens more: " << error;
  }
  Model padded = equality_model("qwen3-tiny", 4, kFrozen, vocabulary / 100);
  EXPECT_NO_THROW(distilled(batch, {}, padded));
  Model teacher = equality_model("qwen3-tiny", 4, kFrozen, -12);
  batch.tokens[3] = vocabulary - 10;
  EXPECT_NE(refusal([&] { distilled(batch, shared, teacher); }).find("the teacher's vocabulary has"),
            std::string::npos);
}

TEST(Distillation, RefusesOptionsThatMeanNothing) {
  const Batch batch = equality_batch("three", 9, 50, 5);
  const auto refused = [&](const Given& given) {
    return refusal([&] { make_objective("distill", batch, given); });
  };
  EXPECT_NE(refused({{"beta", "0.5"}}).find("expected divergence jsd"), std::string::npos);
  EXPECT_NE(refused({{"divergence", "jsd"}, {"beta", "1.5"}}).find("beta is '1.5'"), std::string::npos);
  EXPECT_NE(refused({{"reduction", "sum"}, {"divisor", "3"}}).find("distill: divisor"), std::string::npos);
}

TEST(Reward, ComparesScoresOfPairs) {
  Batch batch = random_batch({3, 2, 4, 1}, 50, 5);
  batch.targets.fill_(kNoTarget);
  score_ends(batch);
  EXPECT_TRUE(at::equal(scored_indices(batch), at::tensor({2, 4, 8, 9}, at::kLong)));
  batch.sequence_inputs[inputs::kMargin] = doubles({0.5, 0.0, 0.5, 0.0});
  TokenValues values;
  values.values = doubles({1.0, -0.25, 0.75, 2.0}).requires_grad_();
  const at::Tensor loss =
      make_objective("reward", batch, {{"center_rewards_coefficient", "0.1"}})->loss(values, 0, 4);
  const auto miss = [](double z) { return std::log1p(std::exp(-z)); };
  expect_near(loss.item<double>(), (miss(-0.25) + miss(-2.25) + 0.1 * (1.75 * 1.75 + 1.75 * 1.75)) / 2,
              "loss");
  const at::Tensor gradient = torch::autograd::grad({loss}, {values.values}).front();
  const auto slope = [](double z) { return -1.0 / (1.0 + std::exp(z)); };
  expect_near(gradient,
              doubles({(slope(-0.25) + 0.35) / 2, (slope(-2.25) + 0.35) / 2, (-slope(-0.25) + 0.35) / 2,
                       (-slope(-2.25) + 0.35) / 2}),
              "gradient");
  const auto refused = [&] {
    return refusal([&] { make_objective("reward", batch); }).find("expected one token a sequence") !=
           std::string::npos;
  };
  const at::Tensor ends = batch.value_mask.clone();
  batch.value_mask[0] = true;
  EXPECT_TRUE(refused()) << "two of the first sequence, one more than sequences";
  // As many as sequences: two of one, none of the next or of the one before.
  const int64_t second = batch.offsets[2] - 1;
  batch.value_mask = ends.clone();
  batch.value_mask[0] = true;
  batch.value_mask[second] = false;
  EXPECT_TRUE(refused()) << "two of the first sequence";
  batch.value_mask = ends.clone();
  batch.value_mask[0] = batch.value_mask[batch.offsets[1] - 1] = false;
  batch.value_mask[batch.offsets[1]] = true;
  EXPECT_TRUE(refused()) << "two of the second sequence";
}

TEST(Reward, ScoresTheLastTokenThatIsNotPadding) {
  Batch batch = random_batch({3, 3, 2}, 50, 5);
  batch.tokens = at::tensor({7, 8, 9, 7, 0, 0, 0, 0}, at::kLong);
  batch.targets.fill_(kNoTarget);
  score_ends(batch, 0);
  EXPECT_TRUE(at::equal(scored_indices(batch), at::tensor({2, 3, 6}, at::kLong)));
  score_ends(batch, 9);
  EXPECT_TRUE(at::equal(scored_indices(batch), at::tensor({1, 5, 7}, at::kLong)));
}

TEST(InfoNce, RefusesPartsAndIncompleteBlocks) {
  const Batch batch = random_batch({3, 2, 4, 1}, 50, 5);
  Counts whole = count(batch);
  whole.sequences = 8;
  EXPECT_NE(refusal([&] { make_objective("infonce", batch, {}, whole); }).find("4 of 8 sequences"),
            std::string::npos);
  EXPECT_NE(refusal([&] {
              make_objective("infonce", batch, {{"negatives", "1"}});
            }).find("a multiple of 3"),
            std::string::npos);
  EXPECT_NE(refusal([&] {
              make_objective("infonce", batch, {{"negatives", "1000001"}});
            }).find("negatives is '1000001'"),
            std::string::npos);
}

TEST(InfoNce, GradientsAreThoseOfDifferences) {
  const Batch batch = random_batch({3, 2, 4, 1, 5, 2}, 50, 5);
  for (const Given& given : {Given{}, Given{{"negatives", "1"}, {"scale", "3"}},
                             Given{{"similarity", "dot"}, {"symmetric", "true"}, {"scale", "0.7"}}}) {
    const auto objective = make_objective("infonce", batch, given);
    at::Generator generator = at::detail::createCPUGenerator(6);
    const at::Tensor point = at::randn({6, 4}, generator, at::kDouble);
    const auto loss = [&](const at::Tensor& embeddings) {
      TokenValues values;
      values.embeddings = embeddings;
      return objective->loss(values, 0, 0);
    };
    const at::Tensor leaf = point.clone().requires_grad_();
    const at::Tensor gradient = torch::autograd::grad({loss(leaf)}, {leaf}).front();
    at::Tensor differences = at::zeros_like(point);
    for (int64_t i = 0; i < point.numel(); ++i) {
      const auto at_step = [&](double step) {
        at::Tensor moved = point.clone();
        moved.view(-1)[i] += step;
        return loss(moved).item<double>();
      };
      constexpr double kStep = 1e-3;
      differences.view(-1)[i] =
          (8 * (at_step(kStep) - at_step(-kStep)) - (at_step(2 * kStep) - at_step(-2 * kStep))) /
          (12 * kStep);
    }
    expect_near(gradient, differences, "infonce", 1e-9);
  }
}

}  // namespace
}  // namespace streambp
