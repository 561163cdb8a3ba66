// Sequences divided among one to four ranks against one process: losses, gradients and a step.
#include <cstdio>
#include <gtest/gtest.h>
#include <random>

#include "streambp/plan/workload.h"
#include "verify/tests/streambp/distributed/sequence_ranks_testing.h"
#include "verify/tests/streambp/model/adapter_testing.h"
#include "verify/tests/streambp/model/file_testing.h"

namespace streambp {
namespace {

/// Thirty-seven tokens, which no number of pieces divides, with a prompt that is not scored.
Batch one_text() {
  Batch batch = random_batch({37}, 101, 3);
  batch.targets.narrow(0, 0, 5).fill_(kNoTarget);
  return batch;
}

/// Documents of unequal lengths: some are cut, some end where a rank's rows do, one is a single token.
Batch documents() {
  Batch batch = random_batch({19, 4, 1, 23, 6, 2}, 101, 4);
  batch.targets.narrow(0, 24, 9).fill_(kNoTarget);
  return batch;
}

std::function<Model()> with_value_head(const char* name) {
  return [name] {
    Model model = full(name)();
    model.attach_value_head(random({1, model.config().hidden_size}, 9));
    return model;
  };
}

Work of_objective(const char* objective, int64_t sequences) {
  plan::TrainingStep step;
  step.objective = objective;
  step.seq_len = 9;
  step.sequences = sequences;
  step.seed = 3;
  Batch batch = plan::make_batch(step, 101);
  plan::fill_reference(step, batch);
  const auto model = plan::needs_value_head(objective) ? with_value_head("qwen3-tiny") : full("qwen3-tiny");
  return {objective, model, objective, batch, chunks_of(4)};
}

Settings keeping(const char* kept, int64_t every, Offload offload = Offload::kNone) {
  Settings settings = chunks_of(5);
  settings.keep = parse_kept_layers(kept);
  settings.every = every;
  settings.offload = offload;
  return settings;
}

std::vector<Work> works() {
  std::vector<Work> all;
  for (const char* name : {"qwen3-tiny", "qwen2-tiny", "llama-tied-tiny", "llama-dynamic-tiny", "gemma2-tiny",
                           "gemma3-tiny", "mistral-tiny", "phi3-tiny", "smollm3-tiny", "ministral3-tiny",
                           "gpt-oss-tiny", "qwen3-moe-plain-tiny", "gemma4-tiny", "gemma4-moe-tiny",
                           "qwen3.5-tiny", "qwen3-next-tiny", "deepseek-v3-tiny", "glm4-moe-tiny"}) {
    all.push_back({fmt::format("one_{}", name), full(name), "sft", one_text(), chunks_of(5)});
    all.push_back({fmt::format("documents_{}", name), full(name), "sft", documents(), chunks_of(5)});
  }
  for (const AdapterVariant& variant : adapter_variants()) {
    if (variant.name != "rsLoRA" && variant.name != "fused maps" && variant.name != "recurrent layers")
      continue;
    const auto adapted = [variant] { return adapted_model(variant); };
    all.push_back({fmt::format("lora_{}", variant.preset), adapted, "sft", documents(), chunks_of(5)});
  }
  const std::map<std::string, std::string> balanced{{"router_aux_loss_coef", "0.1"}};
  all.push_back({"balanced", full("qwen3-moe-tiny"), "sft", documents(), chunks_of(5), 1, balanced});
  all.push_back(of_objective("dpo", 4));
  all.push_back(of_objective("kto", 5));
  all.push_back(of_objective("grpo", 5));
  all.push_back(of_objective("ppo", 5));
  all.push_back(of_objective("reward", 4));
  all.push_back({"every", full("qwen2-tiny"), "sft", documents(), keeping("none", 2)});
  all.push_back({"every_recurrent", full("qwen3.5-tiny"), "sft", documents(), keeping("none", 2)});
  all.push_back({"kept", full("qwen2-tiny"), "sft", documents(), keeping("attention,keys-values:2", 1)});
  all.push_back({"kept_and_every", full("qwen2-tiny"), "sft", documents(), keeping("attention", 2)});
  all.push_back({"offloaded", full("qwen2-tiny"), "sft", documents(),
                 keeping("attention,keys-values", 1, Offload::kHost)});
  for (Work& work : all) {
    for (char& c : work.name)
      if (c == '-' || c == '.') c = '_';
  }
  return all;
}

class SequenceRanks : public testing::TestWithParam<Work> {};

TEST_P(SequenceRanks, GiveWhatOneProcessDoes) {
  const Work& work = GetParam();
  const Result whole = in_one_process(work);
  WorstErrors errors;
  for (const int64_t ranks : {1, 2, 3, 4}) {
    std::optional<Result> first;
    for (const ZeroStage stage : {ZeroStage::kNone, ZeroStage::kGradients, ZeroStage::kWeights}) {
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

INSTANTIATE_TEST_SUITE_P(Works, SequenceRanks, testing::ValuesIn(works()),
                         [](const auto& work) { return work.param.name; });

/// A chunk of one row, of all of a rank's rows, and of one row less and more.
TEST(SequenceRanksChunks, OfAnySizeGiveTheSame) {
  for (const char* name : {"qwen3-tiny", "gemma3-tiny", "qwen3.5-tiny", "deepseek-v3-tiny"}) {
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

/// Drawn lengths, ranks and chunks, unscored prompts: whatever meets at the borders of ranks and chunks.
TEST(SequenceRanksChunks, OfDrawnBatchesGiveTheSame) {
  std::mt19937 draw(7);
  const auto up_to = [&](int64_t most) { return 1 + static_cast<int64_t>(draw()) % most; };
  const std::vector<const char*> names{"qwen3-tiny", "gemma3-tiny", "qwen3.5-tiny", "deepseek-v3-tiny"};
  for (int round = 0; round < 40; ++round) {
    std::vector<int64_t> lengths{2 + up_to(40)};
    for (int64_t i = up_to(6); i > 1; --i) lengths.push_back(up_to(12));
    Batch batch = random_batch(lengths, 101, static_cast<uint64_t>(round));
    batch.targets.narrow(0, 0, up_to(lengths.front() - 2) - 1).fill_(kNoTarget);
    const char* const name = names[static_cast<size_t>(round) % names.size()];
    const Work work{name, full(name), "sft", batch, chunks_of(up_to(11))};
    const int64_t ranks = std::min<int64_t>(1 + up_to(5), batch.size());
    SCOPED_TRACE(fmt::format("round {}: {} [{}] on {}, chunk {}", round, name, fmt::join(lengths, ", "),
                             ranks, work.settings.chunk));
    const Result whole = in_one_process(work);
    const Result result = on_ranks_of_rows(work, ZeroStage::kNone, ranks).back();
    EXPECT_TRUE(verify::relative_error(result.loss, whole.loss) <= kLimit);
    const double error = worst_error(result.gradients, whole.gradients);
    EXPECT_TRUE(error <= kLimit) << error;
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
  refuses({"", full("gemma4-per-layer-tiny"), "sft", one_text(), chunks_of(5)},
          "several layers read its keys and values");
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
