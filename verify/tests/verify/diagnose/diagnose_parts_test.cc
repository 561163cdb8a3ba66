// Mistakes as they were reported of training programs, planted in the gradients or the batch: a sum over
// parts of the true gradient has to name each.
#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <functional>

#include "streambp/objective/terms.h"
#include "verify/diagnose/parts/slopes.h"
#include "verify/diagnose/wrong_engine/layer_pass.h"
#include "verify/diagnose/wrong_engine/wrong_batch.h"
#include "verify/equality/batches.h"
#include "verify/tests/turns.h"
#include "verify/tests/verify/diagnose/diagnose_testing.h"

namespace streambp::verify {
namespace {

/// Eight completions with an advantage each.
DiagnoseCase eight_completions(const std::vector<double>& advantages, const OptionMap& options) {
  DiagnoseCase made = diagnose_case({"llama-tiny", "grpo", options, "full", "none", 9});
  Batch batch = random_batch({9, 9, 7, 7, 6, 8, 9, 5}, 101, 4);
  at::Generator generator = at::detail::createCPUGenerator(6);
  const at::Tensor policy = evaluate(made.owned.model, batch).log_probabilities;
  const auto near_policy = [&] {
    return (policy + at::randn(policy.sizes(), generator, at::kDouble) * 0.05) * batch.targets.ne(kNoTarget);
  };
  batch.token_inputs[inputs::kOldLogProbabilities] = near_policy();
  batch.token_inputs[inputs::kReferenceLogProbabilities] = near_policy() + 0.2 * batch.targets.ne(kNoTarget);
  at::Tensor& of_tokens = batch.token_inputs[inputs::kAdvantages] = at::zeros({batch.size()}, at::kDouble);
  for (size_t i = 0; i < advantages.size(); ++i)
    of_tokens.slice(0, batch.offsets[i], batch.offsets[i + 1]).fill_(advantages[i]);
  of_tokens.mul_(batch.targets.ne(kNoTarget));
  made.owned.batch = batch;
  find_truth(made);
  return made;
}

/// The gradients of rows by themselves, by the library: with the counts of the whole batch, or with their
/// own.
Tensors gradients_of_rows(DiagnoseCase& of, const std::vector<int64_t>& rows, bool own_counts = false) {
  const Batch part = select_sequences(of.owned.batch, rows);
  const auto objective = own_counts ? make_objective(of.objective, part, of.options)
                                    : make_objective(of.objective, part, of.options, count(of.owned.batch));
  return evaluate(of.owned.model, part, *objective, {}).gradients;
}

TEST(DiagnoseParts, OnlyTheLastMicroBatch) {
  DiagnoseCase right = eight_rows("qwen3-tiny");
  expect_said(right, gradients_of_rows(right, {6, 7}),
              "rows 0 to 5 are missing: only the last of 4 micro-batches is in these gradients");
  expect_said(
      right, gradients_of_rows(right, {6, 7}, true),
      "rows 0 to 5 are missing: only the last of 4 micro-batches is in these gradients, divided by their "
      "own 14 labels instead of 52");
  expect_said(right, cast(gradients_of_rows(right, {0, 1, 2, 3}), at::kFloat), "only the first of 2");
  expect_said(right, weighted(right.truth, -1.0, gradients_of_rows(right, {3})), "row 3 is missing");
  expect_said(right, weighted(right.truth, 1.0, gradients_of_rows(right, {3})), "row 3 is there twice");
}

TEST(DiagnoseParts, OfEveryFamily) {
  size_t turn = 0;
  Turns with_adapters(2);
  for (const std::string& family : equality_families()) {
    SCOPED_TRACE(family);
    const std::string model = equality_preset(family);
    DiagnoseCase right = eight_rows(model, {{"router_aux_loss_coef", "0"}});
    expect_said(right, gradients_of_rows(right, {6, 7}), "rows 0 to 5 are missing");
    if (!with_adapters.next()) continue;
    // Under adapters, of which there may be some on embeddings, experts and rows of tokens.
    for (const char* batch : in_turns<const char*>({"left", "right", "none"}, 1, turn)) {
      DiagnoseCase adapted = diagnose_case({model, "sft", {}, "lora", batch, 9});
      const auto objective = make_objective("sft", adapted.owned.batch, {});
      const Linearised linear(adapted.owned.model, adapted.owned.batch, *objective, nullptr);
      expect_said(adapted, weighted(adapted.truth, -1.0, linear.gradients_of(linear.slopes(), {0})),
                  "row 0 is missing");
    }
  }
}

TEST(DiagnoseParts, OfEveryObjective) {
  for (const std::string& objective : objective_names()) {
    for (const OptionMap& options : objective_variants(objective)) {
      SCOPED_TRACE(objective + fmt::format(" {}", options.empty() ? "" : options.begin()->first));
      const DiagnoseCase right = diagnose_case({"qwen3-tiny", objective, options, "full", "left", 9});
      EXPECT_EQ(diagnose(right, right.truth).kind, Diagnosis::Kind::kRight);
      const auto whole = make_objective(objective, right.owned.batch, options);
      const Linearised linear(right.owned.model, right.owned.batch, *whole, right.owned.teacher.get());
      const Tensors gone = linear.gradients_of(linear.slopes(), {1});
      const bool any =
          std::any_of(gone.begin(), gone.end(), [](const auto& entry) { return !is_zero(entry.second); });
      if (any) expect_said(right, weighted(right.truth, -1.0, gone), "row 1 is missing");
    }
  }
}

TEST(DiagnoseParts, SumsOfMeansOfMicroBatches) {
  for (const OptionMap& options : {OptionMap{}, OptionMap{{"label_smoothing", "0.1"}}}) {
    DiagnoseCase right = eight_rows("qwen2-tiny", options);
    Tensors sum = gradients_of_rows(right, {0, 1}, true);
    for (int64_t row = 2; row < 8; row += 2)
      sum = weighted(sum, 1.0, gradients_of_rows(right, {row, row + 1}, true));
    expect_said(right, sum, "the loss is the sum of the means of micro-batches of 2 rows");
    expect_said(right, times(sum, 0.25), "the loss is the mean of the means of micro-batches of 2 rows");
  }
}

TEST(DiagnoseParts, LabelSmoothingLeftIn) {
  DiagnoseCase right = eight_rows("qwen2-tiny");
  const auto smoothed = make_objective("sft", right.owned.batch, {{"label_smoothing", "0.1"}});
  const Tensors gradients = evaluate(right.owned.model, right.owned.batch, *smoothed, {}).gradients;
  expect_said(right, gradients, "label smoothing is in the loss, of 0.1");
  DiagnoseCase with = eight_rows("qwen2-tiny", {{"label_smoothing", "0.1"}});
  expect_said(with, right.truth, "label smoothing");
}

TEST(DiagnoseParts, CountsOfAnotherWindow) {
  DiagnoseCase right = eight_completions({1, -1, 0.5, -0.5, 2, -2, 1.5, -1.5}, {{"loss_type", "dapo"}});
  const auto scored = static_cast<double>(count(right.owned.batch).scored);
  expect_said(right, times(right.truth, scored / 113.0),
              fmt::format("gradients are {:g}/113 of the truth", scored));
  expect_said(right, times(right.truth, 0.25), "4 accumulation steps");
}

TEST(DiagnoseParts, WhatAnOptimizerShouldDo) {
  const DiagnoseCase right = eight_rows("qwen3-tiny");
  double square = 0.0;
  for (const auto& [name, gradient] : right.truth) square += std::pow(norm_of(gradient), 2);
  expect_said(right, times(right.truth, 0.5 / std::sqrt(square)), "clipped to a norm of 0.5");
  expect_said(right, times(right.truth, 65536.0), "a loss scale of 65536 is left in");
  Tensors decayed = right.truth;
  for (auto& [name, gradient] : decayed) {
    if (gradient.dim() == 2) gradient = gradient + 0.01 * right.owned.model.parameter(name).value;
  }
  expect_said(right, decayed, "(weight decay) is in the loss, with a weight of 0.01");
}

TEST(DiagnoseParts, AdvantagesOfOtherRows) {
  const std::vector<double> advantages{1.2, -0.7, 0.4, 0.0, 2.1, -1.9, 0.3, -0.5};
  std::vector<double> rotated = advantages, swapped = advantages;
  std::rotate(rotated.begin(), rotated.begin() + 3, rotated.end());
  std::swap(swapped[1], swapped[6]);
  for (const char* beta : {"0", "0.04"}) {
    DiagnoseCase right = eight_completions(advantages, {{"beta", beta}});
    // A first step: all ratios are 1, and no clipping depends on the sign.
    right.owned.batch.token_inputs.erase(inputs::kOldLogProbabilities);
    find_truth(right);
    for (const auto& [others, words] :
         {std::pair{rotated, "row i has those of row i + 3 (modulo 8)"},
          std::pair{swapped, "row 1 has those of row 6, row 6 has those of row 1"}}) {
      Batch batch = right.owned.batch;
      batch.token_inputs[inputs::kAdvantages] =
          eight_completions(others, {}).owned.batch.token_inputs.at(inputs::kAdvantages);
      const auto objective = make_objective("grpo", batch, right.options);
      expect_said(right, evaluate(right.owned.model, batch, *objective, {}).gradients, words);
    }
  }
}

TEST(DiagnoseParts, TermsThatAreMissingOrCountOtherwise) {
  const std::vector<double> advantages{1.2, -0.7, 0.4, 0.6, 2.1, -1.9, 0.3, -0.5};
  DiagnoseCase right = eight_completions(advantages, {{"beta", "0.04"}, {"entropy_coef", "0.02"}});
  const auto with = [&](const OptionMap& options) {
    const auto objective = make_objective("grpo", right.owned.batch, options);
    return evaluate(right.owned.model, right.owned.batch, *objective, {}).gradients;
  };
  expect_said(right, with({{"beta", "0.04"}}), "the entropy bonus is missing");
  expect_said(right, with({{"entropy_coef", "0.02"}}), "the KL term (beta) is missing");
  expect_said(right, with({{"beta", "0.08"}, {"entropy_coef", "0.02"}}),
              "the KL term (beta) counts 2 times as much as it should");
  DiagnoseCase without = eight_completions(advantages, {});
  expect_said(without, with({{"loss_type", "bnpo"}}), "rows count by their scored tokens");
  expect_said(without, with({{"beta", "0.04"}}), "the KL term (beta) is in the loss, with a weight of 0.04");
}

TEST(DiagnoseParts, RouterLossMissing) {
  DiagnoseCase right = eight_rows("qwen3-moe-tiny");
  const auto without = make_objective("sft", right.owned.batch, {{"router_aux_loss_coef", "0"}});
  const Tensors gradients = evaluate(right.owned.model, right.owned.batch, *without, {}).gradients;
  expect_said(right, gradients, "the loss that balances the experts (router_aux_loss_coef) is missing");
}

TEST(DiagnoseParts, TokensThatCountOtherwise) {
  DiagnoseCase right = eight_rows("llama-tiny");
  const auto with_targets = [&](const std::function<bool(int64_t)>& lost) {
    Batch batch = right.owned.batch;
    batch.targets = batch.targets.clone();
    const at::Tensor index = token_indices(batch, false).in_sequence;
    for (int64_t i = 0; i < batch.size(); ++i) {
      if (lost(index[i].item<int64_t>())) batch.targets[i] = kNoTarget;
    }
    const auto objective = make_objective("sft", batch, {});
    return evaluate(right.owned.model, batch, *objective, {}).gradients;
  };
  expect_said(right, with_targets([](int64_t i) { return i % 4 == 3; }),
              "labels are shifted within a chunk, so that its last token has none, in chunks of 4 tokens");
  expect_said(right, with_targets([](int64_t i) { return i >= 6; }),
              "tokens of each row from index 6 on are not scored");
  expect_said(right, with_targets([](int64_t i) { return i < 2; }),
              "the first 2 tokens of each row are not scored");
  const auto dynamic = make_objective("sft", right.owned.batch, {{"loss_type", "dft"}});
  expect_said(right, evaluate(right.owned.model, right.owned.batch, *dynamic, {}).gradients,
              "each token counts by its own probability");
}

TEST(DiagnoseParts, RoundedSlopesOfTargetsWithinTheNoise) {
  // Targets that the model is sure of: what is left of their slopes is less than bfloat16 tells from 1.
  DiagnoseCase right = diagnose_case({"qwen3-tiny", "sft", {}, "full", "three", 33});
  const auto rounded = [](Tensors values) {
    for (auto& [name, value] : values) value = value.to(at::kBFloat16).to(at::kDouble);
    return values;
  };
  Model::Placement narrow;
  narrow.dtype = narrow.gradient_dtype = at::kBFloat16;
  Model half = Model::random(right.owned.model.config(), narrow, 1);
  for (const auto& parameter : half.parameters()) {
    const Parameter& wide = right.owned.model.parameter(parameter->name);
    if (parameter->name == "lm_head.weight") wide.value.mul_(8.0);
    wide.value.copy_(wide.value.to(at::kBFloat16));
    parameter->value.copy_(wide.value);
  }
  find_truth(right);
  const HeadInputs head = head_inputs(right.subject(), 1.0);
  const auto [likely, targets] = at::softmax(head.logits, -1).max(-1);
  Batch batch = right.owned.batch;
  const at::Tensor confident = batch.targets.ne(kNoTarget) & likely.gt(0.97) & likely.lt(0.9995);
  ASSERT_GT(confident.sum().item<int64_t>(), 3);
  batch.targets = at::where(confident, targets, at::full_like(targets, kNoTarget));
  right.owned.batch = batch;
  find_truth(right);
  Settings standard;
  standard.method = Method::kStandard;
  const auto by = [&](const Settings& settings) {
    return rounded(evaluate(half, batch, *right.owned.objective, settings).gradients);
  };
  Settings streamed;
  streamed.chunk = 8;
  const Tensors noisy = by(standard);
  right.diagnosing.noise = {by(streamed), noisy};
  const double noise = precision_residual(noisy, right.truth);
  EXPECT_EQ(diagnose(right, cast(noisy, at::kBFloat16), noise).kind, Diagnosis::Kind::kRight);
  WrongSettings settings;
  settings.target_slope_rounded = true;
  Tensors wrong = right.wrong(settings);
  const double effect = FitGauge(wrong, right.truth).measure(right.truth).without_factor;
  for (auto& [name, gradient] : wrong)
    gradient = (gradient + noisy.at(name) - right.truth.at(name)).to(at::kBFloat16);
  SCOPED_TRACE(fmt::format("noise {}, effect {}", noise, effect));
  expect_said(right, wrong, "rounds a target's probability to bfloat16", noise);
}

TEST(DiagnoseParts, NothingOnCorrectGradients) {
  for (const char* model :
       {"qwen3.5-tiny", "gemma2-tiny", "gemma4-tiny", "deepseek-v3-tiny", "gpt-oss-tiny"}) {
    for (const char* tuning : {"full", "lora"}) {
      const DiagnoseCase right = diagnose_case({model, "sft", {}, tuning, "right", 9});
      for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16}) {
        const Diagnosis found = diagnose(right, cast(right.truth, dtype));
        EXPECT_EQ(found.kind, Diagnosis::Kind::kRight) << model << " " << tuning << "\n"
                                                       << diagnosis_text(found);
      }
    }
  }
}

}  // namespace
}  // namespace streambp::verify
