// What a rank's pass takes, on meta: activations as in one process, gradients and states by their shares.
#include <gtest/gtest.h>

#include "streambp/distributed/data_parallel.h"
#include "streambp/memory/meter.h"

namespace streambp {
namespace {

constexpr int64_t kTokens = 4096;

/// Frees gradients, as ZeRO-2 does, and does nothing with them.
class Dropping final : public GradientConsumer {
 public:
  bool frees() const override { return true; }
  void use(const std::vector<Parameter*>&) override {}
};

struct Peak {
  MemoryReading reading;
  int64_t resident = 0;  // before the pass

  int64_t activations() const {
    int64_t bytes = 0;
    for (const auto& [scope, count] : reading.at_peak)
      if (scope != "weights" && scope != "gradients" && scope != "optimizer") bytes += count;
    return bytes;
  }
};

Model on_meta() {
  return Model::random(preset("qwen3-cpu"), {at::kFloat, at::kMeta, at::kFloat, {}}, 1);
}

int64_t parameter_bytes(const Model& model) {
  int64_t bytes = 0;
  for (const auto& parameter : model.parameters()) bytes += static_cast<int64_t>(parameter->value.nbytes());
  return bytes;
}

Settings chunked() {
  Settings settings;
  settings.chunk = 512;
  return settings;
}

template <typename Body>
Peak measured(const Body& pass) {
  Peak peak;
  peak.resident = read_meter(at::kMeta).live_bytes;
  reset_peak(at::kMeta);
  pass();
  peak.reading = read_meter(at::kMeta);
  return peak;
}

Peak in_one_process(GradientConsumer* consumer) {
  Model model = on_meta();
  if (consumer != nullptr && consumer->frees()) model.defer_gradients();
  const Batch batch = random_batch({kTokens}, model.config().vocab_size, 1);
  const auto objective = make_objective("sft", batch, {});
  Settings settings = chunked();
  settings.consumer = consumer;
  return measured([&] { backpropagate(model, batch, *objective, settings); });
}

Peak on_a_rank(ZeroStage stage, int64_t ranks, bool with_states) {
  Model model = on_meta();
  const auto communicator = counted_rank(ranks - 1, ranks);
  ReducedGradients gradients(*communicator, model, stage);
  OptimizerSettings settings;
  settings.name = "adamw";
  const auto optimizer = make_optimizer(settings);
  if (with_states) gradients.prepare(*optimizer);
  if (gradients.frees()) model.defer_gradients();
  Batch batch = random_batch({kTokens}, model.config().vocab_size, 1);
  const auto objective = objective_of_ranks(*communicator, model, "sft", batch);
  return measured(
      [&] { backpropagate_on_ranks(*communicator, model, batch, *objective, chunked(), gradients); });
}

TEST(RankMemory, WholeGradientsLeaveTheActivationsOfOneProcess) {
  install_meters();
  const Peak alone = in_one_process(nullptr), ranks = on_a_rank(ZeroStage::kNone, 8, false);
  EXPECT_EQ(ranks.activations(), alone.activations());
  EXPECT_EQ(ranks.reading.peak_bytes - ranks.resident, alone.reading.peak_bytes - alone.resident);
}

TEST(RankMemory, ShardedGradientsLeaveTheActivationsOfOneProcess) {
  install_meters();
  Dropping dropping;
  const Peak alone = in_one_process(&dropping);
  for (const int64_t ranks : {2, 8, 64}) {
    const Peak of_rank = on_a_rank(ZeroStage::kGradients, ranks, false);
    // At half of the parameters the shards' growth moves the peak to a lower layer, with fewer inputs alive.
    if (ranks > 2) {
      EXPECT_EQ(of_rank.activations(), alone.activations()) << ranks;
    }
    const Model model = on_meta();
    const int64_t beyond = of_rank.reading.peak_bytes - alone.reading.peak_bytes;
    EXPECT_GE(beyond, 0);
    EXPECT_LE(beyond, parameter_bytes(model) / ranks + 64) << ranks;
  }
}

/// Moments in float32 of a share of the parameters, to the number.
TEST(RankMemory, StatesAreThoseOfTheShare) {
  install_meters();
  const Model model = on_meta();
  for (const int64_t ranks : {1, 2, 8, 64}) {
    int64_t numbers = 0;
    for (const std::vector<Parameter*>& group : gradient_groups(model)) {
      int64_t n = 0;
      for (const Parameter* parameter : group) n += parameter->value.numel();
      const auto [begin, end] = shard_of(n, ranks - 1, ranks);
      numbers += end - begin;
    }
    const Peak with = on_a_rank(ZeroStage::kGradients, ranks, true);
    EXPECT_EQ(with.reading.at_peak.at("optimizer"), 2 * 4 * numbers) << ranks;
    EXPECT_TRUE(
        std::abs(static_cast<double>(4 * numbers * ranks) / static_cast<double>(parameter_bytes(model)) -
                 1.0) <= 0.01);
  }
}

/// bfloat16 with float32 masters: 2 bytes of each weight and of each gradient where they are whole, and of
/// the share 4 of its master and 8 of its moments; of ZeRO-3's layers 2 of the share, too.
TEST(RankMemory, MasterWeightsAreThoseOfTheShare) {
  install_meters();
  const auto in_half = [] {
    return Model::random(preset("qwen3-cpu"), {at::kBFloat16, at::kMeta, at::kBFloat16, {}}, 1);
  };
  double all = 0.0, of_layers = 0.0;
  const Model whole = in_half();
  for (const auto& parameter : whole.parameters()) {
    const auto numbers = static_cast<double>(parameter->value.numel());
    all += numbers;
    if (layer_of(parameter->name)) of_layers += numbers;
  }
  for (const int64_t ranks : {1, 2, 8, 64}) {
    for (const ZeroStage stage :
         {ZeroStage::kNone, ZeroStage::kOptimizer, ZeroStage::kGradients, ZeroStage::kWeights}) {
      const int64_t before = read_meter(at::kMeta).live_bytes;
      Model model = in_half();
      const auto communicator = counted_rank(ranks - 1, ranks);
      ReducedGradients gradients(*communicator, model, stage);
      OptimizerSettings settings;
      settings.name = "adamw";
      settings.master_weights = true;
      const auto optimizer = make_optimizer(settings);
      gradients.prepare(*optimizer);
      if (gradients.frees()) model.defer_gradients();
      const double share = stage == ZeroStage::kNone ? 1.0 : 1.0 / static_cast<double>(ranks);
      const double weights = stage == ZeroStage::kWeights ? all - of_layers + share * of_layers : all;
      const double expected = 2.0 * weights + (gradients.frees() ? 0.0 : 2.0 * all) + 12.0 * share * all;
      const auto resident = static_cast<double>(read_meter(at::kMeta).live_bytes - before);
      EXPECT_TRUE(std::abs(resident / expected - 1.0) <= 0.01)
          << ranks << " ranks, stage " << static_cast<int>(stage) << ": " << resident << ", " << expected;
    }
  }
}

/// ZeRO-3: of the layers' weights a share before the pass, and one layer while it is run.
TEST(RankMemory, DividedWeightsAreAShareAndALayer) {
  install_meters();
  const Model model = on_meta();
  int64_t whole = 0, layer = 0;
  for (const auto& parameter : model.parameters()) {
    const auto bytes = static_cast<int64_t>(parameter->value.nbytes());
    if (const auto number = layer_of(parameter->name)) {
      layer += *number == 0 ? bytes : 0;
    } else {
      whole += bytes;
    }
  }
  const int64_t layers = parameter_bytes(model) - whole;
  for (const int64_t ranks : {1, 2, 8, 64}) {
    const Peak peak = on_a_rank(ZeroStage::kWeights, ranks, true);
    const int64_t own = read_meter(at::kMeta).live_bytes;  // of this test's model
    const double share = static_cast<double>(layers) / static_cast<double>(ranks);
    const double states = 2.0 * static_cast<double>(layers + whole) / static_cast<double>(ranks);
    const double expected = static_cast<double>(whole) + share + states;
    EXPECT_TRUE(std::abs(static_cast<double>(peak.resident - own) / expected - 1.0) <= 0.01) << ranks;
    // At half of the parameters the shards' growth moves the peak to the embedding's step, with no layer
    // there.
    if (ranks <= 2) continue;
    const auto weights = static_cast<double>(peak.reading.at_peak.at("weights") - parameter_bytes(model));
    const double at_peak = static_cast<double>(whole + layer) + share;
    EXPECT_TRUE(std::abs(weights / at_peak - 1.0) <= 0.01) << ranks << ": " << weights << ", " << at_peak;
  }
}

/// What a rank's pass computes does not know where weights come from.
TEST(RankMemory, DividedWeightsLeaveTheActivationsOfOneProcess) {
  install_meters();
  Dropping dropping;
  const Peak alone = in_one_process(&dropping);
  const Peak of_rank = on_a_rank(ZeroStage::kWeights, 64, false);
  int64_t communication = 0;
  if (const auto found = of_rank.reading.at_peak.find("communication");
      found != of_rank.reading.at_peak.end())
    communication = found->second;
  EXPECT_EQ(of_rank.activations() - communication, alone.activations());
}

}  // namespace
}  // namespace streambp
