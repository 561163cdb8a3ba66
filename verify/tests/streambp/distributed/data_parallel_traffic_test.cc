// What ranks send for a pass and a step: bytes and messages to the number.
#include <cstdio>
#include <gtest/gtest.h>
#include <mutex>

#include "streambp/distributed/transport/thread_ranks.h"
#include "verify/tests/streambp/distributed/data_parallel_testing.h"

namespace streambp {
namespace {

int64_t numbers_of(const std::vector<Parameter*>& group) {
  int64_t count = 0;
  for (const Parameter* parameter : group) count += parameter->value.numel();
  return count;
}

/// Once a layer, whatever the chunks: the gradients without the rank's own share.
TEST(DataParallelTraffic, IsTheGradientsOnceAndTheWeightsOnce) {
  for (const int64_t chunk : {3, 7, 1000}) {
    for (const int64_t ranks : {2, 3, 4}) {
      const Work work{"sft", full("qwen3-tiny"), "sft", thirteen_texts(), chunks_of(chunk)};
      std::mutex mutex;
      int64_t all_sent = 0, parameters = 0;
      for (const ZeroStage stage : {ZeroStage::kOptimizer, ZeroStage::kGradients}) {
        all_sent = 0;
        run_on_threads(ranks, [&](Communicator& communicator) {
          Model model = work.model();
          const std::vector<std::vector<Parameter*>> groups = gradient_groups(model);
          int64_t scattered = 0, gathered = 0, whole = 0;
          for (const std::vector<Parameter*>& group : groups) {
            const int64_t n = numbers_of(group);
            const auto [begin, end] = shard_of(n, communicator.rank(), ranks);
            scattered += 8 * (n - (end - begin));
            gathered += 8 * (ranks - 1) * (end - begin);
            whole += 8 * n;
          }
          ReducedGradients gradients(communicator, model, stage);
          Batch own = part_of(work, communicator.rank(), ranks);
          const auto objective = objective_of_ranks(communicator, model, "sft", own);
          communicator.reset_traffic();
          backpropagate_on_ranks(communicator, model, own, *objective, work.settings, gradients);
          const auto messages = static_cast<int64_t>(groups.size()) * (ranks - 1);
          EXPECT_EQ(communicator.traffic(Collective::kReduceScatter), (Traffic{scattered, messages}));
          // The declared rest: each rank's loss.
          EXPECT_EQ(communicator.traffic(Collective::kAllGather), (Traffic{8 * (ranks - 1), ranks - 1}));
          EXPECT_EQ(communicator.traffic().bytes, scattered + 8 * (ranks - 1));
          communicator.reset_traffic();
          gradients.step(*adamw());
          EXPECT_EQ(communicator.traffic(Collective::kAllGather), (Traffic{gathered, messages}));
          EXPECT_EQ(communicator.traffic().bytes, gathered);
          const std::lock_guard lock(mutex);
          all_sent += scattered;
          parameters = whole;
        });
        EXPECT_EQ(all_sent, (ranks - 1) * parameters);
      }
    }
  }
}

/// Divided weights: a layer is gathered for its forward pass and for its backward pass, the last one stays;
/// the step sends only what is no layer's.
TEST(DataParallelTraffic, IsALayerTwiceWhereWeightsAreDivided) {
  for (const char* name : {"llama-tied-tiny", "qwen3.5-tiny"}) {
    for (const int64_t chunk : {3, 7, 1000}) {
      for (const int64_t ranks : {2, 3, 4}) {
        const Work work{"sft", full(name), "sft", thirteen_texts(), chunks_of(chunk)};
        run_on_threads(ranks, [&](Communicator& communicator) {
          Model model = work.model();
          const auto others = ranks - 1;
          Traffic scattered, passed, stepped;
          const auto layers = static_cast<int64_t>(model.layers().size());
          for (const std::vector<Parameter*>& group : gradient_groups(model)) {
            const int64_t n = numbers_of(group);
            const auto [begin, end] = shard_of(n, communicator.rank(), ranks);
            const Traffic gathered{8 * others * (end - begin), end > begin ? others : 0};
            scattered.bytes += 8 * (n - (end - begin));
            const std::optional<int64_t> layer = layer_of(group.front()->name);
            const int64_t times = !layer ? 1 : *layer + 1 == layers ? 1 : 2;
            Traffic& of = layer ? passed : stepped;
            of.bytes += times * gathered.bytes;
            of.messages += times * gathered.messages;
          }
          ReducedGradients gradients(communicator, model, ZeroStage::kWeights);
          Batch own = part_of(work, communicator.rank(), ranks);
          const auto objective = objective_of_ranks(communicator, model, "sft", own);
          communicator.reset_traffic();
          backpropagate_on_ranks(communicator, model, own, *objective, work.settings, gradients);
          EXPECT_EQ(communicator.traffic(Collective::kReduceScatter).bytes, scattered.bytes);
          passed.bytes += 8 * others;  // each rank's loss
          passed.messages += others;
          EXPECT_EQ(communicator.traffic(Collective::kAllGather), passed);
          communicator.reset_traffic();
          gradients.step(*adamw());
          EXPECT_EQ(communicator.traffic(Collective::kAllGather), stepped);
          EXPECT_EQ(communicator.traffic().bytes, stepped.bytes);
        });
      }
    }
  }
}

/// Full training at any number of ranks: three times the parameters, at most.
TEST(DataParallelTraffic, IsAtMostThreeTimesTheParametersWhereWeightsAreDivided) {
  constexpr int64_t kRanks = 8;
  for (const int64_t chunk : {16, 1024}) {
    const auto communicator = counted_rank(3, kRanks);
    Model model = Model::random(preset("qwen3-0.6b"), {at::kBFloat16, at::kMeta, at::kBFloat16, {}}, 1);
    int64_t bytes = 0;
    for (const auto& parameter : model.parameters()) bytes += static_cast<int64_t>(parameter->value.nbytes());
    ReducedGradients gradients(*communicator, model, ZeroStage::kWeights);
    Batch batch = random_batch({4096}, model.config().vocab_size, 1);
    const auto objective = objective_of_ranks(*communicator, model, "sft", batch);
    communicator->reset_traffic();
    backpropagate_on_ranks(*communicator, model, batch, *objective, chunks_of(chunk), gradients);
    gradients.step(*adamw());
    const int64_t losses = 8 * (kRanks - 1);
    const double share = static_cast<double>(communicator->traffic().bytes - losses) /
                         (static_cast<double>(bytes) * (kRanks - 1) / kRanks);
    std::printf("chunk %ld: %.3f x (P - 1) / P of the parameters\n", static_cast<long>(chunk), share);
    EXPECT_TRUE(share > 2.0 && share <= 3.0) << share;
  }
}

/// Where the ranks divide every group, each sends exactly (P - 1) / P of the parameters' bytes.
TEST(DataParallelTraffic, IsTheSameOnEveryRankWhereTheyDivideTheLayers) {
  for (const int64_t ranks : {2, 4, 8}) {
    for (int64_t rank = 0; rank < ranks; ++rank) {
      const auto communicator = counted_rank(rank, ranks);
      Model model = Model::random(preset("qwen3-cpu"), {at::kBFloat16, at::kMeta, at::kBFloat16, {}}, 1);
      ReducedGradients gradients(*communicator, model, ZeroStage::kGradients);
      Batch batch = random_batch({64}, model.config().vocab_size, 1);
      const auto objective = objective_of_ranks(*communicator, model, "sft", batch);
      backpropagate_on_ranks(*communicator, model, batch, *objective, chunks_of(16), gradients);
      int64_t bytes = 0;
      for (const auto& parameter : model.parameters())
        bytes += static_cast<int64_t>(parameter->value.nbytes());
      EXPECT_EQ(communicator->traffic(Collective::kReduceScatter).bytes * ranks, bytes * (ranks - 1));
      gradients.step(*adamw());
    }
  }
}

}  // namespace
}  // namespace streambp
