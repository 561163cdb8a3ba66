// What a pass has a GPU do, by kind, held against counts by hand.
#include "bench/sweep/work.h"

#include <gtest/gtest.h>

#include "streambp/backprop/host_weights.h"
#include "streambp/data/objective_inputs.h"
#include "streambp/plan/flops/hardware_flops.h"
#include "verify/equality/batches.h"
#include "verify/equality/subject.h"

namespace streambp::bench {

using namespace verify;
namespace {

/// 2 sequences in a batch of a small Qwen3, by `settings`.
struct Counted {
  explicit Counted(const Settings& settings) : Counted(settings, equality_model("qwen3-tiny", 0)) {}
  Counted(const Settings& settings, Model of)
      : model(std::move(of)),
        batch(synthetic_batch(objective_kind("sft"), complete_options(objective_kind("sft"), {}), 2, 40,
                              model.config().vocab_size, 1)),
        objective(make_objective("sft", batch, {})),
        work(work_of(model, batch, *objective, settings, nullptr)),
        flops(plan::hardware_flops(model, batch, *objective, settings)) {}

  /// Of one product of scores, in all layers.
  double product() const {
    double pairs = 0.0;
    for (size_t i = 0; i + 1 < batch.offsets.size(); ++i) {
      const auto rows = static_cast<double>(batch.offsets[i + 1] - batch.offsets[i]);
      pairs += rows * (rows + 1.0) / 2.0;
    }
    const Config& config = model.config();
    return 2.0 * pairs *
           static_cast<double>(config.num_attention_heads * config.head_dim * config.num_hidden_layers);
  }

  Model model;
  Batch batch;
  std::unique_ptr<Objective> objective;
  Work work;
  double flops;
};

Settings by(Method method, int64_t chunk = 0) {
  Settings settings;
  settings.method = method;
  settings.chunk = chunk;
  return settings;
}

TEST(Work, TakesAttentionOutOfWhatAMethodExecutes) {
  const Counted standard(by(Method::kStandard)), checkpoint(by(Method::kCheckpoint)),
      streambp(by(Method::kStreambp, 16));
  for (const Counted* one : {&standard, &checkpoint, &streambp}) {
    const Work& work = one->work;
    EXPECT_DOUBLE_EQ(work.products + work.attention_forward + work.attention_backward, one->flops);
    EXPECT_DOUBLE_EQ(work.attention_backward, 5.0 * one->product());
    EXPECT_GT(work.products, 0.0);
    EXPECT_EQ(work.host_bytes, 0.0);
  }
  EXPECT_DOUBLE_EQ(standard.work.attention_forward, 2.0 * standard.product());
  EXPECT_DOUBLE_EQ(checkpoint.work.attention_forward, 4.0 * checkpoint.product());
  Settings kept = by(Method::kStreambp, 16);
  kept.keep.attention = kAllLayers;
  EXPECT_DOUBLE_EQ(Counted(kept).work.attention_forward, 2.0 * standard.product());
}

TEST(Work, CountsWhatMovesThroughMemoryAndToTheHost) {
  const Counted few(by(Method::kStreambp, 40)), many(by(Method::kStreambp, 8));
  EXPECT_GT(many.work.moved_bytes, few.work.moved_bytes) << "parts of a prefix are added up";
  EXPECT_DOUBLE_EQ(many.work.attention_forward, few.work.attention_forward);
  Settings offloaded = by(Method::kStreambp, 16);
  offloaded.offload = Offload::kHost;
  const Counted host(offloaded);
  // Each layer's input but the lowest one's, which is looked up again: float64, out and back.
  const Config& config = host.model.config();
  const int64_t values = host.batch.size() * config.hidden_size * (config.num_hidden_layers - 1);
  EXPECT_DOUBLE_EQ(host.work.host_bytes, 2.0 * 8.0 * static_cast<double>(values));
}

TEST(Work, CountsWeightsThatComeFromTheHost) {
  Config config = preset("qwen3-tiny");
  config.num_hidden_layers = 4;
  config.windows.assign(4, 0);
  for (const bool fused : {false, true}) {
    const auto counted = [&](const Settings& settings) {
      Model::Placement placement{at::kDouble, at::kCPU, at::kDouble};
      placement.defers_gradients = fused;
      const auto host = std::make_shared<HostWeights>(at::kCPU);
      placement.filled = [host](Parameter& parameter) { host->take(parameter); };
      Model model = Model::random(config, placement, 0);
      model.provide(host);
      double layer = 0.0;
      for (const Parameter* parameter : model.layer_parameters(0))
        layer += static_cast<double>(parameter->value.nbytes());
      return Counted(settings, std::move(model)).work.host_bytes / layer - (fused ? 4.0 : 0.0);
    };
    EXPECT_DOUBLE_EQ(counted(by(Method::kStandard)), 4.0);
    EXPECT_DOUBLE_EQ(counted(by(Method::kCheckpoint)), 7.0);
    Settings settings = by(Method::kStreambp, 16);
    EXPECT_DOUBLE_EQ(counted(settings), 7.0);
    settings.every = 2;  // layer 0 makes layer 1's input again; of the last two layers both are kept
    EXPECT_DOUBLE_EQ(counted(settings), 8.0);
  }
}

}  // namespace
}  // namespace streambp::bench
