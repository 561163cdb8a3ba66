// Batches of objectives: read from files, made up, and refused. Packed rows and what trainers write:
// collated_inputs_test.cc.
#include <cmath>
#include <gtest/gtest.h>
#include <limits>

#include "streambp/model/scored.h"
#include "streambp/objective/terms.h"
#include "verify/tests/streambp/data/objective_inputs_testing.h"

namespace streambp {
namespace {

TEST(ObjectiveInputs, Pairs) {
  const Batch batch = read("dpo", pairs(), "in.");
  EXPECT_EQ(batch.offsets, (std::vector<int64_t>{0, 4, 6, 9, 12}));
  EXPECT_EQ(list(batch.targets), (std::vector<double>{kNo, 7, 8, kNo, 3, kNo, kNo, 9, kNo, 4, 11, kNo}));
  EXPECT_EQ(list(batch.sequence_inputs.at(inputs::kReferenceSums)), (std::vector<double>{-1, -2, -3, -4}));
  const Counts counts = count(batch);
  EXPECT_EQ(counts.scored, 6);
  EXPECT_EQ(counts.chosen, 3);
  EXPECT_EQ(counts.sequences, 4);
  const ObjectiveKind& dpo = objective_kind("dpo");
  EXPECT_FALSE(needs_reference(dpo, complete_options(dpo, {}), batch));
  const Batch bare = read("dpo", without(without(pairs(), "ref_chosen_logps"), "ref_rejected_logps"));
  EXPECT_TRUE(needs_reference(dpo, complete_options(dpo, {}), bare));
  EXPECT_FALSE(needs_reference(dpo, complete_options(dpo, {{"reference_free", "true"}}), bare));
}

TEST(ObjectiveInputs, PairsAreRefused) {
  const auto refuses = [](const File& file, const char* part) {
    return refused([&] { read("dpo", file); }, "batch.safetensors", part);
  };
  EXPECT_TRUE(refuses(without(pairs(), "completion_mask"), "completion_mask"));
  EXPECT_TRUE(refuses(without(pairs(), "ref_rejected_logps"), "ref_rejected_logps"));
  EXPECT_TRUE(
      refuses(with(pairs(), "ref_chosen_logps", doubles({1, 2, 3})), "ref_chosen_logps: expected shape [2]"));
  EXPECT_TRUE(
      refuses(with(pairs(), "completion_mask", rows({{0, 1}})), "completion_mask: expected shape [4, 4]"));
  EXPECT_TRUE(refuses(
      with(pairs(), "completion_mask", rows({{0, 0, 1, 2}, {0, 0, 1, 0}, {0, 0, 1, 0}, {0, 0, 1, 1}})),
      "completion_mask: expected integers 0 and 1"));
  EXPECT_TRUE(refuses(
      with(pairs(), "completion_mask", rows({{0, 0, 1, 1}, {1, 0, 1, 0}, {0, 0, 1, 0}, {0, 0, 1, 1}})),
      "completion_mask: row 1, column 0 of input_ids selects padding"));
  EXPECT_TRUE(refuses(
      with(pairs(), "completion_mask", rows({{0, 0, 1, 1}, {0, 0, 1, 0}, {0, 0, 1, 0}, {0, 1, 1, 1}})),
      "completion_mask: row 3, column 1 of input_ids selects a token that padding would predict"));
  EXPECT_TRUE(refuses(
      {{"input_ids", rows({{1, 2}, {3, 4}, {5, 6}})}, {"completion_mask", rows({{0, 1}, {0, 1}, {0, 1}})}},
      "3 sequences, expected an even number"));
  EXPECT_TRUE(refuses({{"input_ids", doubles({1, 2})}}, "input_ids: expected integers [rows, columns]"));
  EXPECT_TRUE(refuses({{"completion_mask", rows({{1}})}}, "input_ids"));
}

TEST(ObjectiveInputs, LabelledRows) {
  const File file{{"input_ids", rows({{1, 2, 3}, {4, 5, 6}})},
                  {"completion_mask", rows({{0, 1, 1}, {0, 0, 1}})},
                  {"role", rows({{1, 0}}).squeeze(0)},
                  {"ref_logps", doubles({-1, -2})}};
  const Batch batch = read("kto", file);
  EXPECT_EQ(list(batch.sequence_inputs.at(inputs::kRole)), (std::vector<double>{1, 0}));
  EXPECT_EQ(list(batch.sequence_inputs.at(inputs::kReferenceSums)), (std::vector<double>{-1, -2}));
  EXPECT_TRUE(refused([&] { read("kto", without(file, "role")); }, "role"));
  EXPECT_TRUE(
      refused([&] { read("kto", with(file, "ref_logps", doubles({-1}))); }, "ref_logps: expected shape [2]"));
}

TEST(ObjectiveInputs, Completions) {
  const Batch batch = read("grpo", completions());
  EXPECT_EQ(list(batch.targets), (std::vector<double>{kNo, 7, 8, 9, kNo, 3, 4, kNo}));
  EXPECT_EQ(list(batch.token_inputs.at(inputs::kAdvantages)),
            (std::vector<double>{0, 0.5, 0.5, 0.5, 0, -2, -2, 0}));
  EXPECT_EQ(list(batch.token_inputs.at(inputs::kOldLogProbabilities)),
            (std::vector<double>{0, -1, -2, -3, 0, -4, -5, 0}));
  EXPECT_EQ(list(batch.token_inputs.at(inputs::kReferenceLogProbabilities)),
            (std::vector<double>{0, -6, -7, -8, 0, -9, -10, 0}));
  const Batch of_tokens = read("grpo", with(completions(), "advantages", table({{1, 2, 3}, {4, 5, 6}})));
  EXPECT_EQ(list(of_tokens.token_inputs.at(inputs::kAdvantages)),
            (std::vector<double>{0, 1, 2, 3, 0, 4, 5, 0}));
  const Batch bare = read("grpo", without(completions(), "ref_per_token_logps"));
  const ObjectiveKind& grpo = objective_kind("grpo");
  EXPECT_FALSE(needs_reference(grpo, complete_options(grpo, {}), bare));
  EXPECT_TRUE(needs_reference(grpo, complete_options(grpo, {{"beta", "0.1"}}), bare));
}

TEST(ObjectiveInputs, CompletionsAreRefused) {
  const auto refuses = [](const File& file, const char* part) {
    return refused([&] { read("grpo", file); }, "batch.safetensors", part);
  };
  EXPECT_TRUE(refuses(without(completions(), "advantages"), "advantages"));
  EXPECT_TRUE(refuses(with(completions(), "advantages", doubles({1, 2, 3})),
                      "advantages: expected shape [2], got [3]"));
  EXPECT_TRUE(refuses(with(completions(), "advantages", table({{1, 2}, {3, 4}})),
                      "advantages: expected shape [2, 3]"));
  EXPECT_TRUE(refuses(with(completions(), "old_per_token_logps", table({{1, 2, 3}})),
                      "old_per_token_logps: expected"));
  EXPECT_TRUE(refuses(with(completions(), "completion_mask", rows({{1, 1, 1}, {1, 1, 1}})),
                      "completion_mask: row 1, column 4 of input_ids selects padding"));
  EXPECT_TRUE(refuses(with(completions(), "completion_mask", rows({{1, 1, 1, 1, 1, 1}})),
                      "expected shape [2, 1 to 5]"));
  EXPECT_TRUE(refuses(with(completions(), "completion_mask", rows({{1, 1, 1}})),
                      "completion_mask: expected shape [2, 3]"));
}

TEST(ObjectiveInputs, NumbersThatCountAreFinite) {
  const double nan = std::nan(""), inf = std::numeric_limits<double>::infinity();
  const auto refuses = [](const char* objective, const File& file, const char* part) {
    return refused([&] { read(objective, file); }, "batch.safetensors: ", part, "expected a finite number");
  };
  EXPECT_TRUE(refuses("dpo", with(pairs(), "ref_chosen_logps", doubles({-1, nan})),
                      "ref_chosen_logps: row 1 is nan"));
  EXPECT_TRUE(refuses("dpo", with(pairs(), "ref_rejected_logps", doubles({-inf, -4})),
                      "ref_rejected_logps: row 0 is -inf"));
  EXPECT_TRUE(
      refuses("grpo", with(completions(), "advantages", doubles({inf, 1})), "advantages: row 0 is inf"));
  const auto old = [&](double counted, double masked) {
    return with(completions(), "old_per_token_logps", table({{-1, counted, -3}, {-4, -5, masked}}));
  };
  EXPECT_TRUE(refuses("grpo", old(nan, 0), "old_per_token_logps: row 0, column 3 of input_ids is nan"));
  EXPECT_NO_THROW(read("grpo", old(-2, nan)));
}

TEST(ObjectiveInputs, Responses) {
  const Batch batch = read("ppo", responses());
  EXPECT_EQ(list(batch.targets), (std::vector<double>{kNo, 7, 8, 9, kNo, 3, 4, kNo}));
  EXPECT_EQ(list(batch.value_mask), (std::vector<double>{0, 1, 1, 1, 0, 1, 1, 1}));
  EXPECT_EQ(list(scored_indices(batch)), (std::vector<double>{1, 2, 3, 5, 6, 7}));
  EXPECT_EQ(list(batch.token_inputs.at(inputs::kAdvantages)), (std::vector<double>{0, 1, 2, 3, 0, 4, 5, 0}));
  EXPECT_EQ(list(batch.token_inputs.at(inputs::kOldValues)),
            (std::vector<double>{0, 1.5, 2.5, 3.5, 0, 4.5, 5.5, 6.5}));
  EXPECT_EQ(list(batch.token_inputs.at(inputs::kReturns)),
            (std::vector<double>{0, 0.1, 0.2, 0.3, 0, 0.4, 0.5, 0.6}));
  EXPECT_EQ(count(batch).valued, 6);
}

TEST(ObjectiveInputs, ResponsesAreRefused) {
  const auto refuses = [](const File& file, const char* part) {
    return refused([&] { read("ppo", file); }, "batch.safetensors", part);
  };
  for (const char* name :
       {"responses", "response_mask", "old_logprobs", "advantages", "old_values", "returns"}) {
    EXPECT_TRUE(refuses(without(responses(), name), name));
  }
  EXPECT_TRUE(refuses(with(responses(), "responses", rows({{7, 8, 1}, {3, 4, 17}})),
                      "responses: not the last 3 columns"));
  EXPECT_TRUE(
      refuses(with(responses(), "returns", table({{1, 2}, {3, 4}})), "returns: expected shape [2, 3]"));
  File padded = with(responses(), "attention_mask", rows({{1, 1, 1, 1, 1}, {0, 1, 1, 0, 0}}));
  padded["response_mask"] = rows({{1, 1, 1}, {1, 0, 0}});
  EXPECT_TRUE(refuses(padded, "value_mask: row 1, column 4 of input_ids asks for a value of padding"));
  const Batch no_values = read("ppo", without(responses(), "value_mask"));
  EXPECT_TRUE(refused([&] { make_objective("ppo", no_values); }, "value_mask is missing"));
  EXPECT_NO_THROW(make_objective("ppo", no_values, {{"vf_coef", "0"}}));
}

TEST(ObjectiveInputs, MadeUpBatchesSuitTheirObjectives) {
  for (const Variant& variant : all_variants()) {
    for (const int64_t length : {4, 13}) {
      const ObjectiveKind& kind = objective_kind(variant.name);
      const Options options = complete_options(kind, variant.options);
      const Batch batch = synthetic_batch(kind, options, 3, length, kVocabulary, 7);
      EXPECT_EQ(batch.size(), 3 * length) << variant.text();
      EXPECT_FALSE(needs_reference(kind, options, batch)) << variant.text();
      EXPECT_GT(count(batch).scored, 0) << variant.text();
      EXPECT_NO_THROW(make_objective(variant.name, batch, variant.options)) << variant.text();
    }
  }
  const ObjectiveKind& dpo = objective_kind("dpo");
  const Batch pair = synthetic_batch(dpo, complete_options(dpo, {}), 1, 17, kVocabulary, 7);
  EXPECT_EQ(pair.offsets, (std::vector<int64_t>{0, 8, 17}));
  EXPECT_TRUE(at::equal(pair.tokens.narrow(0, 0, 2), pair.tokens.narrow(0, 8, 2))) << "one prompt";
  EXPECT_EQ(count(pair).scored, 6 + 7);
  EXPECT_TRUE(
      refused([&] { synthetic_batch(dpo, complete_options(dpo, {}), 1, 3, kVocabulary, 7); }, "at least 4"));
}

TEST(ObjectiveOptions, AreRefused) {
  const ObjectiveKind& grpo = objective_kind("grpo");
  const Batch labels = random_batch({4, 5}, kVocabulary, 1);
  const Batch completed = synthetic_batch(grpo, complete_options(grpo, {}), 2, 9, kVocabulary, 1);
  const auto refuses = [&](const char* name, const std::map<std::string, std::string>& options,
                           const char* part) {
    return refused([&] { make_objective(name, std::string(name) == "grpo" ? completed : labels, options); },
                   name, part);
  };
  EXPECT_TRUE(
      refuses("elo", {},
              "expected one of sft, dpo, cpo, simpo, orpo, kto, grpo, rloo, ppo, distill, reward, infonce"));
  EXPECT_TRUE(refuses("sft", {{"beta", "1"}},
                      "no option 'beta'; it has loss_type, reduction, divisor, label_smoothing"));
  EXPECT_TRUE(refuses("sft", {{"reduction", "max"}}, "reduction is 'max', expected one of mean, sum"));
  EXPECT_TRUE(refuses("sft", {{"reduction", "sum"}, {"divisor", "2"}}, "divisor"));
  for (const char* bad : {"0", "-1", "nan", "inf", "3x", " 3"}) {
    EXPECT_TRUE(refuses("sft", {{"divisor", bad}}, "divisor is"));
  }
  EXPECT_TRUE(refuses("sft", {{"label_smoothing", "1.5"}}, "expected a number from 0 to 1"));
  EXPECT_TRUE(refuses("dpo", {{"beta", "-0.1"}}, "beta is '-0.1', expected a number from 0"));
  EXPECT_TRUE(refuses("dpo", {{"beta", "a lot"}}, "beta is 'a lot', expected a number from 0"));
  EXPECT_TRUE(refuses("dpo", {{"beta", "0"}, {"loss_type", "ipo"}}, "beta is 0, expected a number above 0"));
  EXPECT_TRUE(refuses("dpo", {{"label_smoothing", "0.5"}, {"loss_type", "robust"}}, "less than 0.5"));
  EXPECT_TRUE(refuses("dpo", {{"label_smoothing", "0.1"}, {"loss_type", "hinge"}},
                      "expected 0 with loss_type hinge"));
  EXPECT_TRUE(refuses("dpo", {}, "the reference's log-probabilities are missing"));
  EXPECT_TRUE(refuses("simpo", {{"beta", "-1"}}, "beta"));
  EXPECT_TRUE(refuses("kto", {}, "input 'role' is missing"));
  EXPECT_TRUE(refuses("grpo", {{"beta", "-1"}}, "beta is '-1'"));
  EXPECT_TRUE(refuses("grpo", {{"beta", "1"}}, "input 'reference_log_probabilities' is missing"));
  EXPECT_TRUE(refuses("grpo", {{"loss_type", "dr_grpo"}}, "max_completion_length"));
  EXPECT_TRUE(refuses("grpo", {{"temperature", "0"}}, "temperature"));
  EXPECT_TRUE(refuses("ppo", {}, "input 'advantages' is missing"));
  EXPECT_TRUE(refuses("distill", {{"alpha", "2"}}, "alpha"));
}

TEST(ObjectiveOptions, BatchesThatDoNotFitAreRefused) {
  const ObjectiveKind& grpo = objective_kind("grpo");
  Batch batch = synthetic_batch(grpo, complete_options(grpo, {}), 3, 9, kVocabulary, 1);
  const Counts counts = count(batch);
  batch.token_inputs[inputs::kAdvantages] = at::zeros({5}, at::kDouble);
  EXPECT_TRUE(
      refused([&] { make_objective("grpo", batch); }, "input 'advantages' has shape [5], expected [27]"));
  batch.token_inputs[inputs::kAdvantages] = at::full({27}, std::nan(""), at::kDouble);
  EXPECT_TRUE(
      refused([&] { make_objective("grpo", batch); }, "'advantages' is not a finite number at token 1"));
  Counts smaller = counts;
  --smaller.scored;
  EXPECT_TRUE(refused([&] { make_objective("grpo", batch, {}, smaller); }, "below those of a part"));

  for (const char* pairs : {"dpo", "simpo", "orpo"}) {
    EXPECT_TRUE(refused([&] { make_objective(pairs, batch); }, "3 sequences, expected an even number"));
  }
  Batch empty = random_batch({4, 5}, kVocabulary, 1);
  empty.targets.slice(0, 4).fill_(kNoTarget);
  EXPECT_TRUE(refused([&] { make_objective("orpo", empty); }, "sequence 1 has no completion token"));

  Batch valued = random_batch({4, 5}, kVocabulary, 1);
  valued.targets.fill_(kNoTarget);
  valued.value_mask = at::ones({9}, at::kBool);
  EXPECT_TRUE(refused(
      [&] {
        make_objective("ppo", valued, {{"vf_coef", "0"}});
      },
      "vf_coef is 0 on a batch of values alone, expected a number above 0"));

  batch.sequence_inputs = {{inputs::kRole, doubles({1, 2, 3})}, {inputs::kReferenceSums, doubles({0, 0, 0})}};
  EXPECT_TRUE(refused([&] { make_objective("kto", batch); }, "expected 0 (undesirable), 1 (desirable) or 2"));
  batch.sequence_inputs[inputs::kRole] = doubles({1, 2, 0});
  Counts larger = counts;
  ++larger.sequences;
  EXPECT_TRUE(refused([&] { make_objective("kto", batch, {}, larger); }, "KL estimate in a part of a batch"));
}

}  // namespace
}  // namespace streambp
