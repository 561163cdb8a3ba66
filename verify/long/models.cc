#include "verify/long/models.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "streambp/memory/meter.h"

namespace streambp::verify {
namespace {

/// The log-probabilities at all indices with a target.
template <typename Scalar>
std::vector<Scalar> written_values(const Config& config, const Weights<Scalar>& weights, const Batch& batch) {
  const WrittenDecoder<Scalar> decoder(config, weights, batch);
  const int64_t* const targets = batch.targets.const_data_ptr<int64_t>();
  std::vector<Scalar> values;
  for (int64_t index = 0; index < batch.size(); ++index) {
    if (targets[index] != kNoTarget) values.push_back(decoder.log_probability(index, targets[index]));
  }
  return values;
}

}  // namespace

Config thin_config(const ThinShape& shape) {
  nlohmann::json json{{"model_type", "qwen3"},
                      {"vocab_size", shape.vocabulary},
                      {"hidden_size", shape.hidden},
                      {"intermediate_size", 3 * shape.hidden / 2},
                      {"num_hidden_layers", shape.layers},
                      {"num_attention_heads", shape.heads},
                      {"num_key_value_heads", 1},
                      {"head_dim", 8},
                      {"hidden_act", "silu"},
                      {"max_position_embeddings", 1 << 20},
                      {"rms_norm_eps", 1e-6},
                      {"rope_theta", 1e6},
                      {"tie_word_embeddings", shape.tied},
                      {"torch_dtype", "float64"}};
  if (shape.window > 0) {
    json["model_type"] = "mistral";
    json["sliding_window"] = shape.window;
  }
  Config config = parse_config(json.dump(), "a thin model");
  config.attention_sinks = shape.sinks;
  if (shape.shared) config.gemma4.num_kv_shared_layers = shape.layers - 1;
  if (shape.recurrent) {
    config.linear_attention.assign(static_cast<size_t>(shape.layers), true);
    config.delta_rule = {.key_heads = 1,
                         .value_heads = 2,
                         .key_head_dim = 4,
                         .value_head_dim = 3,
                         .conv_kernel = 4,
                         .fused_projections = false};
  }
  return config;
}

Model thin_model(const Config& config, uint64_t seed) {
  Model model = Model::random(config, {at::kDouble, at::kCPU, at::kDouble, {}}, seed);
  for (const auto& parameter : model.parameters()) {
    if (parameter->value.dim() == 2) parameter->value.mul_(20.0);
  }
  return model;
}

Weights<double> weights_of(const Model& model) {
  Weights<double> weights;
  for (const auto& parameter : model.parameters()) {
    const at::Tensor value = parameter->value.contiguous();
    const double* const data = value.const_data_ptr<double>();
    weights[parameter->name] = std::vector<double>(data, data + value.numel());
  }
  return weights;
}

double written_derivative(const Config& config, const Weights<double>& weights, const Batch& batch,
                          const std::string& name, int64_t index) {
  constexpr double kStep = 1e-40;
  Weights<std::complex<double>> moved;
  for (const auto& [of, values] : weights) {
    moved[of] = std::vector<std::complex<double>>(values.begin(), values.end());
  }
  moved[name][static_cast<size_t>(index)] += std::complex<double>(0.0, kStep);
  double sum = 0.0;
  const auto values = written_values(config, moved, batch);
  for (const std::complex<double>& value : values) sum -= value.imag() / kStep;
  return sum / static_cast<double>(values.size());
}

std::vector<double> written_log_probabilities(const Config& config, const Weights<double>& weights,
                                              const Batch& batch) {
  return written_values(config, weights, batch);
}

}  // namespace streambp::verify
