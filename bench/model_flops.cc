#include "bench/model_flops.h"

namespace streambp {

double model_flops(const Config& config, const std::vector<int64_t>& lengths) {
  const auto hidden = static_cast<double>(config.hidden_size);
  const auto layers = static_cast<double>(config.num_hidden_layers);
  const auto query_width = static_cast<double>(config.num_attention_heads * config.head_dim);
  const auto key_width = static_cast<double>(config.num_key_value_heads * config.head_dim);
  const double attention_weights = hidden * (2.0 * query_width + 2.0 * key_width);
  const double mlp_weights = 3.0 * hidden * static_cast<double>(config.intermediate_size);
  const double weights =
      layers * (attention_weights + mlp_weights) + hidden * static_cast<double>(config.vocab_size);
  double tokens = 0.0;
  double pairs = 0.0;
  for (const int64_t length : lengths) {
    const auto t = static_cast<double>(length);
    tokens += t;
    pairs += t * (t + 1.0) / 2.0;
  }
  return 6.0 * weights * tokens + layers * 12.0 * query_width * pairs;
}

}  // namespace streambp
