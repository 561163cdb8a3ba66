#include "streambp/backprop/layer_runs.h"

#include <algorithm>
#include <numeric>

#include "streambp/backprop/method.h"

namespace streambp {
namespace {

/// The rows before a chunk that it looks at, summed over all chunks.
double rows_seen(const std::vector<int64_t>& lengths, int64_t chunk, int64_t window) {
  double rows = 0.0;
  int64_t begin = 0;  // of the sequence
  for (const int64_t length : lengths) {
    const int64_t end = begin + length;
    for (int64_t at = (begin + chunk - 1) / chunk * chunk; at < end; at += chunk) {
      const int64_t earlier = at - begin;
      rows += static_cast<double>(window > 0 ? std::min(earlier, window - 1) : earlier);
    }
    begin = end;
  }
  return rows;
}

/// LayerRuns::prefixes.
double prefixes_of(const Settings& settings, const std::vector<int64_t>& lengths, const Config& config,
                   int64_t layer) {
  if (!config.attends(layer) || settings.chunk == 0) return 0.0;
  const auto tokens = std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
  return rows_seen(lengths, settings.chunk, config.windows[static_cast<size_t>(layer)]) /
         static_cast<double>(tokens);
}

LayerRuns twice(bool skips_down) {
  return {.projections = 2.0,
          .attention = 2.0,
          .output = 2.0,
          .mlp = 2.0,
          .down = skips_down ? 1.0 : 2.0,
          .keys_values = 0.0,
          .keys_values_backward = 0.0,
          .prefixes = 0.0};
}

/// Whether a layer that runs again leaves out its last product.
bool skips_down(const Settings& settings, const Config& config, int64_t layer) {
  const bool in_order = settings.order == Order::kForward && !config.in_reverse_alone(layer);
  return !config.reads_outputs() && settings.is_fair() && !in_order;
}

}  // namespace

LayerRuns run_once(const Settings&, const std::vector<int64_t>&, const Config&, int64_t, bool) {
  return {};
}

LayerRuns run_again(const Settings& settings, const std::vector<int64_t>&, const Config& config,
                    int64_t layer, bool joined) {
  return joined ? LayerRuns{} : twice(skips_down(settings, config, layer));
}

LayerRuns run_again_by_chunks(const Settings& settings, const std::vector<int64_t>& lengths,
                              const Config& config, int64_t layer, bool joined) {
  LayerRuns runs = run_again(settings, lengths, config, layer, joined);
  const auto kept = [&](int64_t count) { return keeps_of(count, layer, config.num_hidden_layers); };
  const bool can_keep = config.can_store_attention(layer);
  runs.prefixes = prefixes_of(settings, lengths, config, layer);
  if (kept(settings.keep.attention) && can_keep) runs.attention = 1.0;
  if (kept(settings.keep.queries) && can_keep && !joined) runs.queries = -1.0;
  runs.keeps_scores = !joined && kept(settings.keep.attention) && config.is_recurrent(layer) &&
                      config.delta_rule.beside_attention;
  if (kept(settings.keep.attention_half)) runs.output = 1.0;
  if (kept(settings.keep.gate_up) && config.can_store_gate_up(layer)) runs.mlp = 1.0;
  const auto tokens = std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
  if (settings.order == Order::kForward && !config.in_reverse_alone(layer)) {
    runs.keys_values = runs.keys_values_backward = runs.prefixes;
    if (kept(settings.keep.keys_values) && !joined && can_keep) runs.keys_values = -1.0;
  } else {  // the last chunk's keys and values are in no prefix
    const int64_t before_last = (tokens - 1) / settings.chunk * settings.chunk;
    runs.keys_values = static_cast<double>(before_last) / static_cast<double>(tokens);
    // Not in the second of the two runs of all projections either.
    if (kept(settings.keep.keys_values) && !joined && can_keep) runs.keys_values = -1.0;
  }
  return runs;
}

std::optional<LayerRuns> rebuild_by_every(const Settings& settings, const Config& config, int64_t layer,
                                          int64_t first) {
  const int64_t layers = config.num_hidden_layers;
  if (layer < first || layer + 1 >= layers || keeps_input(layer + 1, first, layers, settings.every))
    return std::nullopt;
  const auto kept = [&](int64_t count) { return keeps_of(count, layer, layers); };
  const bool can_keep = config.can_store_attention(layer);
  LayerRuns runs;
  if (kept(settings.keep.queries) && can_keep) runs.queries = -1.0;
  if (kept(settings.keep.keys_values) && can_keep) runs.keys_values = -1.0;
  // Without attention, and without what only attention needs, but where n-grams stand before it.
  if ((kept(settings.keep.attention) && can_keep) ||
      (kept(settings.keep.attention_half) && !config.ngrams.are_in(layer)))
    runs.projections = runs.attention = runs.keys_values = 0.0;
  if (kept(settings.keep.attention_half)) runs.output = 0.0;
  if (kept(settings.keep.gate_up) && config.can_store_gate_up(layer)) runs.mlp = 0.0;
  return runs;
}

LayerRuns run_again_chunk_major(const Settings& settings, const std::vector<int64_t>& lengths,
                                const Config& config, int64_t layer, bool joined) {
  if (joined) return {};
  LayerRuns runs = twice(skips_down(settings, config, layer) && layer + 1 == config.num_hidden_layers);
  runs.prefixes = prefixes_of(settings, lengths, config, layer);
  return runs;
}

}  // namespace streambp
