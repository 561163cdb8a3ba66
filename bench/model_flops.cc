#include "bench/model_flops.h"

#include <algorithm>

namespace streambp {

std::vector<int64_t> sequence_lengths(const std::vector<int64_t>& offsets) {
  std::vector<int64_t> lengths;
  for (size_t i = 0; i + 1 < offsets.size(); ++i) lengths.push_back(offsets[i + 1] - offsets[i]);
  return lengths;
}

double visible_pairs(const std::vector<int64_t>& lengths, int64_t window) {
  double pairs = 0.0;
  for (const int64_t length : lengths) {
    const auto t = static_cast<double>(length);
    const double w = window > 0 ? std::min(t, static_cast<double>(window)) : t;
    pairs += w * (w + 1.0) / 2.0 + (t - w) * w;
  }
  return pairs;
}

namespace {

/// Weights of a layer's MLP, or of the router and the chosen experts.
double mlp_weights(const Config& config, int64_t layer) {
  const auto hidden = static_cast<double>(config.hidden_size);
  if (!config.is_sparse(layer)) return 3.0 * hidden * static_cast<double>(config.intermediate_size);
  const MixtureSettings& mixture = config.mixture;
  return hidden * static_cast<double>(mixture.num_experts +
                                      3 * mixture.num_experts_per_tok * mixture.moe_intermediate_size);
}

}  // namespace

double model_flops(const Config& config, const std::vector<int64_t>& lengths) {
  const auto hidden = static_cast<double>(config.hidden_size);
  const auto query_width = static_cast<double>(config.num_attention_heads * config.head_dim);
  const auto key_width = static_cast<double>(config.num_key_value_heads * config.head_dim);
  double weights = hidden * static_cast<double>(config.vocab_size);
  for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    weights += hidden * (2.0 * query_width + 2.0 * key_width) + mlp_weights(config, layer);
  }
  double tokens = 0.0;
  for (const int64_t length : lengths) tokens += static_cast<double>(length);
  return 6.0 * weights * tokens + attention_flops(config, lengths);
}

double attention_flops(const Config& config, const std::vector<int64_t>& lengths) {
  double pairs = 0.0;
  for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer)
    pairs += visible_pairs(lengths, config.windows[static_cast<size_t>(layer)]);
  return 12.0 * static_cast<double>(config.num_attention_heads * config.head_dim) * pairs;
}

}  // namespace streambp
