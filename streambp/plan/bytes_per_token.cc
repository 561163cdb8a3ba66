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

namespace {

/// Whether a layer attends to all earlier tokens.
bool sees_all(const Config& config, int64_t layer, int64_t seq_len) {
  const int64_t window = config.windows[static_cast<size_t>(layer)];
  return config.attends(layer) && (window == 0 || window >= seq_len);
}

}  // namespace

int64_t layers_without_window(const Config& config, int64_t seq_len) {
  int64_t layers = 0;
  for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer)
    layers += sees_all(config, layer, seq_len) ? 1 : 0;
  return layers;
}

AnalyticBytes analytic_bytes(const Config& config, at::ScalarType dtype, int64_t seq_len) {
  const auto element = static_cast<int64_t>(c10::elementSize(dtype));
  int64_t carries = 0, gradients = 0;  // numbers of a token
  int64_t picks = 0;                   // bytes
  for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    if (!config.attends(layer) || config.shares_keys_values(layer)) continue;
    carries += config.carry_width(layer);
    const PickKind kind = config.pick_kind();
    if (config.has_indexer(layer) && kind.seen(seq_len) > kind.topk)
      picks += static_cast<int64_t>(sizeof(int32_t)) * kind.width();
    if (sees_all(config, layer, seq_len)) gradients += config.carry_width(layer);
  }
  return {element * config.residual_width() * config.num_hidden_layers + picks,
          element * carries + std::max<int64_t>(element, 4) * gradients + picks};
}

}  // namespace streambp::plan
