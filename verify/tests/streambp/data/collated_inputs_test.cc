// Batches as the collators of transformers and TRL write them: packed rows, padding on the left, tensors by
// TRL's names.
#include <gtest/gtest.h>

#include "streambp/model/config/rope_frequencies.h"
#include "streambp/model/scored.h"
#include "streambp/objective/terms.h"
#include "verify/tests/streambp/data/objective_inputs_testing.h"

namespace streambp {
namespace {

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
  EXPECT_TRUE(refuses("grpo", grpo, "prompt_ids: given together with input_ids"));
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
  File unknown = with(grpo, "sampling_per_token_logps", table({{std::nan(""), -2, -3}, {-4, -5, -6}}));
  EXPECT_TRUE(read("grpo", unknown).token_inputs.at("sampling_log_probabilities")[1].isnan().item<bool>());
  unknown["sampling_per_token_logps"] = table({{-1, -2, -INFINITY}, {-4, -5, -6}});
  EXPECT_TRUE(refuses("grpo", unknown, "sampling_per_token_logps: row 0, column 4 of input_ids is -inf"));
  batch = read("grpo", with(grpo, "importance_sampling_ratio", table({{2}, {3}})));
  EXPECT_EQ(list(batch.token_inputs.at("importance_sampling_ratio")),
            (std::vector<double>{0, 2, 0, 2, 0, 3, 3, 0}));
  const File without_tokens = with(grpo, "tool_mask", rows({{1, 0, 1}, {0, 0, 0}}));
  EXPECT_TRUE(refuses("grpo", with(without_tokens, "importance_sampling_ratio", table({{2}, {std::nan("")}})),
                      "importance_sampling_ratio: row 1 is nan"));

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
  EXPECT_EQ(batch.rope_length, 4);
  EXPECT_EQ(list(batch.sequence_inputs.at(kPassColumns)), (std::vector<double>{3, 3, 4, 4}));
  EXPECT_TRUE(refuses("kto", with(kto, "role", doubles({1, 0})), "label: given together with role"));
  EXPECT_TRUE(refuses("kto", without(kto, "ref_KL_logps"), "ref_KL_logps"));
  EXPECT_TRUE(refuses("kto", without(kto, "KL_attention_mask"), "KL_attention_mask"));
  EXPECT_TRUE(refuses("kto", with(kto, "KL_input_ids", at::zeros({0, int64_t{1} << 62}, at::kLong)),
                      "KL_input_ids: expected at least one token"));
  EXPECT_TRUE(refuses("kto", with(kto, "KL_completion_mask", rows({{0, 0, 1}, {0, 1, 0}})),
                      "KL_completion_mask: expected shape [2, 4]"));
  EXPECT_TRUE(refuses("kto", with(kto, "attention_mask", rows({{1, 1, 1, 1, 1}, {1, 1, 1, 1, 1}})),
                      "attention_mask: expected shape [2, 3]"));
}

TEST(ObjectiveInputs, PairsApartAsTheCollatorOfCpoAndOrpoHasThem) {
  const File apart{{"prompt_input_ids", rows({{5, 6}, {0, 2}})},
                   {"prompt_attention_mask", rows({{1, 1}, {0, 1}})},
                   {"chosen_input_ids", rows({{5, 6, 7, 8}, {2, 3, 0, 0}})},
                   {"chosen_attention_mask", rows({{1, 1, 1, 1}, {1, 1, 0, 0}})},
                   {"chosen_labels", rows({{kNo, kNo, 7, 8}, {kNo, 3, kNo, kNo}})},
                   {"rejected_input_ids", rows({{5, 6, 9}, {2, 4, 11}})},
                   {"rejected_attention_mask", rows({{1, 1, 1}, {1, 1, 1}})},
                   {"rejected_labels", rows({{kNo, kNo, 9}, {kNo, 4, 11}})}};
  const Batch batch = read("orpo", apart), joined = read("orpo", pairs());
  EXPECT_EQ(batch.offsets, joined.offsets);
  EXPECT_TRUE(at::equal(batch.tokens, joined.tokens));
  EXPECT_TRUE(at::equal(batch.targets, joined.targets));
  const auto refuses = [](const File& file, const char* part) {
    return refused([&] { read("cpo", file); }, "batch.safetensors", part);
  };
  EXPECT_TRUE(refuses(without(apart, "rejected_labels"), "rejected_labels"));
  EXPECT_TRUE(refuses(with(apart, "input_ids", rows({{1, 2}})), "given together with input_ids"));
  EXPECT_TRUE(refuses(with(apart, "rejected_labels", rows({{kNo, kNo, 8}, {kNo, 4, 11}})),
                      "rejected_labels[0, 2] is 8, expected -100 or input_ids' 9"));
  EXPECT_TRUE(
      refuses(with(apart, "chosen_attention_mask", rows({{1, 1, 1}, {1, 1, 0}})), "expected shape [2, 4]"));
  const File one{{"rejected_input_ids", rows({{5, 6, 9}})},
                 {"rejected_attention_mask", rows({{1, 1, 1}})},
                 {"rejected_labels", rows({{kNo, kNo, 9}})}};
  File uneven = apart;
  for (const auto& [name, tensor] : one) uneven[name] = tensor;
  EXPECT_TRUE(refuses(uneven, "rejected_input_ids: 1 rows, expected 2"));
}

TEST(ObjectiveInputs, TokensOfTheCompletionMaskAreCountedBeforeItIsShifted) {
  const auto counted = [](const File& file) {
    return list(read("dpo", file).sequence_inputs.at(inputs::kCompletionTokens));
  };
  EXPECT_EQ(counted(pairs()), (std::vector<double>{2, 1, 1, 2}));
  File begun =
      with(pairs(), "completion_mask", rows({{1, 1, 1, 1}, {0, 0, 1, 0}, {0, 0, 1, 0}, {0, 0, 1, 1}}));
  EXPECT_EQ(counted(begun), (std::vector<double>{4, 1, 1, 2}));
  EXPECT_EQ(count(read("dpo", begun)).scored, 7);
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

TEST(ObjectiveInputs, DocumentsAsAttentionImplementationsTellThemApart) {
  const at::Tensor restart = rows({{0, 1, 2, 0, 1, 0}}), ones = rows({{1, 1, 1, 1, 1, 1}});
  const File one_row{{"input_ids", rows({{1, 2, 3, 4, 5, 6}})}, {"position_ids", restart}};
  const File two_rows{{"input_ids", rows({{1, 2, 3, 4, 5, 6}, {6, 5, 4, 3, 2, 1}})},
                      {"position_ids", restart}};
  const auto offsets = [](const File& file, const char* word) {
    return read_objective_batch(objective_kind("sft"), file, kVocabulary, FirstLabels::kRefuse, {}, "",
                                parse_documents(word))
        .offsets;
  };
  using Offsets = std::vector<int64_t>;
  const File masked = with(one_row, "attention_mask", ones);
  EXPECT_EQ(offsets(one_row, "sdpa"), (Offsets{0, 3, 5, 6}));
  EXPECT_EQ(offsets(one_row, "flash"), (Offsets{0, 3, 5, 6}));
  EXPECT_EQ(offsets(masked, "sdpa"), (Offsets{0, 6}));
  EXPECT_EQ(offsets(masked, "flash"), (Offsets{0, 3, 5, 6}));
  EXPECT_EQ(offsets(two_rows, "sdpa"), (Offsets{0, 3, 5, 6, 9, 11, 12}));
  EXPECT_EQ(offsets(two_rows, "flash"), (Offsets{0, 6, 12}));
  const File padded = with(one_row, "attention_mask", rows({{0, 1, 1, 1, 1, 1}}));
  EXPECT_EQ(offsets(padded, "flash"), (Offsets{0, 5}));
  const File jumps = with(one_row, "position_ids", rows({{0, 1, 5, 6, 7, 8}}));
  EXPECT_EQ(offsets(jumps, "sdpa"), (Offsets{0, 2, 6}));
  EXPECT_EQ(offsets(jumps, "flash"), (Offsets{0, 6}));
  const File both = with(one_row, "position_ids", rows({{0, 1, 5, 6, 0, 1}}));
  EXPECT_TRUE(refused([&] { offsets(both, "flash"); }, "position_ids: column 2 is 5", "--documents sdpa"));
  const File late = with(one_row, "position_ids", rows({{4, 5, 6, 0, 1, 2}}));
  EXPECT_TRUE(refused([&] { offsets(late, "flash"); }, "position_ids: column 0 is 4"));
  EXPECT_TRUE(refused([] { parse_documents("mask"); }, "--documents 'mask': expected sdpa or flash"));
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
  EXPECT_EQ(reading_notes(batch).front(),
            "labels ignored because padding would predict them: 1; transformers trains on them");
  EXPECT_TRUE(refused([] { parse_first_labels("drop"); },
                      "--first-labels 'drop': expected refuse, ignore or ignore-all"));

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
    return list(scored_indices(read_objective_batch(objective_kind("reward"), file, kVocabulary, "",
                                                    FirstLabels::kRefuse, pad_token_id)));
  };
  EXPECT_EQ(scored({}), (std::vector<double>{2, 5}));
  EXPECT_EQ(scored(2), (std::vector<double>{1, 5}));
}

}  // namespace
}  // namespace streambp
