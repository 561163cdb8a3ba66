// Float32 master weights of half-precision parameters, divided among ranks as optimizer states are.
#include <array>
#include <cmath>
#include <cstdio>
#include <gtest/gtest.h>

#include "streambp/distributed/transport/thread_ranks.h"
#include "verify/tests/streambp/distributed/data_parallel_testing.h"
#include "verify/tests/turns.h"

namespace streambp {
namespace {

constexpr std::array kHalves{at::kBFloat16, at::kHalf};

OptimizerSettings with_masters(double learning_rate) {
  OptimizerSettings settings;
  settings.name = "adamw";
  settings.learning_rate = learning_rate;
  settings.epsilon = 1e-3;
  settings.master_weights = true;
  return settings;
}

Model half_model(at::ScalarType dtype, at::ScalarType gradient_dtype) {
  return Model::random(preset("llama-tied-tiny"), {dtype, at::kCPU, gradient_dtype, {}}, 1);
}

/// Of rank `rank` in step `step`: small multiples of 1/64, whose sums over ranks have no rounding in any
/// dtype.
at::Tensor made_up_gradient(const Parameter& parameter, int64_t rank, int step) {
  const at::Tensor numbers = at::arange(parameter.value.numel(), at::kLong);
  const at::Tensor small = (numbers * 7 + 5 * rank + 3 * step + parameter.value.dim()).remainder(13) - 6;
  return (small.to(at::kFloat) / 64.0).view(parameter.value.sizes());
}

/// Steps with made-up gradients of `ranks` ranks, in one process.
Tensors stepped_alone(Model model, int64_t ranks, int steps) {
  const auto optimizer = make_optimizer(with_masters(1e-3));
  for (int step = 0; step < steps; ++step) {
    for (const auto& parameter : model.parameters()) {
      at::Tensor sum = made_up_gradient(*parameter, 0, step);
      for (int64_t rank = 1; rank < ranks; ++rank) sum += made_up_gradient(*parameter, rank, step);
      const at::Tensor gradient = parameter->gradient;
      parameter->gradient = sum.to(gradient.scalar_type());
      optimizer->step(*parameter);
      parameter->gradient = gradient;
    }
  }
  return weights_of(model);
}

Tensors stepped_on_rank(Communicator& communicator, Model model, ZeroStage stage, int steps) {
  ReducedGradients gradients(communicator, model, stage);
  const auto optimizer = make_optimizer(with_masters(1e-3));
  gradients.prepare(*optimizer);
  for (int step = 0; step < steps; ++step) {
    for (const std::vector<Parameter*>& group : gradient_groups(model)) {
      for (Parameter* parameter : group)
        parameter->gradient.copy_(made_up_gradient(*parameter, communicator.rank(), step));
      gradients.use(group);
    }
    gradients.finish();
    gradients.step(*optimizer);
  }
  return weights_of(model);
}

TEST(MasterWeightsOnRanks, AreOneProcessesToTheLastBit) {
  constexpr int kSteps = 3;
  size_t turn = 0;
  for (const at::ScalarType dtype : kHalves) {
    for (const at::ScalarType gradient_dtype : {dtype, at::kFloat}) {
      for (const int64_t ranks : verify::in_turns<int64_t>({1, 2, 3, 4}, 1, turn)) {
        const Tensors expected = stepped_alone(half_model(dtype, gradient_dtype), ranks, kSteps);
        for (const ZeroStage stage : kStages) {
          SCOPED_TRACE(fmt::format("{}, gradients in {}, {} ranks, stage {}", c10::toString(dtype),
                                   c10::toString(gradient_dtype), ranks, static_cast<int>(stage)));
          run_on_threads(ranks, [&](Communicator& communicator) {
            expect_the_same_bits(
                stepped_on_rank(communicator, half_model(dtype, gradient_dtype), stage, kSteps), expected);
          });
        }
      }
    }
  }
}

/// What whole training steps on thirteen texts leave of the weights, and of the loss.
struct Trained {
  double loss = 0.0;
  Tensors weights;
};

Trained trained_on_rank(Communicator& communicator, Model model, ZeroStage stage,
                        const OptimizerSettings& settings, int steps) {
  const Work work{"sft", {}, "sft", thirteen_texts(), chunks_of(5)};
  ReducedGradients gradients(communicator, model, stage);
  const auto optimizer = make_optimizer(settings);
  gradients.prepare(*optimizer);
  Batch own = part_of(work, communicator.rank(), communicator.size());
  const auto objective = objective_of_ranks(communicator, model, "sft", own);
  Trained trained;
  for (int step = 0; step < steps; ++step) {
    trained.loss =
        backpropagate_on_ranks(communicator, model, own, *objective, work.settings, gradients).loss;
    gradients.step(*optimizer);
  }
  trained.weights = weights_of(model);
  return trained;
}

Tensors to_double(Tensors tensors) {
  for (auto& [name, tensor] : tensors) tensor = tensor.to(at::kDouble);
  return tensors;
}

/// The distance between two sets of weights, relative to how far training has moved them.
double relative_distance(const Tensors& got, const Tensors& expected, const Tensors& start) {
  double error = 0.0, moved = 0.0;
  for (const auto& [name, tensor] : to_double(expected)) {
    error += (got.at(name).to(at::kDouble) - tensor).square().sum().item<double>();
    moved += (tensor - start.at(name).to(at::kDouble)).square().sum().item<double>();
  }
  return std::sqrt(error / moved);
}

/// Whole steps in bfloat16 stay as near to float64's as those of one process do, and repeat themselves.
TEST(MasterWeightsOnRanks, TrainAsNearToFloat64AsOneProcess) {
  constexpr int kSteps = 4;
  const OptimizerSettings settings = with_masters(1e-3);
  const Tensors start = to_double(weights_of(half_model(at::kBFloat16, at::kBFloat16)));
  // The same numbers to begin with.
  Model truth = half_model(at::kDouble, at::kDouble);
  for (const auto& parameter : truth.parameters()) parameter->value.copy_(start.at(parameter->name));
  const Tensors expected =
      trained_on_rank(*single_rank(), std::move(truth), ZeroStage::kNone, settings, kSteps).weights;
  const auto train = [&](Communicator& communicator, ZeroStage stage) {
    return trained_on_rank(communicator, half_model(at::kBFloat16, at::kBFloat16), stage, settings, kSteps);
  };
  const double alone = relative_distance(train(*single_rank(), ZeroStage::kNone).weights, expected, start);
  double worst = 0.0;
  size_t turn = 0;
  for (const int64_t ranks : verify::in_turns<int64_t>({3, 2, 4}, 1, turn)) {
    for (const ZeroStage stage : kStages) {
      std::vector<Trained> first(static_cast<size_t>(ranks)), again = first;
      for (std::vector<Trained>* results : {&first, &again}) {
        run_on_threads(ranks, [&](Communicator& communicator) {
          (*results)[static_cast<size_t>(communicator.rank())] = train(communicator, stage);
        });
      }
      for (size_t rank = 0; rank < first.size(); ++rank) {
        EXPECT_EQ(first[rank].loss, again[rank].loss);
        expect_the_same_bits(first[rank].weights, again[rank].weights);
        expect_the_same_bits(first[rank].weights, first.front().weights);
      }
      worst = verify::worse(worst, relative_distance(first.front().weights, expected, start));
    }
  }
  std::printf("weights after %d steps in bfloat16: one process %.2e, ranks at most %.2e of what was moved\n",
              kSteps, alone, worst);
  EXPECT_TRUE(worst <= 1.25 * alone) << worst << ", " << alone;
}

/// Steps below half a unit in the last place of most weights: without masters they are lost.
TEST(MasterWeightsOnRanks, KeepStepsThatHalfPrecisionLoses) {
  constexpr int kSteps = 40;
  const Tensors start = weights_of(half_model(at::kBFloat16, at::kBFloat16));
  const auto share_moved = [&](bool has_masters) {
    OptimizerSettings settings = with_masters(2e-6);
    settings.master_weights = has_masters;
    settings.epsilon = 1e-8;
    double share = 0.0;
    run_on_threads(2, [&](Communicator& communicator) {
      const Tensors end = trained_on_rank(communicator, half_model(at::kBFloat16, at::kBFloat16),
                                          ZeroStage::kGradients, settings, kSteps)
                              .weights;
      if (communicator.rank() != 0) return;
      int64_t moved = 0, all = 0;
      for (const auto& [name, tensor] : end) {
        moved += tensor.ne(start.at(name)).sum().item<int64_t>();
        all += tensor.numel();
      }
      share = static_cast<double>(moved) / static_cast<double>(all);
    });
    return share;
  };
  const double with = share_moved(true), without = share_moved(false);
  std::printf("weights that %d steps of 2e-6 have moved: %.1f %% with masters, %.1f %% without\n", kSteps,
              100.0 * with, 100.0 * without);
  EXPECT_TRUE(with >= 0.3) << with;
  EXPECT_TRUE(without <= 0.1) << without;
}

}  // namespace
}  // namespace streambp
