// What log-probabilities of another engine do to a gradient, against gradients whose advantages say the same.
#include "verify/rollout/rollout.h"

#include <cmath>
#include <filesystem>
#include <gtest/gtest.h>
#include <limits>

#include "streambp/error.h"
#include "streambp/model/scored.h"
#include "streambp/objective/terms.h"
#include "verify/evaluation.h"

namespace streambp::verify {
namespace {

const std::filesystem::path kGoldenCases = STREAMBP_GOLDENS;

/// A golden case of GRPO, on-policy, as an engine would have sampled it whose log-probabilities are the
/// truth's.
struct Sampled {
  CompareOptions options;
  Truth truth;

  at::Tensor& sampling() { return truth.batch.token_inputs.at(inputs::kSamplingLogProbabilities); }
};

CompareOptions grpo_options(const std::string& model, const std::string& name) {
  CompareOptions options;
  options.model = (kGoldenCases / "models" / model).string();
  options.tokens = (kGoldenCases / "cases" / name / "tensors.safetensors").string();
  options.objective = "grpo";
  return options;
}

Tensors gradients_of_batch(const Sampled& sampled, const Batch& batch) {
  const auto objective = make_objective("grpo", batch, sampled.options.settings);
  return evaluate(const_cast<Model&>(sampled.truth.model), batch, *objective, {}).gradients;
}

Sampled sampled_by_itself(const std::string& model, const std::string& name) {
  const CompareOptions options = grpo_options(model, name);
  Sampled sampled{options, open_truth(options)};
  auto& inputs_of = sampled.truth.batch.token_inputs;
  inputs_of.erase(inputs::kOldLogProbabilities);
  inputs_of.erase(inputs::kImportanceSamplingRatio);
  const auto objective = make_objective("grpo", sampled.truth.batch, options.settings);
  inputs_of[inputs::kSamplingLogProbabilities] =
      evaluate(sampled.truth.model, sampled.truth.batch, *objective, {}).log_probabilities.clone();
  return sampled;
}

/// Takes `by` off the log-probability of a row's scored token, the nth.
void report_less(Sampled& sampled, int64_t row, int64_t nth, double by) {
  const at::Tensor scored = scored_indices(sampled.truth.batch);
  const at::Tensor of_row =
      scored.masked_select(scored.ge(sampled.truth.batch.offsets[static_cast<size_t>(row)]) &
                           scored.lt(sampled.truth.batch.offsets[static_cast<size_t>(row) + 1]));
  sampled.sampling().index_put_({of_row[nth]}, sampled.sampling()[of_row[nth]] - by);
}

/// The gradient with the advantages of scored tokens times `ratios`, which multiply a loss that is linear in
/// them.
Tensors gradients_times(const Sampled& sampled, const at::Tensor& ratios) {
  Batch batch = sampled.truth.batch;
  batch.token_inputs[inputs::kAdvantages] = batch.token_inputs.at(inputs::kAdvantages) * ratios;
  batch.sequence_inputs.erase(inputs::kAdvantages);
  return gradients_of_batch(sampled, batch);
}

double dot_of(const Tensors& a, const Tensors& b) {
  double sum = 0.0;
  for (const auto& [name, gradient] : a) sum += (gradient * b.at(name)).sum().item<double>();
  return sum;
}

void expect_turn(const Turn& turn, const Tensors& of, const Tensors& from, const std::string& what) {
  EXPECT_NEAR(turn.length, std::sqrt(dot_of(of, of) / dot_of(from, from)), 1e-10) << what;
  const double cosine = dot_of(of, from) / std::sqrt(dot_of(of, of) * dot_of(from, from));
  EXPECT_NEAR(std::cos(turn.degrees * M_PI / 180.0), cosine, 1e-10) << what;
}

const RolloutGradient& gradient_named(const Rollout& rollout, const std::string& name) {
  for (const RolloutGradient& each : rollout.gradients) {
    if (each.name == name) return each;
  }
  throw InputError("{}: no such gradient", name);
}

TEST(Rollout, EqualLogProbabilitiesTurnNothing) {
  for (const auto& [model, name] :
       {std::pair{"qwen3", "qwen3-grpo-grpo"}, std::pair{"qwen3-5", "qwen3-5-grpo-grpo_kl"},
        std::pair{"qwen3-moe-aux", "qwen3-moe-aux-grpo-aux"}}) {
    Sampled sampled = sampled_by_itself(model, name);
    const Rollout rollout = measure_rollout(sampled.truth, sampled.options);
    ASSERT_EQ(rollout.gradients.size(), 7U);
    for (const RolloutGradient& each : rollout.gradients) {
      EXPECT_NEAR(each.of_unbiased.length, 1.0, 1e-12) << name << " " << each.name;
      EXPECT_LE(each.of_unbiased.degrees, 1e-9) << name << " " << each.name;
      EXPECT_EQ(each.bounded, 0) << name;
    }
    EXPECT_LE(rollout.sampling_error, 1e-12);
    EXPECT_FALSE(rollout.trainer_error.has_value());
  }
}

TEST(Rollout, PlantedMismatchIsThatOfWeightedAdvantages) {
  Sampled sampled = sampled_by_itself("qwen3", "qwen3-grpo-grpo");
  const Batch& batch = sampled.truth.batch;
  report_less(sampled, 0, 0, std::log(1.5));
  report_less(sampled, 0, 2, std::log(0.5));
  report_less(sampled, 1, 1, std::log(4.0));
  report_less(sampled, 2, 0, std::log(0.25));
  const at::Tensor tokens =
      (evaluate(sampled.truth.model, batch, *make_objective("grpo", batch, {}), {}).log_probabilities -
       sampled.sampling())
          .exp();
  at::Tensor rows = at::ones_like(tokens);
  const double whole[] = {0.75, 4.0, 0.25};
  for (int64_t i = 0; i < 3; ++i)
    rows.slice(0, batch.offsets[static_cast<size_t>(i)], batch.offsets[static_cast<size_t>(i) + 1])
        .fill_(whole[i]);

  const Rollout rollout = measure_rollout(sampled.truth, sampled.options, {0.6, 3.0});
  const Tensors plain = gradients_of_batch(sampled, batch), unbiased = gradients_times(sampled, rows);
  const auto masked = [](const at::Tensor& ratios) {
    return ratios * ratios.ge(0.6).logical_and(ratios.le(3.0));
  };
  const std::pair<const char*, at::Tensor> expected[] = {{"unbiased", rows},
                                                         {"uncorrected", at::ones_like(rows)},
                                                         {"token_truncate", tokens.clamp(0.6, 3.0)},
                                                         {"token_mask", masked(tokens)},
                                                         {"sequence_truncate", rows.clamp(0.6, 3.0)},
                                                         {"sequence_mask", masked(rows)}};
  for (const auto& [name, ratios] : expected) {
    const Tensors gradients = gradients_times(sampled, ratios);
    expect_turn(gradient_named(rollout, name).of_unbiased, gradients, unbiased, name);
    expect_turn(gradient_named(rollout, name).of_uncorrected, gradients, plain, name);
  }
  EXPECT_GT(gradient_named(rollout, "uncorrected").of_unbiased.degrees, 5.0);
  EXPECT_EQ(gradient_named(rollout, "token_mask").bounded, 3);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_NEAR(rollout.rows[i].ratio, whole[i], 1e-9);
    EXPECT_NEAR(gradient_named(rollout, "unbiased").rows[i].length, whole[i], 1e-9) << i;
    EXPECT_LE(gradient_named(rollout, "unbiased").rows[i].degrees, 1e-6) << i;
  }
  EXPECT_EQ(gradient_named(rollout, "sequence_mask").rows[1].length, 0.0);
  EXPECT_NE(rollout_text(rollout).find("ratios of whole rows: 0.25 to 4"), std::string::npos)
      << rollout_text(rollout);
}

TEST(Rollout, UnknownOnesHaveARatioOfOne) {
  Sampled sampled = sampled_by_itself("qwen3", "qwen3-grpo-grpo");
  report_less(sampled, 0, 0, std::numeric_limits<double>::quiet_NaN());
  const Rollout rollout = measure_rollout(sampled.truth, sampled.options);
  EXPECT_EQ(rollout.unknown, 1);
  for (const RolloutGradient& each : rollout.gradients)
    EXPECT_LE(each.of_unbiased.degrees, 1e-9) << each.name;
}

TEST(Rollout, Refusals) {
  Sampled sampled = sampled_by_itself("qwen3", "qwen3-grpo-grpo");
  EXPECT_THROW(measure_rollout(sampled.truth, sampled.options, {3.0, 2.0}), InputError);
  Sampled dead = sampled_by_itself("qwen3", "qwen3-grpo-grpo");
  dead.truth.batch.token_inputs.at(inputs::kAdvantages).zero_();
  dead.truth.batch.sequence_inputs.erase(inputs::kAdvantages);
  EXPECT_THROW(measure_rollout(dead.truth, dead.options), InputError);
  Sampled other = sampled_by_itself("qwen3", "qwen3-grpo-grpo");
  report_less(other, 0, 0, 1000.0);
  EXPECT_THROW(measure_rollout(other.truth, other.options), InputError);
  Sampled negated = sampled_by_itself("qwen3", "qwen3-grpo-grpo");
  negated.sampling().neg_();
  EXPECT_THROW(measure_rollout(negated.truth, negated.options), InputError);
  Sampled masked = sampled_by_itself("qwen3", "qwen3-grpo-grpo");
  masked.truth.batch.targets.fill_(kNoTarget);
  EXPECT_THROW(measure_rollout(masked.truth, masked.options), InputError);
  Sampled unknown = sampled_by_itself("qwen3", "qwen3-grpo-grpo");
  unknown.sampling().fill_(std::numeric_limits<double>::quiet_NaN());
  EXPECT_THROW(measure_rollout(unknown.truth, unknown.options), InputError);
  sampled.truth.batch.token_inputs.erase(inputs::kSamplingLogProbabilities);
  EXPECT_THROW(measure_rollout(sampled.truth, sampled.options), InputError);
  sampled.options.settings["loss_type"] = "vespo";
  EXPECT_THROW(measure_rollout(sampled.truth, sampled.options), InputError);
}

}  // namespace
}  // namespace streambp::verify
