// One batch on one to four ranks against the whole batch in one process: losses, gradients and a step.
#include "streambp/distributed/data_parallel.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <gtest/gtest.h>

#include "streambp/distributed/transport/thread_ranks.h"
#include "verify/tests/streambp/distributed/data_parallel_testing.h"
#include "verify/tests/streambp/model/adapter_testing.h"
#include "verify/tests/turns.h"

namespace streambp {
namespace {

std::vector<Work> works() {
  const std::map<std::string, std::string> unbalanced{{"router_aux_loss_coef", "0"}};
  std::vector<Work> all{
      {"sft", full("qwen3-tiny"), "sft", thirteen_texts(), chunks_of(5)},
      {"sft_tied", full("llama-tied-tiny"), "sft", thirteen_texts(), chunks_of(5)},
      {"sft_recurrent", full("qwen3.5-tiny"), "sft", thirteen_texts(), chunks_of(5)},
      {"sft_mixture", full("qwen3-moe-tiny"), "sft", thirteen_texts(), chunks_of(5), 1, unbalanced},
      {"sft_parts_of_weights", full("gpt-oss-tiny"), "sft", thirteen_texts(), chunks_of(5), 1, unbalanced},
      {"sft_rope_by_length", full("llama-dynamic-tiny"), "sft", thirteen_texts(), chunks_of(5)},
      {"sft_checkpoint", full("qwen2-tiny"), "sft", thirteen_texts(), chunks_of(0, Method::kCheckpoint)},
      {"sft_accumulated", full("qwen3-tiny"), "sft", thirteen_texts(), chunks_of(4), 2},
      {"dpo", full("qwen3-tiny"), "dpo", pairs_of_texts(), chunks_of(6)},
      {"dpo_standard", full("gemma3-tiny"), "dpo", pairs_of_texts(), chunks_of(0, Method::kStandard)}};
  for (const AdapterVariant& variant : adapter_variants()) {
    constexpr std::array kVariants{"rsLoRA", "saved both, tied", "fused maps", "biases", "a saved router"};
    if (std::find(kVariants.begin(), kVariants.end(), variant.name) == kVariants.end()) continue;
    const auto adapted = [variant] { return adapted_model(variant); };
    all.push_back({fmt::format("sft_lora_{}", all.size()), adapted, "sft", thirteen_texts(), chunks_of(5), 1,
                   unbalanced});
    all.push_back({fmt::format("dpo_lora_{}", all.size()), adapted, "dpo", pairs_of_texts(), chunks_of(5), 1,
                   unbalanced});
  }
  return all;
}

/// One rank's losses and gradients of the whole, over as many passes as `work` says.
double run_passes(const Work& work, Communicator& communicator, Model& model, ReducedGradients& gradients) {
  Batch own = part_of(work, communicator.rank(), communicator.size());
  if (work.micro_batches == 1) {
    const auto objective = objective_of_ranks(communicator, model, work.objective, own, work.options);
    return backpropagate_on_ranks(communicator, model, own, *objective, work.settings, gradients).loss;
  }
  // The whole is then all parts of all ranks; a rank with one sequence alone repeats it, unscored.
  std::vector<Batch> parts = micro_batches(own, work.micro_batches, is_paired(work));
  while (static_cast<int64_t>(parts.size()) < work.micro_batches) {
    parts.push_back(own);
    parts.back().targets = at::full_like(own.targets, kNoTarget);
  }
  const Counts whole = count(work.batch);
  double loss = 0.0;
  for (size_t i = 0; i < parts.size(); ++i) {
    gradients.accumulate(i + 1 < parts.size());
    const auto objective = make_objective(work.objective, parts[i], work.options, whole);
    loss += backpropagate_on_ranks(communicator, model, parts[i], *objective, work.settings, gradients).loss;
  }
  return loss;
}

Result on_rank(const Work& work, ZeroStage stage, Communicator& communicator) {
  Model model = work.model();
  ReducedGradients gradients(communicator, model, stage);
  const auto optimizer = adamw();
  gradients.prepare(*optimizer);
  Result result;
  result.loss = run_passes(work, communicator, model, gradients);
  for (const auto& [name, gradient] : gradients.gathered()) result.gradients[name] = gradient.clone();
  gradients.step(*optimizer);
  for (const auto& [name, gradient] : model.gradients())
    EXPECT_EQ(gradient.count_nonzero().item<int64_t>(), 0) << name;
  result.weights = weights_of(model);
  return result;
}

/// Every rank's.
std::vector<Result> on_ranks(const Work& work, ZeroStage stage, int64_t ranks) {
  std::vector<Result> results(static_cast<size_t>(ranks));
  run_on_threads(ranks, [&](Communicator& communicator) {
    results[static_cast<size_t>(communicator.rank())] = on_rank(work, stage, communicator);
  });
  return results;
}

class DataParallel : public testing::TestWithParam<Work> {};

TEST_P(DataParallel, GivesWhatOneProcessDoes) {
  const Work& work = GetParam();
  const Result whole = in_one_process(work);
  WorstErrors errors;
  static size_t turn = 0;
  for (const int64_t ranks : verify::in_turns<int64_t>({2, 3, 4, 1}, 1, turn)) {
    std::optional<Result> first;
    for (const ZeroStage stage : kStages) {
      const bool hands_over = method_kind(work.settings.method).fuses_optimizer;
      if (frees_gradients(stage) && !hands_over) continue;
      SCOPED_TRACE(fmt::format("{} ranks, stage {}", ranks, static_cast<int>(stage)));
      for (const Result& result : on_ranks(work, stage, ranks)) {
        errors.add(result, whole);
        // Every rank and stage the same sums, unless stages 2 and 3 have reduced each pass for itself.
        if (!first) first = result;
        if (work.micro_batches > 1 && frees_gradients(stage)) continue;
        expect_the_same_bits(result, *first);
      }
    }
  }
  errors.expect_within_limit(work.name);
}

INSTANTIATE_TEST_SUITE_P(Works, DataParallel, testing::ValuesIn(works()),
                         [](const auto& work) { return work.param.name; });

TEST(DataParallelRepeats, AreEqualToTheLastBit) {
  const Work work{"dpo", full("qwen3-tiny"), "dpo", pairs_of_texts(), chunks_of(6)};
  for (const ZeroStage stage : kStages) {
    const std::vector<Result> first = on_ranks(work, stage, 3);
    for (int repeat = 0; repeat < 3; ++repeat) {
      const std::vector<Result> again = on_ranks(work, stage, 3);
      for (size_t rank = 0; rank < first.size(); ++rank) {
        EXPECT_EQ(again[rank].loss, first[rank].loss);
        expect_the_same_bits(again[rank].gradients, first[rank].gradients);
        expect_the_same_bits(again[rank].weights, first[rank].weights);
      }
    }
  }
}

/// Several steps: moments and weights stay together.
TEST(DataParallelSteps, FollowOneProcess) {
  const int steps = 4;
  Work work{"sft", full("llama-tied-tiny"), "sft", thirteen_texts(), chunks_of(5)};
  Model alone = work.model();
  const auto of_alone = adamw();
  const auto objective = make_objective("sft", work.batch, {});
  ReducedGradients by_itself(*single_rank(), alone, ZeroStage::kNone);
  for (int step = 0; step < steps; ++step) {
    alone.zero_gradients();
    backpropagate(alone, work.batch, *objective, work.settings);
    for (const auto& parameter : alone.parameters()) {
      const at::Tensor gradient = parameter->gradient;
      of_alone->step(*parameter);
      parameter->gradient = gradient;
    }
  }
  for (const ZeroStage stage : kStages) {
    run_on_threads(3, [&](Communicator& communicator) {
      Model model = work.model();
      ReducedGradients gradients(communicator, model, stage);
      const auto optimizer = adamw();
      for (int step = 0; step < steps; ++step) {
        run_passes(work, communicator, model, gradients);
        gradients.step(*optimizer);
      }
      const double error = worst_error(weights_of(model), weights_of(alone));
      EXPECT_TRUE(error <= kLimit) << error;
    });
  }
}

/// A rank whose part has nothing to score takes part all the same.
TEST(DataParallelEdges, ARankWithoutAScoredTokenTakesPart) {
  Work work{"sft", full("llama-tied-tiny"), "sft", thirteen_texts(), chunks_of(5)};
  work.settings.every = 2;                              // layers run again
  work.batch.targets.narrow(0, 0, 9).fill_(kNoTarget);  // the first rank's only sequence
  const Result whole = in_one_process(work);
  for (const ZeroStage stage : kStages) {
    for (const Result& result : on_ranks(work, stage, 2)) {
      EXPECT_TRUE(verify::relative_error(result.loss, whole.loss) <= kLimit);
      const double error = worst_error(result.gradients, whole.gradients);
      EXPECT_TRUE(error <= kLimit) << error;
    }
  }
}

/// The base of adapters as their reference: no gradient is wanted, and every rank gathers its layers.
TEST(DataParallelEdges, RanksAskTheBaseTogether) {
  const AdapterVariant variant = adapter_variants().front();
  const Work work{"dpo", [&] { return adapted_model(variant); }, "dpo", pairs_of_texts(), chunks_of(5)};
  const auto sums = [&](Model& model, const Batch& batch) {
    const AdaptersOff off(model);
    return evaluate(model, batch).log_probabilities;
  };
  run_on_threads(3, [&](Communicator& communicator) {
    Model model = work.model();
    const ReducedGradients gradients(communicator, model, ZeroStage::kWeights);
    const Batch own = part_of(work, communicator.rank(), communicator.size());
    Model whole = work.model();
    EXPECT_TRUE(at::equal(sums(model, own), sums(whole, own)));
  });
}

/// bfloat16: vectors are summed in float32 while a pass lasts, on ranks with and without scored tokens.
TEST(DataParallelEdges, HalfPrecisionRanksAgree) {
  const Work work{
      "sft",
      [] {
        return Model::random(preset("qwen2-tiny"), {at::kBFloat16, at::kCPU, at::kBFloat16, {}}, 1);
      },
      "sft", thirteen_texts(), chunks_of(5)};
  const Result whole = in_one_process(work);
  for (const ZeroStage stage : kStages) {
    const std::vector<Result> results = on_ranks(work, stage, 3);
    for (const Result& result : results) {
      EXPECT_EQ(result.loss, results.front().loss);
      expect_the_same_bits(result.weights, results.front().weights);
      for (const auto& [name, gradient] : whole.gradients) {
        if (gradient.count_nonzero().item<int64_t>() == 0) continue;
        const double error =
            verify::relative_error(result.gradients.at(name).to(at::kDouble), gradient.to(at::kDouble));
        if (name.find("k_proj.bias") != std::string::npos) continue;  // its gradient is rounding alone
        EXPECT_TRUE(error <= 0.05) << name << " " << error;
      }
    }
  }
}

TEST(DataParallelEdges, RefuseWhatIsOutOfOrder) {
  const auto alone = single_rank();
  Model model = full("qwen3-tiny")();
  Batch batch = thirteen_texts();
  const auto objective = objective_of_ranks(*alone, model, "sft", batch);
  ReducedGradients gradients(*alone, model, ZeroStage::kOptimizer), plain(*alone, model, ZeroStage::kNone);
  EXPECT_THROW(gradients.step(*adamw()), InputError);
  EXPECT_THROW(gradients.gathered(), InputError);
  OptimizerSettings settings;
  for (const char* name : {"galore", "natural-galore"}) {
    settings.name = name;
    const auto galore = make_optimizer(settings);
    EXPECT_THROW(gradients.prepare(*galore), InputError);
    EXPECT_THROW(gradients.step(*galore), InputError);
    EXPECT_NO_THROW(plain.prepare(*galore));
  }
  backpropagate_on_ranks(*alone, model, batch, *objective, chunks_of(5), plain);
  EXPECT_THROW(backpropagate_on_ranks(*alone, model, batch, *objective, chunks_of(5), plain), InputError);
  ReducedGradients freeing(*alone, model, ZeroStage::kGradients);
  EXPECT_THROW(
      backpropagate_on_ranks(*alone, model, batch, *objective, chunks_of(0, Method::kStandard), freeing),
      InputError);
}

}  // namespace
}  // namespace streambp
