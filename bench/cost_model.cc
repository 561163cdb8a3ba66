#include "bench/cost_model.h"

#include <algorithm>
#include <cmath>

#include "bench/model_flops.h"

namespace streambp {
namespace {

constexpr double kThinRows = 32.0;
constexpr double kOperationsPerByte = 2000.0;

/// What of `layers` layers a streamed pass computes again, and what goes to the host and back, for one token.
struct Keeping {
  double forward_again = 0.0;    // layers' forward passes, one for each layer at least
  double attention_again = 0.0;  // the same of their attention alone
  double stored = 0.0;           // values of hidden_size that are kept: layer inputs, attention outputs
};

Keeping keeping(const Settings& settings, double layers) {
  const double every = static_cast<double>(settings.every);
  const double groups = std::ceil(layers / every);
  // The last group's inputs are all kept; of every other group all but the first are computed again.
  const double rebuilt = (groups - 1.0) * (every - 1.0);
  Keeping keeping;
  keeping.forward_again = layers + rebuilt;
  keeping.attention_again = settings.keep_attention ? 0.0 : layers + rebuilt;
  keeping.stored = layers - 1.0 + (settings.keep_attention ? layers : 0.0);
  return keeping;
}

/// How often key and value projections, forward, are paid for a token beyond once.
double projections_again(const Settings& settings, const std::vector<int64_t>& lengths, double chunk) {
  if (settings.method != Method::kStreambp) return 0.0;
  if (settings.order == Order::kReverse) return 1.0;
  // Forward and backward for every token before a chunk, in its own sequence.
  double earlier = 0.0, tokens = 0.0;
  for (const int64_t length : lengths) {
    const auto rows = static_cast<double>(length);
    earlier += 0.5 * rows * std::max(0.0, rows / chunk - 1.0);
    tokens += rows;
  }
  return 3.0 * earlier / tokens;
}

}  // namespace

double relative_cost(const Bench& bench, const Cell& cell) {
  const Config& config = bench.config;
  const Batch batch = cell_batch(bench, cell);
  std::vector<int64_t> lengths;
  for (size_t i = 0; i + 1 < batch.offsets.size(); ++i)
    lengths.push_back(batch.offsets[i + 1] - batch.offsets[i]);
  const auto tokens = static_cast<double>(batch.size());
  const auto hidden = static_cast<double>(config.hidden_size);
  const double all = model_flops(config, lengths);
  const double head_forward = 2.0 * tokens * hidden * static_cast<double>(config.vocab_size);
  const double layers_forward = all / 3.0 - head_forward;
  const auto layers = static_cast<double>(config.num_hidden_layers);
  double recomputed = 0.0;
  double bytes = 0.0;
  if (cell.settings.method != Method::kStandard && cell.settings.method != Method::kStreambp)
    recomputed += layers_forward;
  if (cell.settings.method == Method::kStreambp) {
    const double attention_forward = attention_flops(config, lengths) / 3.0;
    const Keeping kept = keeping(cell.settings, layers);
    recomputed += (layers_forward - attention_forward) * kept.forward_again / layers +
                  attention_forward * kept.attention_again / layers;
    if (cell.settings.offload == Offload::kHost) {
      const auto element = static_cast<double>(c10::elementSize(bench.options.dtype));
      bytes = 2.0 * kept.stored * tokens * hidden * element;
    }
  }
  if (cell.settings.streams_head()) {
    const auto objective =
        make_objective(cell.objective, batch, options_of(cell.objective, bench.options.objective_options));
    if (!objective->separable()) recomputed += head_forward;
  }
  double slower = 1.0;
  if (is_chunked(cell.settings.method)) {
    const auto chunk = static_cast<double>(
        cell.settings.chunk > 0 ? cell.settings.chunk : auto_chunk(batch.size(), cell.settings.method));
    recomputed +=
        projections_again(cell.settings, lengths, chunk) * 4.0 * tokens * hidden *
        static_cast<double>(config.num_hidden_layers * config.num_key_value_heads * config.head_dim);
    slower += kThinRows / chunk;
  }
  return (all + recomputed + kOperationsPerByte * bytes) / all * slower;
}

}  // namespace streambp
