// Bytes per token: the slope of the dry run's peak is what the two orders of streaming keep by design.
#include "streambp/plan/bytes_per_token.h"

#include <cmath>
#include <gtest/gtest.h>

#include "bench/records/bytes_report.h"

namespace streambp::plan {
namespace {

constexpr int64_t kLonger = 262144;

struct Subject {
  explicit Subject(const std::string& model) : config(preset(model)), predictor(setup_of(model), at::kMeta) {}

  static ModelSetup setup_of(const std::string& model) {
    ModelSetup setup;
    setup.model = model;
    setup.dtype = setup.gradient_dtype = at::kBFloat16;
    return setup;
  }

  BytesPerToken bytes(Method method, Offload offload = Offload::kNone, int64_t batch = 1) {
    Settings settings;
    settings.method = method;
    settings.offload = offload;
    TrainingStep step;
    step.sequences = batch;
    return bytes_per_token(predictor, step, settings, kLonger / 2, kLonger);
  }

  Config config;
  Predictor predictor;
};

/// What a pass has of a token outside its layers: ids, targets and positions, angles, log-probabilities.
constexpr double kBatchBytes = 1200.0;

TEST(BytesPerToken, AreLayerInputsOrKeysAndValues) {
  for (const char* name : {"qwen3-0.6b", "qwen2.5-7b", "llama-3.1-8b"}) {
    Subject subject(name);
    const Config& config = subject.config;
    const AnalyticBytes analytic = analytic_bytes(config, at::kBFloat16, kLonger);
    EXPECT_EQ(analytic.layer_inputs, 2 * config.hidden_size * config.num_hidden_layers);
    EXPECT_EQ(analytic.keys_values,
              12 * config.num_key_value_heads * config.head_dim * config.num_hidden_layers);
    const double one_layer = static_cast<double>(analytic.keys_values / config.num_hidden_layers);
    const double hidden = 2.0 * static_cast<double>(config.hidden_size);

    const double streambp = subject.bytes(Method::kStreambp).device();
    // The first layer's input is looked up again, and the gradient overwrites the last one's.
    const double by_design = static_cast<double>(analytic.layer_inputs) - hidden + one_layer;
    std::printf("%s: streambp %.0f of %.0f", name, streambp, by_design);
    EXPECT_GE(streambp, by_design);
    EXPECT_LE(streambp, by_design + kBatchBytes);

    const double chunk_major = subject.bytes(Method::kChunkMajor).device();
    const double other = static_cast<double>(analytic.keys_values) + hidden;
    std::printf(", chunk-major %.0f of %.0f\n", chunk_major, other);
    EXPECT_GE(chunk_major, other);
    EXPECT_LE(chunk_major, other + kBatchBytes);

    EXPECT_TRUE(std::abs(streambp / static_cast<double>(analytic.layer_inputs) - 1.0) <= 0.25) << name;
    EXPECT_TRUE(std::abs(chunk_major / static_cast<double>(analytic.keys_values) - 1.0) <= 0.05) << name;
  }
}

TEST(BytesPerToken, CrossOverWhereTheyShould) {
  const auto winners = [](const char* name) {
    Subject subject(name);
    const Config& config = subject.config;
    bench::ModelBytes model{.model = name,
                            .workload = "",
                            .config = config,
                            .layers_without_window = layers_without_window(config, kLonger),
                            .analytic = analytic_bytes(config, at::kBFloat16, kLonger),
                            .configurations = {}};
    EXPECT_EQ(measured_winner(model), "-");
    for (const Method method : {Method::kStreambp, Method::kChunkMajor}) {
      bench::CellBytes& one = model.configurations.emplace_back();
      one.cell.settings.method = method;
      one.bytes = subject.bytes(method);
    }
    const std::string table = bench::bytes_table({model});
    EXPECT_NE(table.find(measured_winner(model)), std::string::npos) << table;
    EXPECT_NE(bench::bytes_markdown({model}, kLonger / 2, kLonger).find(name), std::string::npos);
    return std::pair(predicted_winner(model), measured_winner(model));
  };
  EXPECT_EQ(winners("qwen3-0.6b"), std::pair(std::string("streambp"), std::string("streambp")));
  EXPECT_EQ(winners("qwen2.5-7b"), std::pair(std::string("chunk-major"), std::string("chunk-major")));
}

TEST(BytesPerToken, OfLayersWithAWindowAreKeysAndValuesWithoutGradients) {
  Subject subject("gemma-3-1b");
  const Config& config = subject.config;
  const int64_t full = layers_without_window(config, kLonger);
  EXPECT_TRUE(0 < full && full < config.num_hidden_layers);
  EXPECT_EQ(layers_without_window(preset("phi-4-mini"), kLonger), preset("phi-4-mini").num_hidden_layers)
      << "a window as long as the sequence is none";
  EXPECT_EQ(layers_without_window(preset("phi-4-mini"), 2 * kLonger), 0);
  const int64_t width = config.num_key_value_heads * config.head_dim;
  const AnalyticBytes analytic = analytic_bytes(config, at::kBFloat16, kLonger);
  EXPECT_EQ(analytic.keys_values, 4 * width * config.num_hidden_layers + 8 * width * full);
  const double by_design =
      static_cast<double>(analytic.keys_values) + 2.0 * static_cast<double>(config.hidden_size);
  const double slope = subject.bytes(Method::kChunkMajor).device();
  EXPECT_GE(slope, by_design);
  EXPECT_LE(slope, by_design + kBatchBytes);
}

TEST(BytesPerToken, OfABatchAndOfTheHost) {
  Subject subject("qwen3-0.6b");
  const BytesPerToken one = subject.bytes(Method::kStreambp);
  const BytesPerToken four = subject.bytes(Method::kStreambp, Offload::kNone, 4);
  EXPECT_TRUE(std::abs(four.device() / one.device() - 1.0) <= 0.01)
      << four.device() << " in a batch of 4, " << one.device() << " alone";
  EXPECT_EQ(one.host(), 0.0);
  const BytesPerToken host = subject.bytes(Method::kStreambp, Offload::kHost);
  EXPECT_LT(host.device(), 0.5 * one.device());
  EXPECT_TRUE(std::abs((host.host() + host.device()) / one.device() - 1.0) <= 0.25)
      << host.host() << " on the host, " << host.device() << " on the device";
  EXPECT_GT(one.intercept(), static_cast<double>(one.longer.resident_bytes));
  EXPECT_THROW(bytes_per_token(subject.predictor, {}, one.settings, 64, 64), std::runtime_error);
}

}  // namespace
}  // namespace streambp::plan
