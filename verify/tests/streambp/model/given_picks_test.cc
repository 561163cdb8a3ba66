// Rows that attention sees because they are given, in place of those that indexers pick, through every method
// and at chunk sizes around a batch's, against standard back-propagation and the reference.
#include "streambp/model/given_picks.h"

#include <algorithm>
#include <gtest/gtest.h>
#include <string>
#include <vector>

#include "streambp/backprop/method.h"
#include "streambp/data/objective_inputs.h"
#include "streambp/error.h"
#include "streambp/model/checked_batch.h"
#include "verify/equality/subject.h"
#include "verify/tests/streambp/backprop/given_testing.h"

namespace streambp::verify {
namespace {

int64_t layers_with_indexers(const Config& config) {
  int64_t count = 0;
  for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer) count += config.has_indexer(layer);
  return count;
}

/// Of every token of all layers of `config`, or of those with indexers, 1 to index_topk columns, or blocks,
/// that it may see, in any order and place; every fifth token's are the indexer's to pick where
/// `leaves_some`. Of layers without an indexer what no token can see.
at::Tensor drawn_picks(const Config& config, const Batch& batch, bool of_all, bool leaves_some) {
  at::Generator generator = at::detail::createCPUGenerator(13);
  const int64_t k = config.indexer.topk, rate = config.pick_kind().rate;
  const int64_t layers = of_all ? config.num_hidden_layers : layers_with_indexers(config);
  at::Tensor picks = at::full({batch.size(), layers, k}, -1, at::kInt);
  for (size_t s = 0; s + 1 < batch.offsets.size(); ++s) {
    const int64_t begin = batch.offsets[s];
    if (batch.offsets[s + 1] == begin) continue;
    const int64_t first = rate > 1 ? 0 : batch.padded_indices[begin].item<int64_t>() % batch.padded_columns;
    for (int64_t t = begin; t < batch.offsets[s + 1]; ++t) {
      const int64_t may_see = (t - begin + 1) / rate;
      for (int64_t layer = 0; layer < layers; ++layer) {
        if (of_all && !config.has_indexer(layer)) picks[t][layer].fill_(-9);
        if ((of_all && !config.has_indexer(layer)) || may_see == 0 || (leaves_some && t % 5 == 4)) continue;
        const int64_t most = std::min(may_see, k);
        const auto many = at::randint(1, most + 1, {1}, generator, at::kLong).item<int64_t>();
        const at::Tensor places = at::randperm(k, generator, at::kLong).narrow(0, 0, many);
        const at::Tensor seen = at::randperm(may_see, generator, at::kLong).narrow(0, 0, many) + first;
        picks[t][layer].index_copy_(0, places, seen.to(at::kInt));
      }
    }
  }
  return picks;
}

class GivenPicks : public testing::TestWithParam<GivenCase> {};

TEST_P(GivenPicks, AreWhatAttentionSees) {
  expect_gradients_of_given(GetParam(),
                            [](EqualitySubject& subject, bool of_all) {
                              subject.batch.indexer_indices = drawn_picks(
                                  subject.model.config(), subject.batch, of_all, /*leaves_some=*/!of_all);
                            },
                            {Method::kLogitsOnly, Method::kTiled, Method::kChunkMajor});
}

INSTANTIATE_TEST_SUITE_P(
    Families, GivenPicks,
    testing::Values(GivenCase{"deepseek-v32-tiny"}, GivenCase{"deepseek-v32-tiny", "sft", "full", "three"},
                    GivenCase{"deepseek-v32-tiny", "sft", "lora", "right"},
                    GivenCase{"deepseek-v32-tiny", "grpo", "full", "left"},
                    GivenCase{"glm-moe-dsa-tiny", "sft", "full", "packed"}, GivenCase{"glm-moe-dsa-tiny"},
                    GivenCase{"glm-moe-dsa-tiny", "dpo", "full", "right"},
                    GivenCase{"hy-v4-tiny", "sft", "full", "masked"}, GivenCase{"hy-v4-tiny"},
                    GivenCase{"deepseek-v4-tiny"}, GivenCase{"deepseek-v4-tiny", "sft", "full", "packed"},
                    GivenCase{"deepseek-v4-tiny", "sft", "lora", "right"},
                    GivenCase{"glm5-next-tiny", "sft", "full", "left"},
                    GivenCase{"glm5-next-tiny", "sft", "full", "packed"},
                    GivenCase{"qwen4-exp-tiny", "sft", "full", "left"},
                    GivenCase{"qwen4-exp-tiny", "sft", "full", "packed"},
                    GivenCase{"qwen4-exp-tiny", "sft", "lora", "right"}));

TEST(GivenPicks, OfEarlyTokensAreAllThatTheySee) {
  EqualitySubject subject = make_subject({"deepseek-v32-tiny", "sft", {}, "full", "left", kGivenLength}, 7);
  const Config& config = subject.model.config();
  Settings settings;
  settings.method = Method::kStandard;
  const Evaluation picked = evaluate(subject.model, subject.batch, *subject.objective, settings);
  // All that each token may see, where that is no more than an indexer would pick; the rest is its own.
  at::Tensor picks = at::full({subject.batch.size(), layers_with_indexers(config), config.indexer.topk}, -1);
  for (size_t s = 0; s + 1 < subject.batch.offsets.size(); ++s) {
    const int64_t begin = subject.batch.offsets[s], end = subject.batch.offsets[s + 1];
    for (int64_t t = begin; t < std::min(end, begin + config.indexer.topk); ++t) {
      const int64_t first =
          subject.batch.padded_indices[begin].item<int64_t>() % subject.batch.padded_columns;
      picks[t].narrow(1, 0, t - begin + 1).copy_(at::arange(first, first + t - begin + 1));
    }
  }
  subject.batch.indexer_indices = picks.to(at::kInt);
  for (const Method method : {Method::kStandard, Method::kCheckpoint, Method::kStreambp}) {
    settings.method = method;
    settings.chunk = method == Method::kStreambp ? 5 : 0;
    const EvaluationErrors errors =
        measure(evaluate(subject.model, subject.batch, *subject.objective, settings), picked);
    EXPECT_TRUE(errors.worst() <= 1e-12) << static_cast<int>(method) << ": " << errors.worst();
  }
}

TEST(GivenPicks, OfSequencesOfABatchAreTheirOwn) {
  const Config config = preset("deepseek-v32-tiny");
  Batch batch = random_batch({3, 5, 2}, config.vocab_size, 3);
  batch.indexer_indices = drawn_picks(config, batch, true, false);
  batch.indices_source = "file: ";
  const Batch selected = select_sequences(batch, {2, 0});
  EXPECT_TRUE(at::equal(selected.indexer_indices, at::cat({batch.indexer_indices.slice(0, 8, 10),
                                                           batch.indexer_indices.slice(0, 0, 3)})));
  EXPECT_NO_THROW(picks_of(config, selected, at::kCPU));
  EXPECT_FALSE(without_given_indices(batch).indexer_indices.defined());
}

/// What is wrong with `picks` [1, 6, L, k] of a file's tokens, of which the first two are padding.
std::string picks_refusal(const std::string& model, const at::Tensor& picks, bool packed = false) {
  const Config config = preset(model);
  std::map<std::string, at::Tensor> tensors{
      {"input_ids", at::tensor({3, 4, 5, 6, 7, 8}, at::kLong).unsqueeze(0)}, {"indexer_indices", picks}};
  if (packed) {
    tensors["position_ids"] = at::tensor({0, 1, 0, 1, 2, 3}, at::kLong).unsqueeze(0);
  } else {
    tensors["attention_mask"] = at::tensor({0, 0, 1, 1, 1, 1}, at::kLong).unsqueeze(0);
  }
  try {
    Batch batch = read_objective_batch(objective_kind("sft"), std::move(tensors), config.vocab_size);
    batch.indices_source = "tokens.safetensors: ";
    picks_of(config, batch, at::kCPU);
  } catch (const InputError& error) {
    return error.what();
  }
  return "";
}

TEST(GivenPicks, AreRefusedByNameWhereTheyCanNotBe) {
  const Config config = preset("deepseek-v32-tiny");
  const int64_t layers = config.num_hidden_layers, k = config.indexer.topk;
  ASSERT_EQ(layers_with_indexers(config), layers);
  at::Tensor good = at::full({1, 6, layers, k}, 99, at::kLong);
  for (int64_t column = 2; column < 6; ++column) {
    good[0][column].fill_(-1);
    good[0][column].narrow(1, 0, 1).fill_(column);
  }
  const auto changed = [&](int64_t column, int64_t layer, int64_t slot, int64_t pick, bool packed = false) {
    at::Tensor picks = good.clone();
    if (packed) picks[0].narrow(0, 0, 2).fill_(-1);
    picks[0][column][layer][slot] = pick;
    return picks_refusal("deepseek-v32-tiny", picks, packed);
  };
  const auto holds = [](const std::string& text, const std::vector<std::string>& parts) {
    for (const std::string& part : parts) EXPECT_NE(text.find(part), std::string::npos) << text;
  };
  EXPECT_EQ(picks_refusal("deepseek-v32-tiny", good), "") << "padding is not read";
  EXPECT_EQ(changed(5, 0, 2, 3), "");
  EXPECT_EQ(changed(5, 0, 2, 3, /*packed=*/true), "");
  holds(changed(4, 1, 1, 5), {"tokens.safetensors: indexer_indices: row 0, column 4 of input_ids sees column "
                              "5, which is ahead of it",
                              "in layer 1", "different ones from 2 to 4", "-1 for fewer",
                              fmt::format("-1 in all {} places where the indexer is to pick", k)});
  holds(changed(4, 1, 1, 4), {"column 4 of input_ids sees column 4 twice in layer 1"});
  holds(changed(4, 1, 1, 1), {"sees column 1, which is padding or another document's"});
  holds(changed(4, 1, 1, 1, /*packed=*/true), {"sees column 1, which is padding or another document's"});
  holds(changed(4, 1, 1, -2), {"sees column -2, which stands for nothing"});
  holds(changed(4, 1, 1, int64_t{1} << 40), {"which is ahead of it"});
  holds(picks_refusal("deepseek-v32-tiny", at::constant_pad_nd(good, {0, 1}, -1)),
        {fmt::format("{} of each token", k + 1), fmt::format("expected 1 to {} (index_topk)", k)});
  holds(picks_refusal("deepseek-v32-tiny", good.narrow(2, 0, layers - 1)),
        {fmt::format("in {} layers", layers - 1), "layers with an indexer of their own"});
  holds(picks_refusal("qwen3-tiny", good), {"the model has no indexers", "leave the tensor out"});
  holds(picks_refusal("minimax-m3-tiny", good), {"for each group of query heads", "leave the tensor out"});
  holds(picks_refusal("deepseek-v32-tiny", good.narrow(1, 0, 5)),
        {"indexer_indices", "[1, 6, layers, picks]", "[1, 5, "});
  holds(picks_refusal("deepseek-v32-tiny", good.to(at::kDouble)),
        {"indexer_indices", "expected integers", "Double"});
}

// Blocks count from a sequence's first row, whose position the rotation alone reads.
TEST(BlocksOfRows, RefusePositionsWithGaps) {
  for (const char* name : {"deepseek-v4-tiny", "minimax-m3-tiny", "qwen3-tiny"}) {
    const Config config = preset(name);
    Batch batch = random_batch({5, 7}, config.vocab_size, 3);
    batch.positions.narrow(0, 5, 7).add_(4);
    check_batch(config, batch);
    batch.positions.narrow(0, 9, 3).add_(1);
    std::string refusal;
    try {
      check_batch(config, batch);
    } catch (const InputError& error) {
      refusal = error.what();
    }
    const bool has_blocks = config.is_compressed() || config.picks_key_blocks();
    EXPECT_EQ(refusal.find("position_ids of sequence 1: ") != std::string::npos, has_blocks) << refusal;
    EXPECT_EQ(refusal.find("rise by 1") != std::string::npos, has_blocks) << refusal;
  }
}

TEST(GivenPicks, OfBlocksEndWithTheTokenOrBeforeIt) {
  for (const char* name : {"deepseek-v4-tiny", "glm5-next-tiny", "qwen4-exp-tiny"}) {
    const Config config = preset(name);
    const int64_t rate = config.pick_kind().rate, layers = layers_with_indexers(config);
    ASSERT_GT(rate, 1);
    Batch batch = random_batch({2 * rate + 1}, config.vocab_size, 3);
    const auto refusal = [&](int64_t token, int64_t block) {
      batch.indexer_indices = at::full({batch.size(), layers, config.indexer.topk}, -1, at::kInt);
      batch.indexer_indices[token][0][0] = block;
      try {
        picks_of(config, batch, at::kCPU);
      } catch (const InputError& error) {
        return std::string(error.what());
      }
      return std::string();
    };
    EXPECT_EQ(refusal(rate - 1, 0), "");
    EXPECT_EQ(refusal(2 * rate - 1, 1), "");
    EXPECT_NE(refusal(2 * rate - 2, 1).find("sees block 1, which is ahead of it"), std::string::npos);
    const std::string none = refusal(rate - 2, 0);
    EXPECT_NE(none.find("sees block 0, which is ahead of it"), std::string::npos) << none;
    EXPECT_NE(none.find("expected -1 in all"), std::string::npos) << none;
  }
}

}  // namespace
}  // namespace streambp::verify
