// What is kept of a layer is freed with its backward pass, and what frozen layers need is not kept at all.
#include <fmt/format.h>
#include <functional>

#include "streambp/optimizer/gradient_consumer.h"
#include "verify/tests/streambp/memory/memory_testing.h"

namespace streambp {
namespace {

constexpr int64_t kTokens = 512;
constexpr int64_t kChunk = 256;  // of chunk-major, whose peak is then in the backward pass
constexpr int64_t kLayers = 6;

Config six_layers() {
  Config config = preset("qwen3-cpu");
  config.num_hidden_layers = kLayers;
  config.windows.assign(kLayers, 0);
  config.vocab_size = 500;
  return config;
}

/// Notes what is alive whenever a layer's gradients are final.
class LiveBytes final : public GradientConsumer {
 public:
  bool frees() const override { return false; }
  void use(const std::vector<Parameter*>& parameters) override {
    if (parameters.empty()) return;
    const std::string prefix = "model.layers.", &name = parameters.front()->name;
    if (name.starts_with(prefix))
      at_layer[std::stoll(name.substr(prefix.size()))] = read_meter(at::kMeta).live_bytes;
  }

  std::map<int64_t, int64_t> at_layer;
};

std::map<int64_t, int64_t> live_bytes(Settings settings, const Config& config = six_layers()) {
  install_meters();
  Model model = Model::random(config, {at::kFloat, at::kMeta, at::kFloat, {}}, 1);
  const Batch batch = random_batch({kTokens}, config.vocab_size, 2);
  LiveBytes live;
  settings.consumer = &live;
  backpropagate(model, batch, *make_objective("sft", batch), settings);
  return live.at_layer;
}

TEST(Freed, WithEachLayerGoesWhatWasKeptOfIt) {
  const Config config = six_layers();
  struct Kept {
    Method method;
    std::string keep;
    int64_t width;  // of a token, in addition to the input
  };
  const int64_t attention = config.attention_width(0) + config.num_attention_heads;
  for (const Kept& kept : {Kept{Method::kCheckpoint, "none", 0}, Kept{Method::kLogitsOnly, "none", 0},
                           Kept{Method::kTiled, "none", 0}, Kept{Method::kStreambp, "none", 0},
                           Kept{Method::kStreambp, "attention", attention},
                           Kept{Method::kStreambp, "queries", config.query_width(0)},
                           Kept{Method::kStreambp, "keys-values", config.carry_width(0)},
                           Kept{Method::kStreambp, "attention-half", config.hidden_size},
                           Kept{Method::kStreambp, "gate-up", 2 * config.intermediate_size}}) {
    Settings settings;
    settings.method = kept.method;
    settings.chunk = is_chunked(kept.method) ? 128 : 0;
    settings.keep = parse_kept_layers(kept.keep);
    const std::map<int64_t, int64_t> live = live_bytes(settings);
    ASSERT_EQ(live.size(), static_cast<size_t>(kLayers)) << method_name(kept.method);
    // The lowest layer's input may be looked up again, the highest may go through the head.
    for (int64_t layer = kLayers - 2; layer > 1; --layer) {
      EXPECT_EQ(live.at(layer) - live.at(layer - 1), 4 * kTokens * (config.hidden_size + kept.width))
          << configuration_text(settings) << ", layer " << layer;
    }
  }
}

/// The upper three of six layers read keys and values of layers 1 and 2.
TEST(Freed, WithAProducersLayerGoWhatOthersReadOfIt) {
  const Config config = preset("gemma4-cpu");
  ASSERT_EQ(config.num_hidden_layers, kLayers);
  ASSERT_EQ(config.producer_of(3), 1);
  ASSERT_EQ(config.producer_of(5), 2);
  const std::map<int64_t, int64_t> live = live_bytes(streambp_settings(128), config);
  for (const int64_t layer : {4, 3, 2, 1}) {
    // Keys and values, and their gradients.
    const int64_t shared = config.has_consumers(layer) ? 2 * config.carry_width(layer) : 0;
    EXPECT_EQ(live.at(layer) - live.at(layer - 1), 4 * kTokens * (config.hidden_size + shared)) << layer;
  }
}

/// Bytes at the peak of a pass of chunk-major whose layers below `first` are frozen, by scope.
std::map<std::string, int64_t> at_peak_of_chunk_major(int64_t first) {
  install_meters();
  const Config config = six_layers();
  Model model = Model::random(config,
                              {at::kFloat, at::kMeta, at::kFloat,
                               [=](const std::string& name) {
                                 for (int64_t layer = first; layer < kLayers; ++layer) {
                                   if (name.starts_with(fmt::format("model.layers.{}.", layer))) return true;
                                 }
                                 return false;
                               }},
                              1);
  const Batch batch = random_batch({kTokens}, config.vocab_size, 2);
  Settings settings;
  settings.method = Method::kChunkMajor;
  settings.chunk = kChunk;
  reset_peak(at::kMeta);
  backpropagate(model, batch, *make_objective("sft", batch), settings);
  return read_meter(at::kMeta).at_peak;
}

TEST(Freed, KeysAndValuesOfFrozenLayersGoWithTheForwardPass) {
  // Of all chunks but the last, which nobody looks back at.
  const int64_t of_a_layer = 4 * (kTokens - kChunk) * six_layers().carry_width(0);
  for (const int64_t first : {0, 2, 5}) {
    const auto at_peak = at_peak_of_chunk_major(first);
    EXPECT_EQ(at_peak.at("keys and values"), (kLayers - first) * of_a_layer) << first;
    EXPECT_EQ(at_peak.at("key and value gradients"), (kLayers - first) * of_a_layer) << first;
  }
}

}  // namespace
}  // namespace streambp
