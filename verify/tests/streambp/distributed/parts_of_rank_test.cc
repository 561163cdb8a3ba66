// Micro-batches on ranks whose batches are of unequal sizes, against the whole batch in one pass.
#include <atomic>
#include <gtest/gtest.h>
#include <numeric>

#include "streambp/backprop/embeddings.h"
#include "streambp/distributed/transport/thread_ranks.h"
#include "verify/tests/streambp/distributed/data_parallel_testing.h"
#include "verify/tests/streambp/model/file_testing.h"

namespace streambp {
namespace {

constexpr int64_t kRanks = 2;

/// Units [0, first) are the first rank's, the others the second's: sequences, or pairs.
Batch share_of(const Work& work, int64_t first, int64_t rank) {
  const auto sequences = static_cast<int64_t>(work.batch.offsets.size()) - 1;
  const int64_t units = is_paired(work) ? sequences / 2 : sequences;
  std::vector<int64_t> picked(static_cast<size_t>(rank == 0 ? first : units - first));
  std::iota(picked.begin(), picked.end(), rank == 0 ? 0 : first);
  const size_t count = picked.size();
  for (size_t i = 0; i < count && is_paired(work); ++i) picked.push_back(picked[i] + units);
  Batch share = select_sequences(work.batch, picked);
  share.rope_length = 0;
  return share;
}

/// A rank's loss and sums, of `parts` micro-batches each.
void expect_whole(const Work& work, const Result& whole, int64_t first, int64_t parts, ZeroStage stage) {
  run_on_threads(kRanks, [&](Communicator& communicator) {
    Model model = work.model();
    ReducedGradients gradients(communicator, model, stage);
    Batch own = share_of(work, first, communicator.rank());
    const auto all = parts_of_rank(communicator, model, work.objective, own, parts, work.options);
    ASSERT_EQ(all.size(), static_cast<size_t>(parts));
    communicator.reset_traffic();
    const Outcome outcome = backpropagate_parts(communicator, model, all, work.settings, gradients);
    const int64_t reduced = communicator.traffic(Collective::kAllReduce).bytes;
    EXPECT_TRUE(verify::relative_error(outcome.loss, whole.loss) <= kLimit) << outcome.loss;
    const double error = worst_error(gradients.gathered(), whole.gradients);
    EXPECT_TRUE(error <= kLimit) << error;
    EXPECT_EQ(outcome.log_probabilities.defined(), parts == 1);
    if (stage != ZeroStage::kNone) return;
    // Once each, whatever the parts.
    int64_t bytes = 0;
    for (const auto& [name, gradient] : model.gradients()) bytes += static_cast<int64_t>(gradient.nbytes());
    EXPECT_EQ(reduced, bytes);
  });
}

TEST(PartsOfRank, AddUpToTheWholeBatch) {
  const std::map<std::string, std::string> unbalanced{{"router_aux_loss_coef", "0"}};
  const std::vector<Work> works{
      {"sft", full("qwen3-tiny"), "sft", thirteen_texts(), chunks_of(5)},
      {"by length", full("llama-dynamic-tiny"), "sft", thirteen_texts(), chunks_of(5)},
      {"mixture", full("qwen3-moe-tiny"), "sft", thirteen_texts(), chunks_of(5), 1, unbalanced},
      {"dpo", full("qwen3-tiny"), "dpo", pairs_of_texts(), chunks_of(6)}};
  for (const Work& work : works) {
    const Result whole = in_one_process(work);
    for (const int64_t parts : {1, 2, 3}) {
      for (const ZeroStage stage : kStages) {
        SCOPED_TRACE(fmt::format("{}, {} parts, stage {}", work.name, parts, static_cast<int>(stage)));
        expect_whole(work, whole, /*first=*/3, parts, stage);
      }
    }
  }
}

/// One part of the first rank's has nothing to score, then all have.
TEST(PartsOfRank, MayHaveNothingToScore) {
  Work work{"", full("qwen3-tiny"), "sft", thirteen_texts(), chunks_of(5)};
  for (const int64_t tokens : {work.batch.offsets[1], work.batch.offsets[3]}) {
    work.batch.targets.narrow(0, 0, tokens).fill_(kNoTarget);
    expect_whole(work, in_one_process(work), 3, 3, ZeroStage::kNone);
  }
}

TEST(PartsOfRank, AreRefusedOnAllRanks) {
  const auto refuses = [](const Work& work, int64_t parts, const char* message) {
    std::atomic<int> refusals = 0;
    run_on_threads(kRanks, [&](Communicator& communicator) {
      const Model model = work.model();
      Batch own = share_of(work, 3, communicator.rank());
      const auto cut = [&] { parts_of_rank(communicator, model, work.objective, own, parts, work.options); };
      if (refused(cut, message)) ++refusals;
    });
    EXPECT_EQ(refusals, kRanks) << message;
  };
  const Work sft{"", full("qwen3-tiny"), "sft", thirteen_texts(), chunks_of(5)};
  refuses(sft, 4, "4 micro-batches: rank 0 has 3 sequences, expected at least one for each on every rank");
  const Work dpo{"", full("qwen3-tiny"), "dpo", pairs_of_texts(), chunks_of(5)};
  refuses(dpo, 4, "4 micro-batches: rank 0 has 3 pairs, expected at least one for each on every rank");
  Work sorted = dpo;
  sorted.options = {{"loss_type", "aot"}};
  refuses(sorted, 2, "compares the rows of a batch with one another, expected no micro-batches");
  const Work balanced{"", full("qwen3-moe-tiny"), "sft", thirteen_texts(), chunks_of(5)};
  refuses(balanced, 2, "balances the load of experts over the whole batch, expected no micro-batches");
}

/// A text without a token, which has a part to itself on one rank.
TEST(PartsOfRank, HaveTokens) {
  const Work work{"", full("qwen3-tiny"), "sft", thirteen_texts(), chunks_of(5)};
  std::atomic<int> refusals = 0;
  run_on_threads(kRanks, [&](Communicator& communicator) {
    const Model model = work.model();
    Batch own = share_of(work, 3, communicator.rank());
    if (communicator.rank() == 0) own.offsets.insert(own.offsets.begin(), 0);
    if (refused([&] { parts_of_rank(communicator, model, "sft", own, /*parts=*/4); },
                "one without a token, expected some in every one"))
      ++refusals;
  });
  EXPECT_EQ(refusals, kRanks);
}

/// On one process, too.
TEST(PartsOfABatch, AreRefusedWhereTheLoadIsBalanced) {
  Model model = full("qwen3-moe-tiny")();
  const Batch batch = thirteen_texts();
  EXPECT_TRUE(refused([&] { part_objectives(model, "sft", batch, micro_batches(batch, 2, false), {}); },
                      "balances the load of experts over the whole batch, expected no micro-batches"));
}

}  // namespace
}  // namespace streambp
