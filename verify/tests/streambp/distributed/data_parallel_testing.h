// What the tests of data-parallel passes share: batches, and how ranks divide them.
#pragma once

#include <array>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <gtest/gtest.h>
#include <map>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "streambp/distributed/data_parallel.h"
#include "streambp/model/weight_provider.h"
#include "streambp/objective/terms.h"
#include "verify/error_measure.h"
#include "verify/tests/streambp/ops/ops_testing.h"

namespace streambp {

/// What is trained on what.
struct Work {
  std::string name;
  std::function<Model()> model;
  std::string objective = "sft";
  Batch batch;
  Settings settings;
  int64_t micro_batches = 1;                        // of each rank
  std::map<std::string, std::string> options = {};  // of the objective

  friend void PrintTo(const Work& work, std::ostream* stream) { *stream << work.name; }
};

/// As a test names its parameter.
inline void PrintTo(ZeroStage stage, std::ostream* stream) {
  *stream << "ZeRO-" << static_cast<int>(stage);
}

inline std::function<Model()> full(const char* name) {
  return [name] { return Model::random(preset(name), {at::kDouble, at::kCPU, at::kDouble, {}}, 1); };
}

/// Of random weights, in float64; of a mixture without its load-balancing loss.
inline std::function<Model()> unbalanced(const char* name, c10::Device device = at::kCPU) {
  Config config = preset(name);
  config.mixture.output_router_logits = false;
  return [config, device] { return Model::random(config, {at::kDouble, device, at::kDouble, {}}, 1); };
}

/// Thirteen sequences of unequal lengths, prompts unscored; one has nothing to score at all.
inline Batch thirteen_texts() {
  Batch batch = random_batch({9, 4, 17, 1, 6, 12, 3, 8, 20, 5, 2, 11, 7}, 101, 3);
  for (const int64_t offset : {0, 13, 31, 52}) batch.targets[offset].fill_(kNoTarget);
  batch.targets.narrow(0, 37, 12).fill_(kNoTarget);
  return batch;
}

/// Seven pairs, chosen first, of unequal lengths, with what a reference said of them.
inline Batch pairs_of_texts() {
  const std::vector<int64_t> lengths{9, 4, 17, 5, 6, 12, 3, 8, 20, 5, 2, 11, 7, 13};
  Batch batch = random_batch(lengths, 101, 4);
  for (size_t i = 0; i < lengths.size(); ++i) batch.targets[batch.offsets[i]].fill_(kNoTarget);
  batch.sequence_inputs[inputs::kReferenceSums] = random({14}, 5) - 40.0;
  return batch;
}

inline Settings chunks_of(int64_t chunk, Method method = Method::kStreambp) {
  Settings settings;
  settings.method = method;
  settings.chunk = is_chunked(method) ? chunk : 0;
  return settings;
}

inline bool is_paired(const Work& work) {
  return has_pairs(objective_kind(work.objective).layout);
}

/// Rank r has r + 1 sequences (or pairs), the last rank all others. None knows how long the whole's longest
/// is.
inline Batch part_of(const Work& work, int64_t rank, int64_t ranks) {
  const auto sequences = static_cast<int64_t>(work.batch.offsets.size()) - 1;
  const int64_t units = is_paired(work) ? sequences / 2 : sequences;
  const int64_t first = rank * (rank + 1) / 2, last = rank == ranks - 1 ? units : first + rank + 1;
  std::vector<int64_t> picked(static_cast<size_t>(last - first));
  std::iota(picked.begin(), picked.end(), first);
  if (is_paired(work)) {
    const size_t count = picked.size();
    for (size_t i = 0; i < count; ++i) picked.push_back(picked[i] + units);
  }
  Batch part = select_sequences(work.batch, picked);
  part.rope_length = 0;
  return part;
}

/// Its first step is lr g / (|g| + epsilon), which enlarges an error of g by up to lr / epsilon: with the
/// usual 1e-8 a million times where g is near 0, so that rounding alone would be beyond kLimit; with this one
/// tenfold.
inline std::unique_ptr<Optimizer> adamw() {
  OptimizerSettings settings;
  settings.name = "adamw";
  settings.learning_rate = 0.01;
  settings.epsilon = 1e-3;
  return make_optimizer(settings);
}

using Tensors = std::map<std::string, at::Tensor>;

inline constexpr double kLimit = 1e-12;
inline constexpr std::array kStages{ZeroStage::kNone, ZeroStage::kOptimizer, ZeroStage::kGradients,
                                    ZeroStage::kWeights};

struct Result {
  double loss = 0.0;
  Tensors gradients, weights;  // before and after one step of adamw
};

/// All ranks call it: weights that they divide are gathered.
inline Tensors weights_of(const Model& model) {
  const AllLayerWeights gathered(model);
  Tensors weights;
  for (const auto& parameter : model.parameters())
    if (parameter->value.defined()) weights[parameter->name] = parameter->value.clone();
  return weights;
}

inline Result in_one_process(const Work& work) {
  Model model = work.model();
  const auto objective = make_objective(work.objective, work.batch, work.options);
  Result result;
  result.loss = backpropagate(model, work.batch, *objective, work.settings).loss;
  for (const auto& [name, gradient] : model.gradients()) result.gradients[name] = gradient.clone();
  const auto optimizer = adamw();
  for (const auto& parameter : model.parameters())
    if (parameter->trainable()) optimizer->step(*parameter);
  result.weights = weights_of(model);
  return result;
}

inline double worst_error(const Tensors& got, const Tensors& expected) {
  double worst = 0.0;
  for (const verify::ParameterError& error : verify::gradient_errors(got, expected))
    worst = verify::worse(worst, error.problem.empty() ? error.error : std::nan(""));
  return worst;
}

inline void expect_the_same_bits(const Tensors& got, const Tensors& expected) {
  ASSERT_EQ(got.size(), expected.size());
  for (const auto& [name, tensor] : expected) EXPECT_TRUE(at::equal(got.at(name), tensor)) << name;
}

inline void expect_the_same_bits(const Result& got, const Result& expected) {
  EXPECT_EQ(got.loss, expected.loss);
  expect_the_same_bits(got.gradients, expected.gradients);
  expect_the_same_bits(got.weights, expected.weights);
}

/// The worst of several results.
struct WorstErrors {
  double loss = 0.0, gradients = 0.0, weights = 0.0;

  void add(const Result& got, const Result& expected) {
    loss = verify::worse(loss, verify::relative_error(got.loss, expected.loss));
    gradients = verify::worse(gradients, worst_error(got.gradients, expected.gradients));
    weights = verify::worse(weights, worst_error(got.weights, expected.weights));
  }

  void expect_within_limit(const std::string& name) const {
    std::printf("%s: loss %.1e, gradients %.1e, weights after a step %.1e, limit %.0e\n", name.c_str(), loss,
                gradients, weights, kLimit);
    EXPECT_TRUE(loss <= kLimit) << loss;
    EXPECT_TRUE(gradients <= kLimit) << gradients;
    EXPECT_TRUE(weights <= kLimit) << weights;
  }
};

}  // namespace streambp
