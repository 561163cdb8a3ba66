// Losses that are not the subject's, and gradients that are wrong in places of their own, planted by the
// library's passes alone: said without a trial.
#include <cmath>

#include "streambp/objective/terms.h"
#include "verify/diagnose/parts/column_words.h"
#include "verify/diagnose/parts/slopes.h"
#include "verify/tests/verify/diagnose/diagnose_testing.h"

namespace streambp::verify {
namespace {

/// Passes that a finding by parts takes at most.
constexpr double kFewPasses = 10.0;

void expect_said_soon(const DiagnoseCase& planted, const Tensors& gradients, const std::string& words) {
  const Diagnosis found = diagnose(planted, gradients);
  ASSERT_FALSE(found.explanations.empty());
  EXPECT_NE(found.explanations.front().sentence.find(words), std::string::npos)
      << "expected: " << words << "\n"
      << diagnosis_text(found);
  EXPECT_LE(found.passes, kFewPasses) << words;
}

DiagnoseCase pairs(const char* training) {
  return diagnose_case({"qwen3-tiny", "dpo", {{"beta", "0.3"}}, training, "left", 11});
}

DiagnoseCase completions() {
  return diagnose_case({"glm4-tiny", "grpo", {{"beta", "0.2"}}, "full", "left", 11});
}

/// The last token that is scored of each row is not.
Batch without_last_targets(Batch batch) {
  batch.targets = batch.targets.clone();
  for (size_t i = 0; i + 1 < batch.offsets.size(); ++i) {
    const at::Tensor own = batch.targets.slice(0, batch.offsets[i], batch.offsets[i + 1]);
    const at::Tensor scored = own.ne(kNoTarget).nonzero();
    if (scored.size(0) > 1) own[scored[scored.size(0) - 1].item<int64_t>()] = kNoTarget;
  }
  return batch;
}

TEST(DiagnoseLosses, BetaOfPairs) {
  for (const char* training : {"full", "lora"}) {  // whose head is not trained
    const DiagnoseCase right = pairs(training);
    expect_said_soon(right, under(right, right.owned.batch, {{"beta", "0.7"}}), "beta is 0.7 instead of 0.3");
  }
}

TEST(DiagnoseLosses, LabelSmoothingOfPairs) {
  const DiagnoseCase right = pairs("lora");
  expect_said_soon(right,
                   under(right, right.owned.batch, {{"beta", "0.3"}, {"cdpo_label_smoothing", "0.13"}}),
                   "label_smoothing is 0.13 instead of 0");
  expect_said_soon(right, under(right, right.owned.batch, {{"beta", "0.3"}, {"cdpo_label_smoothing", "1"}}),
                   "chosen and rejected completions are exchanged");
}

/// Of few rows, terms that nobody has asked for stand for any weights of the rows.
TEST(DiagnoseLosses, WeightsOfPairsAreNoTerms) {
  const DiagnoseCase right = pairs("full");
  Batch batch = right.owned.batch;
  if (batch.sequence_inputs.contains(inputs::kReferenceSums)) {
    at::Tensor& sums = batch.sequence_inputs[inputs::kReferenceSums];
    sums = sums / 5.0;
  } else {
    at::Tensor& each = batch.token_inputs[inputs::kReferenceLogProbabilities];
    each = each / 5.0;
  }
  const Diagnosis found = diagnose(right, under(right, batch, {{"beta", "0.3"}}));
  ASSERT_FALSE(found.explanations.empty());
  EXPECT_EQ(found.explanations.front().sentence.find("cross-entropy"), std::string::npos)
      << diagnosis_text(found);
}

/// Of two pairs, any weights are a sum of the loss and of two cross-entropies.
TEST(DiagnoseLosses, WeightsOfTwoPairsAreNoTerms) {
  DiagnoseCase right = pairs("full");
  const int64_t half = (static_cast<int64_t>(right.owned.batch.offsets.size()) - 1) / 2;
  right = diagnose_case({"qwen3-tiny", "dpo", {{"beta", "0.3"}}, "full", "left", 11},
                        select_sequences(right.owned.batch, {0, 1, half, half + 1}));
  const auto objective = make_objective("dpo", right.owned.batch, right.options);
  const Linearised linear(right.owned.model, right.owned.batch, *objective, nullptr);
  const Tensors first = linear.gradients_of(linear.slopes(), {0, 2});
  const Diagnosis found = diagnose(right, weighted(times(right.truth, 0.53), 0.31, first));
  EXPECT_NE(diagnosis_text(found).find("rows don't count alike"), std::string::npos) << diagnosis_text(found);
  Batch chosen = select_sequences(right.owned.batch, {0, 1});
  const Tensors of_chosen =
      evaluate(right.owned.model, chosen, *make_objective("sft", chosen, {}), {}).gradients;
  expect_said(right, cast(weighted(right.truth, 1.0, of_chosen), at::kFloat),
              "the chosen completions' cross-entropy");
}

TEST(DiagnoseLosses, TemperatureOfCompletions) {
  const DiagnoseCase right =
      diagnose_case({"qwen3-tiny", "grpo", {{"beta", "0.2"}, {"temperature", "0.7"}}, "full", "none", 11});
  expect_said(right, under(right, right.owned.batch, {{"beta", "0.2"}, {"temperature", "0.77"}}),
              "temperature is 0.77 instead of 0.7");
}

TEST(DiagnoseLosses, DivergenceOverTheVocabulary) {
  DiagnoseCase right = diagnose_case({"qwen3-tiny", "distill", {}, "full", "none", 11});
  const auto vocabulary = static_cast<double>(right.owned.model.config().vocab_size);
  expect_said(right, times(right.truth, 1.0 / vocabulary), "divided by the vocabulary = ");
}

TEST(DiagnoseLosses, ReferencesExchanged) {
  const DiagnoseCase right = pairs("lora");
  Batch batch = right.owned.batch;
  if (!batch.sequence_inputs.contains(inputs::kReferenceSums)) {
    const at::Tensor of_tokens = batch.token_inputs.at(inputs::kReferenceLogProbabilities);
    std::vector<double> sums;
    for (size_t i = 0; i + 1 < batch.offsets.size(); ++i)
      sums.push_back(of_tokens.slice(0, batch.offsets[i], batch.offsets[i + 1]).sum().item<double>());
    batch.token_inputs.erase(inputs::kReferenceLogProbabilities);
    batch.sequence_inputs[inputs::kReferenceSums] = at::tensor(at::ArrayRef<double>(sums), at::kDouble);
  }
  const DiagnoseCase summed =
      diagnose_case({"qwen3-tiny", "dpo", {{"beta", "0.3"}}, "lora", "left", 11}, batch);
  Batch exchanged = batch;
  at::Tensor& sums = exchanged.sequence_inputs.at(inputs::kReferenceSums);
  sums = at::cat({sums.slice(0, sums.size(0) / 2), sums.slice(0, 0, sums.size(0) / 2)});
  expect_said_soon(summed, under(summed, exchanged, {{"beta", "0.3"}}),
                   "the reference's log-probabilities are other rows': chosen and rejected are exchanged");
}

TEST(DiagnoseLosses, EndsOfTextAreNotScored) {
  for (const DiagnoseCase& right : {pairs("full"), completions()})
    expect_said_soon(right, under(right, without_last_targets(right.owned.batch), right.options),
                     "each row's last token is neither scored nor counted");
}

TEST(DiagnoseLosses, RatiosAreNotClipped) {
  const DiagnoseCase right = completions();
  OptionMap options = right.options;
  options["epsilon_low"] = "1";
  options["epsilon_high"] = "1e9";
  const Tensors wrong = under(right, right.owned.batch, options);
  ASSERT_GT(FitGauge(wrong, right.truth).measure(right.truth).without_factor, 1e-6) << "nothing is clipped";
  expect_said_soon(right, wrong, "ratios are not clipped");
}

TEST(DiagnoseLosses, DivergenceIsAveragedOtherwise) {
  const DiagnoseCase right = completions();
  OptionMap without = right.options, other = right.options, neither = right.options;
  without["beta"] = neither["beta"] = "0";
  other["loss_type"] = neither["loss_type"] = "bnpo";
  const Batch& batch = right.owned.batch;
  const Tensors policy = under(right, batch, without);
  const Tensors wrong =
      weighted(weighted(policy, 1.0, under(right, batch, other)), -1.0, under(right, batch, neither));
  expect_said_soon(right, wrong, "the KL term is averaged as loss_type bnpo does");
}

TEST(DiagnoseLosses, ColumnsOfUnequalRuns) {
  const at::Tensor columns = at::tensor({0, 1, 2, 3, 4, 5, 6, 0, 1, 2, 3}, at::kLong);
  const auto weights = [&](double early, double late) {
    return at::where(columns.lt(3), at::full({11}, early, at::kDouble), at::full({11}, late, at::kDouble));
  };
  const at::Tensor errors = at::full({11}, 1e-6, at::kDouble);
  const auto means = words_of_columns(columns, weights(11.0 / 12.0, 11.0 / 10.0), errors);
  ASSERT_TRUE(means);
  EXPECT_EQ(means->sentence, "the loss is the mean of the means of columns 0 to 2 and 3 to 6");
  const auto others = words_of_columns(columns, weights(1.0, 0.5), errors);
  ASSERT_TRUE(others);
  EXPECT_EQ(others->sentence, "tokens count 1 times in columns 0 to 2, 0.5 times in columns 3 to 6");
  EXPECT_FALSE(words_of_columns(columns, at::ones({11}, at::kDouble), errors));
  EXPECT_FALSE(words_of_columns(columns, at::arange(11, at::kDouble), errors));
}

TEST(DiagnoseLosses, GradientsOfSomeAreOneRanks) {
  const DiagnoseCase right = eight_rows("qwen2-tiny");
  const Batch half = select_sequences(right.owned.batch, {0, 1, 2, 3});
  const auto objective = make_objective("sft", half, {}, count(right.owned.batch));
  const Tensors of_rank = evaluate(right.owned.model, half, *objective, {}).gradients;
  Tensors wrong = right.truth;
  for (auto& [name, gradient] : wrong) {
    if (name.find("layers.1.mlp.") != std::string::npos) gradient = of_rank.at(name);
  }
  expect_said_soon(right, wrong, "rows 4 to 7 are missing: only the first of 2 micro-batches");
  expect_said_soon(right, wrong, "mlp.down_proj.weight of layer 1");
}

TEST(DiagnoseLosses, RowsOfAMatrixHaveNoGradient) {
  const DiagnoseCase right = eight_rows("llama-tiny");
  Tensors wrong = right.truth;
  at::Tensor& keys = wrong.at("model.layers.0.self_attn.k_proj.weight");
  keys = keys.clone();
  keys.slice(0, 0, keys.size(0) / 2).zero_();
  expect_said(
      right, wrong,
      fmt::format("in rows 0 to {} of {}, which have no gradient", keys.size(0) / 2 - 1, keys.size(0)));
}

TEST(DiagnoseLosses, GradientsAreClippedOneByOne) {
  const DiagnoseCase right = eight_rows("gemma-tiny");
  double least = 1e300;
  for (const auto& [name, gradient] : right.truth) least = std::min(least, gradient.norm().item<double>());
  Tensors wrong = right.truth;
  for (auto& [name, gradient] : wrong)
    gradient = gradient * std::min(1.0, 2.0 * least / gradient.norm().item<double>());
  expect_said(right, wrong, "gradients are clipped parameter by parameter");
}

TEST(DiagnoseLosses, PartsInSinglePrecision) {
  // A float64 model whose rotation is in float32.
  const DiagnoseCase right = eight_rows("qwen3-tiny");
  at::Generator generator = at::detail::createCPUGenerator(3);
  Tensors near = right.truth;
  for (auto& [name, gradient] : near)
    gradient = gradient * (1.0 + 2e-8 * at::randn(gradient.sizes(), generator, at::kDouble));
  EXPECT_EQ(diagnose(right, near).kind, Diagnosis::Kind::kRight);
  expect_said(right, times(near, 0.25), "4");
  Tensors wrong = near;
  for (auto& [name, gradient] : wrong) {
    if (name.find("layers.0.") != std::string::npos) gradient = gradient * 2.0;
  }
  expect_said(right, wrong, "all of layer 0 are 2 times what they should be");
}

}  // namespace
}  // namespace streambp::verify
