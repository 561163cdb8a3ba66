// Gradients that are summed over ranks by a thread of its own while the pass goes on.
#include <atomic>
#include <gtest/gtest.h>
#include <optional>

#include "streambp/distributed/transport/communication_thread.h"
#include "streambp/distributed/transport/thread_ranks.h"
#include "streambp/error.h"
#include "streambp/memory/recorder.h"
#include "verify/tests/streambp/distributed/data_parallel_testing.h"

namespace streambp {
namespace {

TEST(CommunicationThreads, RunTasksInOrderAndPassOnWhatTheyThrow) {
  CommunicationThread thread;
  std::vector<int> order;
  for (int i = 0; i < 100; ++i) thread.start([&order, i] { order.push_back(i); });
  thread.run([&] { EXPECT_TRUE(thread.is_this_thread()); });
  EXPECT_FALSE(thread.is_this_thread());
  std::vector<int> expected(100);
  std::iota(expected.begin(), expected.end(), 0);
  EXPECT_EQ(order, expected);
  EXPECT_THROW(thread.run([] { throw CommunicationError("gone"); }), CommunicationError);
  EXPECT_THROW(thread.run([] {}), CommunicationError);  // ranks are no longer at the same message
}

/// One step of a rank: its loss, sums and weights.
struct Stepped {
  double loss = 0.0;
  Tensors sums, weights;
  Traffic sent;
};

Stepped step(const Work& work, ZeroStage stage, Communicator& communicator, bool overlaps) {
  std::optional<CommunicationThread> thread;
  if (overlaps) communicator.send_from(&thread.emplace());
  Model model = work.model();
  ReducedGradients gradients(communicator, model, stage);
  if (overlaps) gradients.overlap();
  const auto optimizer = adamw();
  Batch own = part_of(work, communicator.rank(), communicator.size());
  const auto objective = objective_of_ranks(communicator, model, work.objective, own);
  Stepped result;
  result.loss = backpropagate_on_ranks(communicator, model, own, *objective, work.settings, gradients).loss;
  for (const auto& [name, sum] : gradients.gathered()) result.sums[name] = sum.clone();
  gradients.step(*optimizer);
  result.weights = weights_of(model);
  result.sent = communicator.traffic();
  communicator.send_from(nullptr);
  return result;
}

class Overlap : public testing::TestWithParam<ZeroStage> {};

TEST_P(Overlap, GivesTheSameBitsAndMessages) {
  const std::vector<Work> works{
      {"sft", full("qwen3-tiny"), "sft", thirteen_texts(), chunks_of(5)},
      {"tied", full("llama-tied-tiny"), "sft", thirteen_texts(), chunks_of(5)},
      {"dpo", full("qwen3-tiny"), "dpo", pairs_of_texts(), chunks_of(6)},
      {"bfloat16",
       [] {
         return Model::random(preset("qwen2-tiny"), {at::kBFloat16, at::kCPU, at::kBFloat16, {}}, 1);
       },
       "sft", thirteen_texts(), chunks_of(5)}};
  for (const Work& work : works) {
    SCOPED_TRACE(work.name);
    for (const int64_t ranks : {1, 3}) {
      run_on_threads(ranks, [&](Communicator& communicator) {
        const Stepped plain = step(work, GetParam(), communicator, /*overlaps=*/false);
        communicator.barrier();
        communicator.reset_traffic();
        const Stepped overlapped = step(work, GetParam(), communicator, /*overlaps=*/true);
        EXPECT_EQ(overlapped.loss, plain.loss);
        for (const auto& [name, sum] : plain.sums)
          EXPECT_TRUE(at::equal(overlapped.sums.at(name), sum)) << name;
        for (const auto& [name, weight] : plain.weights)
          EXPECT_TRUE(at::equal(overlapped.weights.at(name), weight)) << name;
        EXPECT_EQ(overlapped.sent.bytes, plain.sent.bytes);
      });
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Stages, Overlap, testing::ValuesIn(kStages),
                         [](const auto& stage) { return fmt::format("{}", static_cast<int>(stage.param)); });

TEST(OverlapEdges, NeedsAThread) {
  const auto alone = single_rank();
  Model model = full("qwen3-tiny")();
  ReducedGradients gradients(*alone, model, ZeroStage::kNone);
  EXPECT_THROW(gradients.overlap(), InputError);
}

TEST(OverlapEdges, ARankThatFailsEndsAllOfThem) {
  const Work work{"sft", full("qwen3-tiny"), "sft", thirteen_texts(), chunks_of(5)};
  std::atomic<int> ended{0};
  const auto on_rank = [&](Communicator& communicator) {
    try {
      if (communicator.rank() == 1) throw InputError("rank 1 has had enough");
      step(work, ZeroStage::kGradients, communicator, /*overlaps=*/true);
    } catch (...) {
      communicator.send_from(nullptr);
      ++ended;
      throw;
    }
  };
  EXPECT_THROW(run_on_threads(3, on_rank), InputError);
  EXPECT_EQ(ended, 3);
}

TEST(OverlapTraces, ShowMessagesNextToLayers) {
  const Work work{"sft", full("qwen3-tiny"), "sft", thirteen_texts(), chunks_of(5)};
  CommunicationThread thread;
  const auto alone = single_rank();
  alone->send_from(&thread);
  Model model = work.model();
  ReducedGradients gradients(*alone, model, ZeroStage::kGradients);
  gradients.overlap();
  Batch batch = work.batch;
  const auto objective = objective_of_ranks(*alone, model, "sft", batch);
  Recorder recorder(c10::DeviceType::CPU);
  backpropagate_on_ranks(*alone, model, batch, *objective, work.settings, gradients);
  const Recording recording = recorder.stop();
  using Kind = Recording::Kind;
  int sums = 0, open = 0;
  for (const Recording::Entry& entry : recording.entries) {
    if (entry.kind == Kind::kOtherSpanBegin && recording.span_text(entry) == "sums over ranks") ++sums;
    open += entry.kind == Kind::kOtherSpanBegin ? 1 : entry.kind == Kind::kOtherSpanEnd ? -1 : 0;
    EXPECT_TRUE(open == 0 || open == 1);
  }
  EXPECT_EQ(open, 0);
  EXPECT_EQ(sums, static_cast<int>(gradient_groups(model).size()));
}

}  // namespace
}  // namespace streambp
