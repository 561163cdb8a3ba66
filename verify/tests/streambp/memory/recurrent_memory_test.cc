// What recurrent layers take: a state instead of keys and values.
#include <fmt/format.h>

#include "streambp/backprop/streamed/states.h"
#include "verify/tests/streambp/memory/memory_testing.h"

namespace streambp {
namespace {

/// Every layer with a delta rule.
Config recurrent_config() {
  Config config = preset("qwen3.5-cpu");
  config.num_hidden_layers = 2;
  config.vocab_size = 4000;
  config.windows.assign(2, 0);
  config.linear_attention.assign(2, true);
  config.mixture.sparse.assign(2, false);
  return config;
}

TEST(Memory, TheDryRunOfRecurrentLayersTakesWhatTheCpuTakes) {
  const Config config = recurrent_config();
  Settings settings = streambp_settings(128);
  for (const std::string& method : method_names()) {
    settings.method = parse_method(method);
    const auto predicted = static_cast<double>(sft_peak(config, at::kMeta, {450, 62}, settings));
    const auto measured = static_cast<double>(sft_peak(config, at::kCPU, {450, 62}, settings));
    fmt::print("{}: predicted {:.3f} MB, measured {:.3f} MB\n", method, predicted / 1e6, measured / 1e6);
    EXPECT_NEAR(predicted / measured, 1.0, 0.01) << method;
  }
}

TEST(Memory, ARecurrentLayerTakesOneStateAChunkAndNothingElseOfTheStream) {
  const Config config = recurrent_config();
  const DeltaRuleSettings& rule = config.delta_rule;
  constexpr int64_t kChunk = 1024;
  // Beyond layer inputs and the batch.
  const auto rest = [&](int64_t tokens) {
    std::map<std::string, int64_t> at_peak;
    const Measured one{config,
                       at::kMeta,
                       "sft",
                       {},
                       random_batch({tokens}, config.vocab_size, 2),
                       streambp_settings(kChunk)};
    const int64_t peak = one.peak_beyond_resident(&at_peak);
    return peak - at_peak["layer inputs"] - at_peak["batch"];
  };
  const int64_t state = 4 * (rule.values() * rule.key_head_dim + (rule.conv_kernel - 1) * rule.channels());
  const int64_t shorter = rest(4096), longer = rest(32768);
  fmt::print("4,096 tokens: {:.3f} MB, 32,768: {:.3f} MB\n", static_cast<double>(shorter) / 1e6,
             static_cast<double>(longer) / 1e6);
  // And what the head says of each token, a float64.
  EXPECT_LE(longer - shorter, (32768 - 4096) / kChunk * state + (32768 - 4096) * 8);
}

TEST(Memory, APassForwardHoldsOneState) {
  install_meters();
  const Config config = recurrent_config();
  const DeltaRuleSettings& rule = config.delta_rule;
  const Model model = Model::random(config, {at::kFloat, at::kMeta, at::kFloat, {}}, 1);
  const Stream stream = model.prepare(random_batch({100}, config.vocab_size, 2));
  const Chunks chunks(stream, 16, at::kMeta);
  ASSERT_EQ(chunks.count(), 7);
  const auto bytes = [&](CarryStream::Holds holds) {
    const int64_t before = read_meter(at::kMeta).live_bytes;
    const StateStream states(model, chunks, holds);
    return read_meter(at::kMeta).live_bytes - before;
  };
  const int64_t state = 4 * (rule.values() * rule.key_head_dim + (rule.conv_kernel - 1) * rule.channels());
  EXPECT_EQ(bytes(CarryStream::Holds::kForward), state);
  EXPECT_EQ(bytes(CarryStream::Holds::kBackward), 6 * state) << "nobody continues the last chunk's";
}

}  // namespace
}  // namespace streambp
