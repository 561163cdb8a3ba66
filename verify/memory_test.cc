// What a pass takes beyond weights and gradients. The dry run (the same code on the meta device) is held
// against the CPU's own allocator here, so that the larger figures may be asked of the dry run alone.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "streambp/backprop/method.h"
#include "streambp/memory/meter.h"

namespace streambp {
namespace {

/// Peak bytes beyond what was alive before the pass.
int64_t peak_beyond_resident(const Config& config, c10::Device device, const std::vector<int64_t>& lengths,
                             const Settings& settings) {
  install_meters();
  Model model = Model::random(config, {at::kFloat, device, at::kFloat, {}}, 1);
  const Batch batch = random_batch(lengths, config.vocab_size, 2);
  const auto objective = make_sft(batch);
  const int64_t resident = read_meter(device).live_bytes;
  reset_peak(device);
  backpropagate(model, batch, *objective, settings);
  EXPECT_EQ(read_meter(device).live_bytes, resident) << "the pass left something behind";
  return read_meter(device).peak_bytes - resident;
}

Settings streambp_settings(int64_t chunk) {
  Settings settings;
  settings.chunk = chunk;
  return settings;
}

int64_t dry_run(int64_t tokens, int64_t chunk) {
  return peak_beyond_resident(preset("qwen3-cpu"), at::kMeta, {tokens}, streambp_settings(chunk));
}

TEST(Memory, StreambpAt8192StaysBelowAFifthOfAGigabyte) {
  for (const int64_t chunk : {256, 512, 1024}) {
    const int64_t bytes = dry_run(8192, chunk);
    fmt::print("chunk {}: {:.3f} GB\n", chunk, static_cast<double>(bytes) / 1e9);
    EXPECT_LE(bytes, 190'000'000) << "chunk " << chunk;
  }
}

TEST(Memory, StreambpGrowsWithTheStreamsItKeeps) {
  const Config config = preset("qwen3-cpu");
  const int64_t growth = dry_run(16384, 512) - dry_run(8192, 512);
  // Layer inputs, one gradient stream; one layer's keys, values and their gradients.
  const int64_t per_token = 4 * ((config.num_hidden_layers + 1) * config.hidden_size +
                                 4 * config.num_key_value_heads * config.head_dim);
  const double ratio = static_cast<double>(growth) / static_cast<double>(8192 * per_token);
  fmt::print("growth {:.3f} x the bytes of the kept streams\n", ratio);
  EXPECT_TRUE(ratio <= 1.1) << ratio;
}

TEST(Memory, TheDryRunTakesWhatTheCpuTakes) {
  Config config = preset("qwen3-cpu");
  config.num_hidden_layers = 2;
  config.vocab_size = 4000;
  for (const Method method : {Method::kStandard, Method::kCheckpoint, Method::kStreambp}) {
    Settings settings = streambp_settings(256);
    settings.method = method;
    const auto predicted = static_cast<double>(peak_beyond_resident(config, at::kMeta, {900, 124}, settings));
    const auto measured = static_cast<double>(peak_beyond_resident(config, at::kCPU, {900, 124}, settings));
    fmt::print("{}: predicted {:.3f} MB, measured {:.3f} MB\n", method_name(method), predicted / 1e6,
               measured / 1e6);
    EXPECT_NEAR(predicted / measured, 1.0, 0.02) << method_name(method);
  }
}

TEST(Memory, MethodsAreOrdered) {
  const auto of = [](Method method) {
    Settings settings = streambp_settings(512);
    settings.method = method;
    return peak_beyond_resident(preset("qwen3-cpu"), at::kMeta, {4096}, settings);
  };
  EXPECT_LT(of(Method::kCheckpoint), of(Method::kStandard));
  EXPECT_LT(10 * of(Method::kStreambp), of(Method::kCheckpoint));
}

}  // namespace
}  // namespace streambp
