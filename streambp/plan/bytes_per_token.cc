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
  int64_t layers = 0;
  for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    const int64_t window = config.windows[static_cast<size_t>(layer)];
    layers += !config.is_recurrent(layer) && (window == 0 || window >= seq_len) ? 1 : 0;
  }
  return layers;
}

AnalyticBytes analytic_bytes(const Config& config, at::ScalarType dtype, int64_t seq_len) {
  const auto element = static_cast<int64_t>(c10::elementSize(dtype));
  const int64_t both = config.carry_width();
  const int64_t recurrent = std::count(config.linear_attention.begin(), config.linear_attention.end(), true);
  return {element * config.hidden_size * config.num_hidden_layers,
          both * (element * (config.num_hidden_layers - recurrent) +
                  std::max<int64_t>(element, 4) * layers_without_window(config, seq_len))};
}

}  // namespace streambp::plan
