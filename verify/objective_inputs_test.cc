// Batches of objectives: read from files, made up, and refused.
#include "streambp/driver/objective_inputs.h"

#include <gtest/gtest.h>

#include "streambp/model/tensor_file.h"
#include "streambp/objective/terms.h"
#include "verify/file_testing.h"
#include "verify/objective_testing.h"

namespace streambp {
namespace {

constexpr int64_t kVocabulary = 20;
constexpr int64_t kNo = kNoTarget;

using File = std::map<std::string, at::Tensor>;

at::Tensor rows(const std::vector<std::vector<int64_t>>& values) {
  std::vector<at::Tensor> tensors;
  for (const auto& row : values) tensors.push_back(at::tensor(at::ArrayRef<int64_t>(row), at::kLong));
  return at::stack(tensors);
}

at::Tensor table(const std::vector<std::vector<double>>& values) {
  std::vector<at::Tensor> tensors;
  for (const auto& row : values) tensors.push_back(doubles(row));
  return at::stack(tensors);
}

Batch read(const std::string& objective, const File& tensors, const std::string& prefix = "") {
  const TempFolder folder;
  File prefixed;
  for (const auto& [name, tensor] : tensors) prefixed.emplace(prefix + name, tensor);
  write_tensors(folder.path() / "batch.safetensors", prefixed);
  return read_objective_batch(objective_kind(objective),
                              SafetensorsFile::open(folder.path() / "batch.safetensors"), kVocabulary,
                              prefix);
}

File with(File file, const std::string& name, const at::Tensor& tensor) {
  file[name] = tensor;
  return file;
}

File without(File file, const std::string& name) {
  file.erase(name);
  return file;
}

std::vector<double> list(const at::Tensor& tensor) {
  const at::Tensor data = tensor.to(at::kDouble).contiguous();
  return {data.const_data_ptr<double>(), data.const_data_ptr<double>() + data.numel()};
}

/// Two pairs: prompts padded on the left, completions on the right.
File pairs() {
  return {{"input_ids", rows({{5, 6, 7, 8}, {0, 2, 3, 0}, {5, 6, 9, 0}, {0, 2, 4, 11}})},
          {"attention_mask", rows({{1, 1, 1, 1}, {0, 1, 1, 0}, {1, 1, 1, 0}, {0, 1, 1, 1}})},
          {"completion_mask", rows({{0, 0, 1, 1}, {0, 0, 1, 0}, {0, 0, 1, 0}, {0, 0, 1, 1}})},
          {"ref_chosen_logps", doubles({-1, -2})},
          {"ref_rejected_logps", doubles({-3, -4})}};
}

/// Two rows of T = 5, completions in the last 3 columns.
File completions() {
  return {{"input_ids", rows({{5, 6, 7, 8, 9}, {0, 2, 3, 4, 0}})},
          {"attention_mask", rows({{1, 1, 1, 1, 1}, {0, 1, 1, 1, 0}})},
          {"completion_mask", rows({{1, 1, 1}, {1, 1, 0}})},
          {"advantages", doubles({0.5, -2})},
          {"old_per_token_logps", table({{-1, -2, -3}, {-4, -5, 1e300}})},
          {"ref_per_token_logps", table({{-6, -7, -8}, {-9, -10, 1e300}})}};
}

/// The same rows as responses; the second is asked for one value more than it has tokens.
File responses() {
  return {{"input_ids", rows({{5, 6, 7, 8, 9}, {0, 2, 3, 4, 0}})},
          {"attention_mask", rows({{1, 1, 1, 1, 1}, {0, 1, 1, 1, 0}})},
          {"responses", rows({{7, 8, 9}, {3, 4, 17}})},
          {"response_mask", rows({{1, 1, 1}, {1, 1, 0}})},
          {"value_mask", rows({{1, 1, 1}, {1, 1, 1}})},
          {"old_logprobs", table({{-1, -2, -3}, {-4, -5, 1}})},
          {"advantages", table({{1, 2, 3}, {4, 5, 6}})},
          {"old_values", table({{1.5, 2.5, 3.5}, {4.5, 5.5, 6.5}})},
          {"returns", table({{0.1, 0.2, 0.3}, {0.4, 0.5, 0.6}})}};
}

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

TEST(ObjectiveInputs, Responses) {
  const Batch batch = read("ppo", responses());
  EXPECT_EQ(list(batch.targets), (std::vector<double>{kNo, 7, 8, 9, kNo, 3, 4, kNo}));
  EXPECT_EQ(list(batch.value_mask), (std::vector<double>{0, 1, 1, 1, 0, 1, 1, 1}));
  EXPECT_EQ(list(scored_places(batch)), (std::vector<double>{1, 2, 3, 5, 6, 7}));
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

/// A packed row as TRL's collator for SFT writes it: documents of 3, 1 and 2 tokens, and two of padding.
File packed_row() {
  const auto list = [](const std::vector<int64_t>& values) { return rows({values}).squeeze(0).to(at::kInt); };
  return {{"input_ids", rows({{1, 2, 3, 4, 5, 6, 0, 0}})},
          {"labels", rows({{kNo, 2, 3, kNo, kNo, 6, kNo, kNo}})},
          {"position_ids", rows({{0, 1, 2, 0, 0, 1, 0, 0}})},
          {"cu_seq_lens_q", list({0, 3, 4, 6, 7, 8})},
          {"cu_seq_lens_k", list({0, 3, 4, 6, 7, 8})},
          {"max_length_q", at::scalar_tensor(3, at::kLong)},
          {"max_length_k", list({3})},
          {"seq_idx", rows({{0, 0, 0, 1, 2, 2, 3, 4}}).to(at::kInt)}};
}

TEST(ObjectiveInputs, PackedRows) {
  const Batch batch = read("sft", packed_row(), "in.");
  EXPECT_EQ(batch.offsets, (std::vector<int64_t>{0, 3, 4, 6, 7, 8}));
  EXPECT_EQ(count(batch).scored, 3);
  EXPECT_TRUE(reading_notes(batch).empty());
  EXPECT_EQ(read("distill", packed_row()).offsets, batch.offsets);
  const auto refuses = [](const File& file, const char* part) {
    return refused([&] { read("sft", file); }, "batch.safetensors", part);
  };
  for (const char* name : {"cu_seq_lens_q", "cu_seq_lens_k"}) {
    EXPECT_TRUE(refuses(with(packed_row(), name, rows({{0, 3, 6, 7, 8}}).squeeze(0)), name));
  }
  EXPECT_TRUE(refuses(with(packed_row(), "cu_seq_lens_q", rows({{0, 8}}).squeeze(0)),
                      "cu_seq_lens_q: not the documents of position_ids, expected [0, 3, 4, 6, 7, 8]"));
  for (const char* name : {"max_length_q", "max_length_k"}) {
    EXPECT_TRUE(refuses(with(packed_row(), name, at::scalar_tensor(2, at::kLong)), name));
  }
  EXPECT_TRUE(refuses(with(packed_row(), "seq_idx", rows({{0, 0, 0, 0, 1, 1, 2, 3}})), "seq_idx"));
  EXPECT_TRUE(refuses(without(packed_row(), "position_ids"), "cu_seq_lens_q: expected position_ids"));
  EXPECT_TRUE(refuses(with(packed_row(), "attention_mask", rows({{1, 1, 1, 1, 1, 1, 1, 1}})),
                      "expected position_ids and no attention_mask"));
  const Batch across = read("sft", with(packed_row(), "labels", packed_row().at("input_ids")));
  EXPECT_EQ(across.targets_across_documents, 4);
  ASSERT_EQ(reading_notes(across).size(), 1U);
  EXPECT_EQ(reading_notes(across).front().find("labels of documents' first tokens: 4"), 0U);
}

TEST(ObjectiveInputs, DocumentsStandForRowsWhereThereIsOne) {
  const File file{{"input_ids", rows({{5, 6, 7, 8, 2, 3, 5, 6, 9, 2, 4, 11}})},
                  {"position_ids", rows({{0, 1, 2, 3, 0, 1, 0, 1, 2, 0, 1, 2}})},
                  {"completion_mask", rows({{0, 0, 1, 1, 0, 1, 0, 0, 1, 0, 1, 1}})},
                  {"ref_chosen_logps", doubles({-1, -2})},
                  {"ref_rejected_logps", doubles({-3, -4})}};
  const Batch batch = read("dpo", file), padded = read("dpo", pairs());
  EXPECT_EQ(batch.offsets, padded.offsets);
  EXPECT_TRUE(at::equal(batch.tokens, padded.tokens));
  EXPECT_TRUE(at::equal(batch.targets, padded.targets));
  EXPECT_TRUE(at::equal(batch.sequence_inputs.at(inputs::kReferenceSums),
                        padded.sequence_inputs.at(inputs::kReferenceSums)));
  EXPECT_EQ(count(batch), count(padded));
  const auto refuses = [](const char* objective, const File& of, const char* part) {
    return refused([&] { read(objective, of); }, "batch.safetensors", part);
  };
  const at::Tensor first = rows({{0, 0, 1, 1, 1, 1, 0, 0, 1, 0, 1, 1}});
  EXPECT_TRUE(refuses("dpo", with(file, "completion_mask", first), "selects a document's first token"));
  const at::Tensor none = rows({{0, 0, 1, 1, 0, 0, 0, 0, 1, 0, 1, 1}});
  EXPECT_TRUE(refuses("dpo", with(file, "completion_mask", none), "document 1 of the row has no completion"));
  const File two{{"input_ids", rows({{5, 6, 7, 8}, {5, 6, 9, 2}})},
                 {"position_ids", rows({{0, 1, 0, 1}, {0, 1, 2, 3}})},
                 {"completion_mask", rows({{0, 1, 0, 1}, {0, 0, 1, 1}})}};
  EXPECT_TRUE(refuses("simpo", two, "rows of several documents"));
  EXPECT_TRUE(refuses("kto", with(two, "role", doubles({1, 0})), "rows of several documents"));
  File grpo = without(without(completions(), "attention_mask"), "ref_per_token_logps");
  EXPECT_TRUE(refuses("grpo", with(grpo, "position_ids", rows({{0, 1, 2, 3, 4}, {0, 1, 0, 1, 2}})),
                      "grpo scores whole rows, expected attention_mask or one document a row"));
  File ppo = without(responses(), "attention_mask");
  EXPECT_TRUE(
      refuses("ppo", with(ppo, "position_ids", rows({{0, 1, 2, 3, 4}, {0, 1, 0, 1, 2}})), "ppo scores"));
}

TEST(ObjectiveInputs, WhatTrlWritesIsReadAndTheRestRefused) {
  const auto refuses = [](const char* objective, const File& file, const char* part) {
    return refused([&] { read(objective, file); }, "batch.safetensors", part);
  };
  const at::Tensor one = doubles({1});
  EXPECT_TRUE(refuses("sft", {{"input_ids", rows({{1, 2}})}, {"label", rows({{1, 2}})}},
                      "tensor 'label' is none of sft's: expected input_ids, attention_mask, position_ids"));
  EXPECT_TRUE(refuses("sft", with(packed_row(), "weights", one), "num_items_in_batch"));
  EXPECT_TRUE(
      refuses("dpo", with(pairs(), "num_items_in_batch", one), "'num_items_in_batch' is none of dpo's"));
  EXPECT_TRUE(refuses("grpo", with(completions(), "pixel_values", one), "importance_sampling_ratio"));
  EXPECT_TRUE(refuses("ppo", with(responses(), "tool_mask", rows({{1, 1, 1}, {1, 1, 1}})), "tool_mask"));
  File prefixed;
  for (const auto& [name, tensor] : pairs()) prefixed["in." + name] = tensor;
  prefixed["out.loss"] = prefixed["grad.x"] = one;
  const TempFolder folder;
  write_tensors(folder.path() / "case.safetensors", prefixed);
  EXPECT_NO_THROW(read_objective_batch(
      objective_kind("dpo"), SafetensorsFile::open(folder.path() / "case.safetensors"), kVocabulary, "in."));

  // GRPOTrainer: prompts and completions apart, tools' tokens seen and not scored.
  File grpo = completions();
  grpo["prompt_ids"] = rows({{5, 6}, {0, 2}});
  grpo["prompt_mask"] = rows({{1, 1}, {0, 1}});
  grpo["completion_ids"] = rows({{7, 8, 9}, {3, 4, 0}});
  EXPECT_TRUE(refuses("grpo", grpo, "prompt_ids: given beside input_ids"));
  grpo = without(without(grpo, "input_ids"), "attention_mask");
  EXPECT_TRUE(at::equal(read("grpo", grpo).tokens, read("grpo", completions()).tokens));
  EXPECT_TRUE(refuses("grpo", without(grpo, "prompt_mask"), "prompt_mask"));
  grpo["tool_mask"] = rows({{1, 0, 1}, {1, 1, 0}});
  grpo["importance_sampling_ratio"] = table({{1, 2, 3}, {4, 5, 6}});
  grpo["sampling_per_token_logps"] = table({{-1, -2, -3}, {-4, -5, std::nan("")}});
  grpo["num_items_in_batch"] = at::scalar_tensor(0, at::kLong);
  Batch batch = read("grpo", grpo);
  EXPECT_EQ(list(batch.targets), (std::vector<double>{kNo, 7, kNo, 9, kNo, 3, 4, kNo}));
  EXPECT_EQ(list(batch.token_inputs.at("importance_sampling_ratio")),
            (std::vector<double>{0, 1, 0, 3, 0, 4, 5, 0}));
  EXPECT_EQ(list(batch.token_inputs.at("sampling_log_probabilities")),
            (std::vector<double>{0, -1, 0, -3, 0, -4, -5, 0}));
  EXPECT_EQ(batch.scalar_inputs.at("num_items_in_batch"), 1.0) << "clamped as TRL does";
  batch = read("grpo", with(grpo, "importance_sampling_ratio", table({{2}, {3}})));
  EXPECT_EQ(list(batch.token_inputs.at("importance_sampling_ratio")),
            (std::vector<double>{0, 2, 0, 2, 0, 3, 3, 0}));

  // KTOTrainer: the rows of the KL estimate apart and of another width.
  const File kto{{"input_ids", rows({{1, 2, 3}, {4, 5, 0}})},
                 {"attention_mask", rows({{1, 1, 1}, {1, 1, 0}})},
                 {"completion_mask", rows({{0, 1, 1}, {0, 1, 0}})},
                 {"label", at::tensor({1, 0}, at::kLong).to(at::kBool)},
                 {"ref_logps", doubles({-1, -2})},
                 {"KL_input_ids", rows({{1, 2, 6, 7}, {4, 8, 0, 0}})},
                 {"KL_attention_mask", rows({{1, 1, 1, 1}, {1, 1, 0, 0}})},
                 {"KL_completion_mask", rows({{0, 0, 1, 1}, {0, 1, 0, 0}})},
                 {"ref_KL_logps", doubles({-3, -4})}};
  batch = read("kto", kto);
  EXPECT_EQ(batch.offsets, (std::vector<int64_t>{0, 3, 5, 9, 11}));
  EXPECT_EQ(list(batch.targets), (std::vector<double>{2, 3, kNo, 5, kNo, kNo, 6, 7, kNo, 8, kNo}));
  EXPECT_EQ(list(batch.sequence_inputs.at(inputs::kRole)), (std::vector<double>{1, 0, 2, 2}));
  EXPECT_EQ(list(batch.sequence_inputs.at(inputs::kReferenceSums)), (std::vector<double>{-1, -2, -3, -4}));
  EXPECT_TRUE(refuses("kto", with(kto, "role", doubles({1, 0})), "label: given beside role"));
  EXPECT_TRUE(refuses("kto", without(kto, "ref_KL_logps"), "ref_KL_logps"));
  EXPECT_TRUE(refuses("kto", without(kto, "KL_attention_mask"), "KL_attention_mask"));
}

TEST(ObjectiveInputs, NumItemsInBatchStandsForTheDivisor) {
  const Batch batch = read("sft", with(packed_row(), "num_items_in_batch", doubles({12})));
  TokenValues values;
  values.log_probabilities = doubles({-1, -2, -4});
  const auto loss = [&](const std::map<std::string, std::string>& given) {
    return make_objective("sft", batch, given)->loss(values, 0, 3).item<double>();
  };
  EXPECT_DOUBLE_EQ(loss({}), 7.0 / 12.0);
  EXPECT_DOUBLE_EQ(loss({{"divisor", "14"}}), 0.5) << "what is given comes first";
  EXPECT_TRUE(refused([&] { loss({{"reduction", "sum"}}); }, "divisor is given"));
  EXPECT_TRUE(refused(
      [&] {
        read("sft", with(packed_row(), "num_items_in_batch", doubles({1, 2})));
      },
      "num_items_in_batch: expected one finite number"));
}

TEST(ObjectiveInputs, FirstLabelsOfLeftPaddedRows) {
  const TempFolder folder;
  write_tensors(folder.path() / "batch.safetensors", {{"input_ids", rows({{0, 0, 5, 6}, {7, 8, 9, 10}})},
                                                      {"attention_mask", rows({{0, 0, 1, 1}, {1, 1, 1, 1}})},
                                                      {"labels", rows({{kNo, kNo, 5, 6}, {7, 8, 9, 10}})}});
  const SafetensorsFile file = SafetensorsFile::open(folder.path() / "batch.safetensors");
  EXPECT_TRUE(
      refused([&] { read_objective_batch(objective_kind("sft"), file, kVocabulary); }, "--first-labels"));
  const Batch batch =
      read_objective_batch(objective_kind("sft"), file, kVocabulary, "", parse_first_labels("ignore"));
  EXPECT_EQ(list(batch.targets), (std::vector<double>{6, kNo, 8, 9, 10, kNo}));
  ASSERT_EQ(reading_notes(batch).size(), 1U);
  EXPECT_EQ(reading_notes(batch).front(), "first labels ignored because padding would predict them: 1");
  EXPECT_TRUE(
      refused([] { parse_first_labels("drop"); }, "--first-labels 'drop': expected refuse or ignore"));

  File masks = pairs();
  masks["completion_mask"] = rows({{0, 0, 1, 1}, {0, 0, 1, 0}, {0, 0, 1, 0}, {0, 1, 1, 1}});
  write_tensors(folder.path() / "pairs.safetensors", masks);
  const Batch of_pairs =
      read_objective_batch(objective_kind("dpo"), SafetensorsFile::open(folder.path() / "pairs.safetensors"),
                           kVocabulary, "", FirstLabels::kIgnore);
  EXPECT_EQ(of_pairs.first_labels_ignored, 1);
  EXPECT_TRUE(at::equal(of_pairs.targets, read("dpo", pairs()).targets));
}

TEST(ObjectiveInputs, RankedRowsAreScoredAtTheirLastTokenButThePadding) {
  const TempFolder folder;
  write_tensors(folder.path() / "batch.safetensors", {{"input_ids", rows({{5, 6, 2}, {7, 8, 9}})}});
  const SafetensorsFile file = SafetensorsFile::open(folder.path() / "batch.safetensors");
  const auto scored = [&](std::optional<int64_t> pad_token_id) {
    return list(scored_places(read_objective_batch(objective_kind("reward"), file, kVocabulary, "",
                                                   FirstLabels::kRefuse, pad_token_id)));
  };
  EXPECT_EQ(scored({}), (std::vector<double>{2, 5}));
  EXPECT_EQ(scored(2), (std::vector<double>{1, 5}));
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

  batch.sequence_inputs = {{inputs::kRole, doubles({1, 2, 3})}, {inputs::kReferenceSums, doubles({0, 0, 0})}};
  EXPECT_TRUE(refused([&] { make_objective("kto", batch); }, "expected 0 (undesirable), 1 (desirable) or 2"));
  batch.sequence_inputs[inputs::kRole] = doubles({1, 2, 0});
  Counts larger = counts;
  ++larger.sequences;
  EXPECT_TRUE(refused([&] { make_objective("kto", batch, {}, larger); }, "KL estimate in a part of a batch"));
}

}  // namespace
}  // namespace streambp
