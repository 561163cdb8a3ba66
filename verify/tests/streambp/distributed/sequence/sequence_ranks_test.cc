// Sequences divided among one to four ranks against one process: losses, gradients and a step.
#include <gtest/gtest.h>

#include "streambp/plan/workload.h"
#include "verify/tests/streambp/distributed/sequence/sequence_ranks_testing.h"
#include "verify/tests/streambp/model/file_testing.h"
#include "verify/tests/turns.h"

namespace streambp {
namespace {

class SequenceRanks : public testing::TestWithParam<Work> {};

TEST_P(SequenceRanks, GiveWhatOneProcessDoes) {
  const Work& work = GetParam();
  const Result whole = in_one_process(work);
  WorstErrors errors;
  static size_t turn = 0, stages = 0;
  for (const int64_t ranks : verify::in_turns<int64_t>({2, 3, 4, 1}, 1, turn)) {
    std::optional<Result> first;
    for (const ZeroStage stage : verify::in_turns<ZeroStage>(
             {ZeroStage::kNone, ZeroStage::kGradients, ZeroStage::kWeights}, 2, stages)) {
      SCOPED_TRACE(fmt::format("{} ranks, stage {}", ranks, static_cast<int>(stage)));
      for (const Result& result : on_ranks_of_rows(work, stage, ranks)) {
        errors.add(result, whole);
        if (!first) first = result;
        expect_the_same_bits(result, *first);
      }
    }
  }
  errors.expect_within_limit(work.name);
}

INSTANTIATE_TEST_SUITE_P(Works, SequenceRanks, testing::ValuesIn(divided_works()),
                         [](const auto& work) { return work.param.name; });

/// A chunk of one row, of all of a rank's rows, and of one row less and more.
TEST(SequenceRanksChunks, OfAnySizeGiveTheSame) {
  for (const char* name : {"qwen3-tiny", "gemma3-tiny", "qwen3.5-tiny", "deepseek-v3-tiny", "falcon-h1-tiny",
                           "kimi-linear-tiny"}) {
    Work work{name, full(name), "sft", documents(), chunks_of(5)};
    const Result whole = in_one_process(work);
    const int64_t rows = SequenceSplit(preset(name), work.batch.offsets, 3).rows(0);
    for (const int64_t chunk : {int64_t{1}, rows - 1, rows, rows + 1}) {
      work.settings.chunk = chunk;
      for (const Result& result : on_ranks_of_rows(work, ZeroStage::kNone, 3)) {
        EXPECT_TRUE(verify::relative_error(result.loss, whole.loss) <= kLimit) << name;
        const double error = worst_error(result.gradients, whole.gradients);
        EXPECT_TRUE(error <= kLimit) << name << " " << chunk << " " << error;
      }
    }
  }
}

/// As few rows as ranks, and a rank without a scored token.
TEST(SequenceRanksEdges, SmallBatchesAreExact) {
  std::vector<Batch> batches{random_batch({4}, 101, 5), random_batch({3, 2}, 101, 6),
                             random_batch({1, 1, 3}, 101, 7), one_text()};
  batches.back().targets.narrow(0, 0, 30).fill_(kNoTarget);
  for (const char* name : {"qwen3-tiny", "qwen3.5-tiny"}) {
    for (const Batch& batch : batches) {
      const Work work{name, full(name), "sft", batch, chunks_of(5)};
      const Result whole = in_one_process(work);
      for (const Result& result : on_ranks_of_rows(work, ZeroStage::kGradients, 4)) {
        EXPECT_TRUE(verify::relative_error(result.loss, whole.loss) <= kLimit) << name;
        const double error = worst_error(result.gradients, whole.gradients);
        EXPECT_TRUE(error <= kLimit) << name << " " << error;
      }
    }
  }
}

TEST(SequenceRanksEdges, NothingScoredIsZero) {
  Batch batch = one_text();
  batch.targets.fill_(kNoTarget);
  for (const Result& result :
       on_ranks_of_rows({"", full("qwen3-tiny"), "sft", batch, chunks_of(5)}, ZeroStage::kNone, 2)) {
    EXPECT_EQ(result.loss, 0.0);
    for (const auto& [name, gradient] : result.gradients) EXPECT_TRUE(verify::is_zero(gradient)) << name;
  }
}

TEST(SequenceRanksRepeats, AreEqualToTheLastBit) {
  for (const char* name : {"gemma3-tiny", "qwen3.5-tiny"}) {
    const Work work{name, full(name), "sft", documents(), chunks_of(5)};
    const std::vector<Result> first = on_ranks_of_rows(work, ZeroStage::kGradients, 3);
    for (int repeat = 0; repeat < 3; ++repeat) {
      const std::vector<Result> again = on_ranks_of_rows(work, ZeroStage::kGradients, 3);
      for (size_t rank = 0; rank < first.size(); ++rank) {
        EXPECT_EQ(again[rank].loss, first[rank].loss);
        expect_the_same_bits(again[rank].gradients, first[rank].gradients);
      }
    }
  }
}

/// One rank has nothing elsewhere: the bits of a pass without ranks.
TEST(SequenceRanksRepeats, OneRankIsOneProcess) {
  const Work work{"", full("qwen3-tiny"), "sft", one_text(), chunks_of(5)};
  const Result whole = in_one_process(work);
  const Result alone = on_ranks_of_rows(work, ZeroStage::kNone, 1).front();
  EXPECT_EQ(alone.loss, whole.loss);
  expect_the_same_bits(alone.gradients, whole.gradients);
}

/// The teacher's hidden states are divided as the model's.
TEST(SequenceRanksTeacher, IsDividedToo) {
  plan::TrainingStep step;
  step.objective = "distill";
  step.seq_len = 23;
  step.seed = 3;
  const Work work{"", full("qwen3-tiny"), "distill", plan::make_batch(step, 101), chunks_of(5)};
  const auto teacher_of = [] {
    return Model::random(preset("gemma3-tiny"), {at::kDouble, at::kCPU, at::kDouble, {}}, 8);
  };
  Model alone = work.model(), teacher = teacher_of();
  const auto objective = make_objective("distill", work.batch, {});
  const double loss = backpropagate(alone, work.batch, *objective, work.settings, &teacher).loss;
  run_on_threads(3, [&](Communicator& communicator) {
    RankOfRows rank(communicator, work);
    Model own_teacher = teacher_of();
    ReducedGradients gradients(communicator, rank.model, ZeroStage::kNone);
    const Outcome outcome = rank.pass(work.settings, gradients, &own_teacher);
    EXPECT_TRUE(verify::relative_error(outcome.loss, loss) <= kLimit);
    const double error = worst_error(gradients.gathered(), alone.gradients());
    EXPECT_TRUE(error <= kLimit) << error;
  });
}

/// What a reference model says of the tokens, rank by rank.
TEST(SequenceRanksEvaluation, GivesEachRanksTokens) {
  for (const char* name : {"gemma3-tiny", "qwen3.5-tiny"}) {
    const Work work{name, full(name), "sft", documents(), chunks_of(5)};
    Model alone = work.model();
    const at::Tensor whole = evaluate(alone, work.batch).log_probabilities;
    run_on_threads(3, [&](Communicator& communicator) {
      RankOfRows rank(communicator, work);
      const at::Tensor own = evaluate_part(rank.model, rank.batch, rank.rows).log_probabilities;
      for (size_t i = 0; i < rank.rows.all().size(); ++i) {
        const Piece& piece = rank.rows.all()[i];
        const double error = verify::relative_error(own.narrow(0, rank.batch.offsets[i], piece.size()),
                                                    whole.narrow(0, piece.begin, piece.size()));
        EXPECT_TRUE(error <= kLimit) << name << " " << error;
      }
    });
  }
}

TEST(SequenceRanksEdges, RefuseByName) {
  const auto refuses = [](const Work& work, const char* message) {
    EXPECT_TRUE(refused([&] { on_ranks_of_rows(work, ZeroStage::kNone, 2); }, message));
  };
  refuses({"", full("qwen3-tiny"), "sft", random_batch({1}, 101, 1), chunks_of(5)},
          "1 rows over 2 ranks, expected at least one row on every rank");
  refuses({"", full("qwen3-tiny"), "infonce", of_objective("infonce", 4).batch, chunks_of(5)},
          "compares embeddings of whole sequences");
  refuses({"", full("qwen3-tiny"), "sft", one_text(), chunks_of(0, Method::kCheckpoint)},
          "expected streambp in reverse order with a streamed head");
  Settings in_order = chunks_of(5);
  in_order.order = Order::kForward;
  refuses({"", full("qwen3-tiny"), "sft", one_text(), in_order},
          "expected streambp in reverse order with a streamed head");
}

/// bfloat16: gradients of keys and values go between ranks in float32.
TEST(SequenceRanksPrecision, HalfPrecisionIsCloseAndTheSameOnAllRanks) {
  const Work work{
      "",
      [] {
        return Model::random(preset("qwen3-tiny"), {at::kBFloat16, at::kCPU, at::kBFloat16, {}}, 1);
      },
      "sft", one_text(), chunks_of(5)};
  const Result whole = in_one_process(work);
  const std::vector<Result> results = on_ranks_of_rows(work, ZeroStage::kNone, 3);
  for (const Result& result : results) {
    expect_the_same_bits(result.weights, results.front().weights);
    for (const auto& [name, gradient] : whole.gradients) {
      const double error =
          verify::relative_error(result.gradients.at(name).to(at::kDouble), gradient.to(at::kDouble));
      EXPECT_TRUE(error <= 0.05) << name << " " << error;
    }
  }
}

}  // namespace
}  // namespace streambp
