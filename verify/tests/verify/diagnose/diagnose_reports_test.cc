// Twelve mistakes as they were reported of public training code, planted in models of twelve families without
// the diagnosis's own means of making mistakes, and said by it.
#include "streambp/objective/terms.h"
#include "verify/tests/verify/diagnose/diagnose_testing.h"

namespace streambp::verify {
namespace {

/// Heads of a map's rows, or columns, in another order.
at::Tensor in_order(const at::Tensor& weight, int64_t dim, const std::vector<int64_t>& order) {
  const auto heads = static_cast<int64_t>(order.size());
  std::vector<at::Tensor> parts = weight.chunk(heads, dim), sorted;
  for (const int64_t head : order) sorted.push_back(parts[static_cast<size_t>(head)]);
  return at::cat(sorted, dim);
}

TEST(DiagnoseReports, WindowsOneTokenTooWide) {  // transformers#39408
  const DiagnoseCase right = eight_rows("gemma3-tiny");
  expect_said(right,
              under_config(right,
                           [](Config& c) {
                             for (int64_t& window : c.windows) window += window > 0 ? 1 : 0;
                           }),
              "windows are one token too wide");
}

TEST(DiagnoseReports, LastAccumulationWindowIsShorter) {  // ms-swift#10084
  const DiagnoseCase right = eight_rows("olmo2-tiny");
  expect_named(right, times(right.truth, 0.5), "1/2");
}

TEST(DiagnoseReports,
     RouterLossWithoutItsCoefficient) {  // Automodel#1408, and Megatron-LM#3769: over the ranks
  const DiagnoseCase right = eight_rows("qwen3-moe-tiny");
  const double coefficient = right.owned.model.config().mixture.router_aux_loss_coef;
  expect_said(right, under_config(right, [](Config& c) { c.mixture.router_aux_loss_coef = 1.0; }),
              fmt::format("{:.6g} times", 1.0 / coefficient));
  expect_said(right, under_config(right, [](Config& c) { c.mixture.router_aux_loss_coef /= 4.0; }),
              "0.25 times");
}

TEST(DiagnoseReports, TiedEmbeddingLosesTheHeadsPart) {  // Megatron-LM#1548
  const DiagnoseCase right = eight_rows("gemma2-tiny");
  Config config = right.owned.model.config();
  config.tie_word_embeddings = false;
  Model untied = model_of(config, [&](const std::string& name) {
    const bool head = name == "lm_head.weight";
    return right.owned.model.parameter(head ? "model.embed_tokens.weight" : name).value;
  });
  Tensors gradients = evaluate(untied, right.owned.batch, *right.owned.objective, {}).gradients;
  gradients.erase("lm_head.weight");
  expect_said(right, gradients, "the tied embedding's gradient misses the head's part");
}

TEST(DiagnoseReports, LabelSmoothingIsDropped) {  // Liger-Kernel#243
  const DiagnoseCase right = eight_rows("ministral3-tiny", {{"label_smoothing", "0.1"}});
  expect_said(right, under(right, right.owned.batch, {}), "label smoothing");
}

TEST(DiagnoseReports, PaddingIsTheEndOfText) {  // transformers#23530
  DiagnoseCase right = eight_rows("llama-tiny");
  Batch batch = right.owned.batch;
  for (size_t i = 0; i + 1 < batch.offsets.size(); ++i) {
    batch.tokens[batch.offsets[i + 1] - 1] = 7;
    batch.targets[batch.offsets[i + 1] - 2] = 7;
  }
  right = diagnose_case({"llama-tiny", "sft", {}, "full", "three", 9}, batch);
  batch.targets = batch.targets.masked_fill(batch.targets.eq(7), kNoTarget);
  expect_said(right, under(right, batch, {}), "token 7 is never scored where it is the target");
}

TEST(DiagnoseReports, RowsBeginWithOneTokenMore) {  // NeMo-RL#855, unsloth#10312
  const DiagnoseCase right = eight_rows("exaone4-tiny");
  const Batch& batch = right.owned.batch;
  for (const bool other : {false, true}) {  // the first token once more, or one that is nowhere else
    std::vector<int64_t> lengths;
    std::vector<at::Tensor> tokens, targets;
    for (size_t i = 0; i + 1 < batch.offsets.size(); ++i) {
      const auto own = [&](const at::Tensor& of) {
        return of.slice(0, batch.offsets[i], batch.offsets[i + 1]);
      };
      lengths.push_back(batch.offsets[i + 1] - batch.offsets[i] + 1);
      tokens.push_back(other ? at::full({1}, 100, at::kLong) : own(batch.tokens).slice(0, 0, 1));
      tokens.push_back(own(batch.tokens));
      targets.push_back(at::full({1}, kNoTarget, at::kLong));
      targets.push_back(own(batch.targets));
    }
    Batch longer = random_batch(lengths, 101, 1);
    longer.tokens = at::cat(tokens);
    longer.targets = at::cat(targets);
    expect_said(right, under(right, longer, {}),
                other ? "each row begins with token 100, which is not in the batch"
                      : "each row's first token is there twice");
  }
}

TEST(DiagnoseReports, EmbeddingScaleIsRounded) {  // transformers#29402
  const DiagnoseCase right = eight_rows("gemma-tiny");
  const double scale = right.owned.model.config().embedding_scale;
  expect_said(right, under_config(right, [](Config& c) { c.embedding_scale *= 1.00134; }),
              fmt::format("what embeddings are multiplied by is {:.6g} where it should be {:.6g}",
                          scale * 1.00134, scale));
}

TEST(DiagnoseReports, YarnsAttentionFactorTwice) {  // sglang#33558
  const DiagnoseCase right = eight_rows("llama-yarn-tiny");
  expect_said(right,
              under_config(right, [](Config& c) { c.rope.attention_factor *= c.rope.attention_factor; }),
              "the attention_factor of rope_scaling (mscale) is");
}

TEST(DiagnoseReports, KeysAndValuesInTurn) {  // axlearn#842, jax-js#180
  DiagnoseCase right = eight_rows("seed-oss-tiny");
  const Config& config = right.owned.model.config();
  const int64_t heads = config.num_attention_heads, pairs = config.num_key_value_heads, group = heads / pairs;
  ASSERT_GT(pairs, 1);
  ASSERT_GT(group, 1);
  // Head h of a model that repeats in groups takes pair h / group; that of one in turn h % pairs.
  std::vector<int64_t> order, back(static_cast<size_t>(heads));
  for (int64_t pair = 0; pair < pairs; ++pair)
    for (int64_t member = 0; member < group; ++member) order.push_back(member * pairs + pair);
  for (size_t i = 0; i < order.size(); ++i) back[static_cast<size_t>(order[i])] = static_cast<int64_t>(i);
  const auto sorted = [](const std::string& name, const at::Tensor& value, const std::vector<int64_t>& as) {
    if (name.find(".q_proj.") != std::string::npos) return in_order(value, 0, as);
    return name.ends_with(".o_proj.weight") ? in_order(value, 1, as) : value;
  };
  Model other = model_of(config, [&](const std::string& name) {
    return sorted(name, right.owned.model.parameter(name).value, order);
  });
  Tensors gradients = evaluate(other, right.owned.batch, *right.owned.objective, {}).gradients;
  for (auto& [name, gradient] : gradients) gradient = sorted(name, gradient, back);
  expect_said(right, gradients, "repeat instead of repeat_interleave");
}

TEST(DiagnoseReports, LossAcrossDocuments) {  // torchtitan#4075
  const DiagnoseCase right =
      diagnose_case({"qwen3.5-tiny", "sft", {}, "full", "three", 9}, packed_rows({7, 5, 6, 3, 3}, 12, 101));
  Batch batch = right.owned.batch;
  batch.targets = batch.targets.clone();
  for (size_t i = 1; i + 1 < batch.offsets.size(); ++i) {
    if (batch.offsets[i] % 12 != 0) batch.targets[batch.offsets[i] - 1] = batch.tokens[batch.offsets[i]];
  }
  expect_said(right, under(right, batch, {}),
              "each document's last token is scored on the first token of the next");
}

TEST(DiagnoseReports, WhatPartsSayTakesTenPasses) {
  const DiagnoseCase right = eight_rows("qwen3-tiny");
  const Batch some = select_sequences(right.owned.batch, {0, 1, 2, 3, 4, 6, 7});
  EXPECT_LE(diagnose(right, under(right, some, {})).passes, 10.0);
  const DiagnoseCase scaled = eight_rows("gemma-tiny");
  const Tensors rounded = under_config(scaled, [](Config& c) { c.embedding_scale *= 1.00134; });
  EXPECT_LE(diagnose(scaled, rounded).passes, 40.0);  // with the trials that say it in other words
}

TEST(DiagnoseReports, TemperatureIsNotApplied) {  // slime#557
  const DiagnoseCase right =
      diagnose_case({"glm4-tiny", "grpo", {{"temperature", "0.7"}, {"beta", "0.04"}}, "full", "left", 11});
  expect_said(right, under(right, right.owned.batch, {{"beta", "0.04"}}), "temperature is ignored");
}

}  // namespace
}  // namespace streambp::verify
