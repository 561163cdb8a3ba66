// Plants every mistake that a model and a batch can show, and checks that the diagnosis names it.
#include <algorithm>
#include <fmt/format.h>
#include <set>

#include "streambp/error.h"
#include "verify/tests/turns.h"
#include "verify/tests/verify/diagnose/diagnose_testing.h"

namespace streambp::verify {
namespace {

/// Plants the mistakes `expected`, and in a thorough run the others that there are hypotheses of, but for
/// what changes nothing here. Each is named.
void expect_all_named(const DiagnoseCase& planted, const std::vector<std::string>& expected,
                      const std::vector<at::ScalarType>& dtypes = {at::kDouble}) {
  std::set<std::string> names;
  for (const Hypothesis& hypothesis : hypotheses(planted.subject(), {})) {
    const bool is_expected = std::find(expected.begin(), expected.end(), hypothesis.name) != expected.end();
    if (!is_expected && !is_thorough()) continue;
    Tensors gradients;
    try {
      gradients = planted.wrong(hypothesis.settings());
    } catch (const InputError&) {
      continue;
    }
    if (FitGauge(gradients, planted.truth).measure(planted.truth).without_factor <= 1e-9) continue;
    names.insert(hypothesis.name);
    for (const at::ScalarType dtype : dtypes) expect_named(planted, cast(gradients, dtype), hypothesis.name);
  }
  for (const std::string& name : expected) EXPECT_TRUE(names.contains(name)) << name << " was never planted";
}

TEST(Diagnose, NamesMistakesOfTargetsMasksAndWindows) {
  expect_all_named(diagnose_case({"gemma2-tiny", "sft", {}, "full", "left", 11}),
                   {"labels-not-shifted",
                    "labels-not-shifted-first-counts",
                    "labels-shifted-twice",
                    "labels-lost-4",
                    "labels-lost-4-columns",
                    "prompt-scored",
                    "padding-not-masked",
                    "windows-ignored",
                    "window+1",
                    "window-1",
                    "attention-softcap-missing",
                    "final-softcap-missing",
                    "tied-head-missing",
                    "tied-input-missing",
                    "tied-head-doubled",
                    "bf16-embedding-sum",
                    "bf16-vector-sums",
                    "bf16-row-sums",
                    "bf16-rounded",
                    "key-positions-padding",
                    "query-positions-padding",
                    "mean-of-means-1-rows",
                    "mean-of-means-4-columns",
                    "mean-of-means-6-scored",
                    "detached-4",
                    "prefix-dropped-4",
                    "top-left-causal-4",
                    "not-causal-4",
                    "rope-restarts-4",
                    "rope-padding-4"});
  expect_all_named(diagnose_case({"gemma3-tiny", "sft", {}, "full", "right", 11}),
                   {"padding-scored", "padding-not-masked-and-scored", "local-rope-missing"}, {at::kFloat});
}

TEST(Diagnose, NamesMistakesOfPackedRows) {
  expect_all_named(
      diagnose_case({"mistral-tiny", "sft", {}, "full", "three", 9}, packed_rows({7, 5, 6, 3, 3}, 12, 101)),
      {"no-document-boundaries", "no-document-boundaries-positions-go-on", "detached-4", "detached-4-columns",
       "detached-8-packed", "mean-of-means-4"},
      {at::kFloat});
}

TEST(Diagnose, NamesMistakesOfMixturesAdaptersAndTables) {
  expect_all_named(diagnose_case({"qwen3-moe-tiny", "sft", {}, "full", "right", 9}),
                   {"labels-shifted-twice"});
  expect_all_named(diagnose_case({"gpt-oss-tiny", "sft", {}, "full", "right", 9}),
                   {"sinks-missing", "gate-clamps-missing", "window+1", "looks-ahead", "score-scale-none"});
  expect_all_named(diagnose_case({"phi3-tiny", "sft", {}, "lora", "left", 15}),
                   {"adapter-scale-alpha", "adapter-scale-rslora", "adapter-scale-over-r",
                    "adapter-scale-one", "rope-length-17"});
}

TEST(Diagnose, NamesMistakesOfObjectives) {
  expect_all_named(diagnose_case({"qwen3-tiny", "dpo", {}, "full", "left", 9}), {"reference-is-policy"});
  expect_all_named(diagnose_case({"llama-tiny", "grpo", {{"beta", "0.04"}}, "full", "left", 9}),
                   {"old-missing"});
  expect_all_named(diagnose_case({"llama-tiny", "ppo", {}, "lora", "left", 9}),
                   {"old-missing", "advantages-centred-tokens"});
}

TEST(Diagnose, NamesFactors) {
  const DiagnoseCase right = diagnose_case({"qwen2-tiny", "sft", {}, "full", "left", 13});
  const auto scored = static_cast<double>(count(right.owned.batch).scored);
  const auto rows = static_cast<double>(right.owned.batch.padded_rows);
  Turns turns(10);
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16}) {
    for (int k = 2; k <= 64; ++k) {
      if (!turns.next()) continue;
      expect_named(right, cast(times(right.truth, 1.0 / k), dtype), fmt::format("1/{}", k));
      expect_named(right, cast(times(right.truth, k), dtype), fmt::format("times-{}", k));
    }
    expect_named(right, cast(times(right.truth, scored / (scored + rows)), dtype), "(N-B)/N");
    expect_named(right, cast(times(right.truth, scored / (scored - rows)), dtype), "N/(N-B)");
    expect_named(right, cast(times(right.truth, -1.0), dtype), "opposite-sign");
  }
}

TEST(Diagnose, NamesTwoCountsWhoseRatioTheGradientsAreOff) {
  // The number of a generated batch, and the completion tokens of this one.
  DiagnoseCase right = diagnose_case({"llama-tiny", "grpo", {{"loss_type", "dapo"}}, "full", "left", 11});
  const auto scored = static_cast<double>(count(right.owned.batch).scored);
  const double generated = 2.0 * scored + 7.0;
  right.owned.batch.scalar_inputs["num_items_in_batch"] = generated;
  find_truth(right);
  expect_named(right, times(right.truth, generated / scored), fmt::format("divisor-{}", scored));
  right.options["num_items_in_batch"] = fmt::format("{}", scored);
  find_truth(right);
  expect_named(right, times(right.truth, scored / generated), fmt::format("divisor-{}", generated));
}

TEST(Diagnose, NamesMistakesOfFamiliesThatTheWrongEngineDoesNotKnow) {
  expect_all_named(
      diagnose_case({"qwen3.5-tiny", "sft", {}, "full", "three", 9}, packed_rows({7, 5, 6, 3, 3}, 12, 101)),
      {"no-document-boundaries", "labels-shifted-twice", "recurrent-layers-cross-documents",
       "full-attention-crosses-documents", "looks-ahead"});
  expect_all_named(diagnose_case({"gemma4-tiny", "sft", {}, "full", "left", 11}),
                   {"window+1", "windows-ignored", "padding-not-masked", "detached-4"});
  expect_all_named(diagnose_case({"deepseek-v3-tiny", "sft", {}, "full", "left", 11}),
                   {"labels-not-shifted"});
  expect_all_named(diagnose_case({"qwen3-tiny", "sft", {}, "full", "right", 11}),
                   {"blocks-averaged-2", "blocks-added-2", "blocks-averaged-over-all-4", "positions-negated",
                    "keys-not-rotated", "queries-not-rotated", "keys-one-later", "layer-0-twice",
                    "sees-not-itself", "first-unseen", "zero-sink", "window-of-4"});
  expect_all_named(diagnose_case({"qwen2-tiny", "sft", {}, "full", "right", 11}), {"zero-biases"});
  expect_all_named(diagnose_case({"qwen3-tiny", "sft", {}, "full", "single", 11}), {"heads-not-transposed"});
  expect_all_named(diagnose_case({"qwen3-moe-plain-tiny", "sft", {}, "full", "left", 13}),
                   {"equal-weights", "other-experts-1"});
  expect_all_named(
      diagnose_case({"mixtral-tiny", "sft", {{"router_aux_loss_coef", "0"}}, "full", "left", 13}),
      {"first-expert-alone"});
  expect_all_named(diagnose_case({"qwen3-tiny", "sft", {}, "lora", "right", 9}), {"looks-ahead"});
}

TEST(Diagnose, NamesPairs) {
  const DiagnoseCase planted = diagnose_case({"gemma2-tiny", "sft", {}, "full", "left", 13});
  WrongSettings settings;
  settings.window_offset = 1;
  settings.tied.head = 0.0;
  expect_named(planted, planted.wrong(settings), "window+1 + tied-head-missing");
  settings = {};
  settings.target_shift = -1;
  settings.no_attention_softcap = true;
  expect_named(planted, planted.wrong(settings), "labels-shifted-twice + attention-softcap-missing");
  settings = {};
  settings.detached = {Cut::Along::kSequence, 4};
  expect_named(planted, times(planted.wrong(settings), 1.0 / 8), "detached-4 + 1/8");
  settings.normaliser = {Cut::Along::kRows, 1};
  expect_named(planted, cast(planted.wrong(settings), at::kFloat), "mean-of-means-1-rows + detached-4");
}

TEST(Diagnose, SaysThatNothingFits) {
  const DiagnoseCase right = diagnose_case({"qwen3-tiny", "sft", {}, "full", "left", 9});
  EXPECT_EQ(diagnose(right, right.truth).kind, Diagnosis::Kind::kRight);
  EXPECT_EQ(diagnose(right, cast(right.truth, at::kFloat)).kind, Diagnosis::Kind::kRight);
  Tensors other = right.truth;
  at::Generator generator = at::detail::createCPUGenerator(3);
  for (auto& [name, gradient] : other)
    gradient = gradient + at::randn(gradient.sizes(), generator, at::kDouble) * gradient.abs().mean() * 0.1;
  const Diagnosis diagnosis = diagnose(right, other);
  EXPECT_EQ(diagnosis.kind, Diagnosis::Kind::kUnknown) << diagnosis_text(diagnosis);
  EXPECT_NE(diagnosis_text(diagnosis).find("none of"), std::string::npos) << diagnosis_text(diagnosis);
  EXPECT_GT(diagnosis.pairs_tried, 0U);
}

TEST(Diagnose, RefusesGradientsOfOtherShapesAndRowsTooLong) {
  const DiagnoseCase right = diagnose_case({"qwen3-tiny", "sft", {}, "full", "left", 9});
  Tensors other = right.truth;
  other["model.norm.weight"] = at::zeros({3}, at::kDouble);
  EXPECT_THROW(diagnose(right, other), InputError);
  EXPECT_THROW(check_wrong_memory(right.owned.model.config(), random_batch({20000}, 101, 1)), InputError);
}

}  // namespace
}  // namespace streambp::verify
