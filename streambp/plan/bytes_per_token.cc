#include "streambp/plan/bytes_per_token.h"

#include <algorithm>

#include "streambp/error.h"

namespace streambp::plan {

double BytesPerToken::intercept() const {
  return static_cast<double>(longer.peak_bytes) - device() * static_cast<double>(longer.tokens);
}

BytesPerToken bytes_per_token(Predictor& predictor, TrainingStep step, const Settings& settings,
                              int64_t shorter, int64_t longer) {
  if (shorter < 1 || longer <= shorter)
    throw InputError("lengths {} and {}: expected two, the longer one last", shorter, longer);
  BytesPerToken bytes;
  bytes.settings = settings;
  step.seq_len = shorter;
  bytes.shorter = predictor.predict(step, settings);
  step.seq_len = longer;
  bytes.longer = predictor.predict(step, settings);
  return bytes;
}

int64_t layers_without_window(const Config& config, int64_t seq_len) {
  return std::count_if(config.windows.begin(), config.windows.end(),
                       [&](int64_t window) { return window == 0 || window >= seq_len; });
}

AnalyticBytes analytic_bytes(const Config& config, at::ScalarType dtype, int64_t seq_len) {
  const auto element = static_cast<int64_t>(c10::elementSize(dtype));
  const int64_t both = 2 * config.num_key_value_heads * config.head_dim;
  return {element * config.hidden_size * config.num_hidden_layers,
          both * (element * config.num_hidden_layers +
                  std::max<int64_t>(element, 4) * layers_without_window(config, seq_len))};
}

}  // namespace streambp::plan
