#include "streambp/plan/hardware_flops.h"

#include <algorithm>
#include <numeric>

#include "streambp/model/scored.h"
#include "streambp/plan/map_flops.h"
#include "streambp/plan/model_flops.h"

namespace streambp::plan {
namespace {

/// One layer over one stream.
class LayerFlops {
 public:
  LayerFlops(const Config& config, const DecoderLayer& layer, int64_t index, double tokens,
             const std::vector<int64_t>& lengths)
      : tokens_(tokens),
        attention_(2.0 * static_cast<double>(config.num_attention_heads * config.head_dim) *
                   visible_pairs(lengths, config.windows[static_cast<size_t>(index)])) {
    const DecoderLayer::Weights& weights = layer.weights();
    queries_.add(*weights.q_proj);
    for (const Linear* map : {weights.k_proj, weights.v_proj}) keys_values_.add(*map);
    output_.add(*weights.o_proj);
    add_mlp(weights, mlp_, down_);
  }

  double forward(const LayerRuns& runs) const {
    return tokens_ * (runs.projections * queries_.forward +
                      (runs.projections + runs.keys_values) * keys_values_.forward +
                      runs.output * output_.forward + runs.mlp * mlp_.forward + runs.down * down_.forward) +
           runs.attention * 2.0 * attention_;
  }

  double backward(const LayerRuns& runs) const {
    return tokens_ * (queries_.backward + (1.0 + runs.keys_values_backward) * keys_values_.backward +
                      output_.backward + mlp_.backward + down_.backward) +
           5.0 * attention_;
  }

 private:
  double tokens_;
  double attention_;  // one product of scores, or with them
  MapFlops queries_, keys_values_, output_, mlp_, down_;
};

double head_flops(const Model& model, const Objective& objective, const Settings& settings, double tokens,
                  double scored, const Model* teacher) {
  if (!objective.request().log_probabilities || !model.has_head()) return 0.0;
  const bool streamed = settings.streams_head();
  const double rows = streamed ? scored : tokens;
  const double runs = streamed && !objective.separable() ? 2.0 : 1.0;
  MapFlops head, theirs;
  head.add(model.head());
  if (teacher != nullptr) theirs.add(teacher->head());
  return rows * (runs * (head.forward + theirs.forward) + head.backward);
}

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

/// Whether a layer that runs again leaves out its last product (LayerRun::graph_only).
bool skips_down(const Settings& settings, const Config& config, int64_t layer) {
  if (config.sandwich_norms || settings.hugging_face || settings.order == Order::kForward) return false;
  return settings.method != Method::kChunkMajor || layer + 1 == config.num_hidden_layers;
}

}  // namespace

LayerRuns layer_runs(const Settings& settings, const std::vector<int64_t>& lengths, const Config& config,
                     int64_t layer, bool joined) {
  if (settings.method == Method::kStandard) return {};
  LayerRuns runs;
  if (!joined) {
    runs = {.projections = 2.0, .attention = 2.0, .output = 2.0, .mlp = 2.0};
    runs.down = skips_down(settings, config, layer) ? 1.0 : 2.0;
  }
  if (settings.method != Method::kStreambp) return runs;
  if (settings.keep_attention) runs.attention = 1.0;
  const auto tokens = static_cast<double>(std::accumulate(lengths.begin(), lengths.end(), int64_t{0}));
  if (settings.order == Order::kForward) {
    const int64_t window = config.windows[static_cast<size_t>(layer)];
    runs.keys_values = runs.keys_values_backward = rows_seen(lengths, settings.chunk, window) / tokens;
  } else {  // the last chunk's keys and values are nobody's prefix
    runs.keys_values =
        static_cast<double>((static_cast<int64_t>(tokens) - 1) / settings.chunk * settings.chunk) / tokens;
  }
  return runs;
}

double hardware_flops(const Model& model, const Batch& batch, const Objective& objective,
                      const Settings& given, const Model* teacher) {
  const int64_t scored = scored_indices(batch).size(0);
  if (scored == 0 && objective.request().pooling == Pooling::kNone) return 0.0;
  const std::vector<int64_t> lengths = sequence_lengths(batch.offsets);
  if (objective.request().divergence == Divergence::kNone) teacher = nullptr;
  const auto tokens = static_cast<double>(batch.size());
  Settings settings = given;
  settings.chunk = chunk_of(given, batch.size(), model.device());
  const auto layers = static_cast<int64_t>(model.layers().size());
  const int64_t first = std::max<int64_t>(model.lowest_trainable_layer(), 0);
  const LayerRuns once;
  // An input that was not kept is the output of the layer below, which runs again; without attention, and
  // without what only attention needs, where its output was kept.
  const LayerRuns again = settings.keep_attention ? LayerRuns{.projections = 0.0, .attention = 0.0} : once;
  double flops = teacher == nullptr ? 0.0 : forward_flops(*teacher, batch);
  flops += head_flops(model, objective, settings, tokens, static_cast<double>(scored), teacher);
  const auto layer_of = [&](const Model& of, int64_t i) {
    return LayerFlops(of.config(), of.layers()[static_cast<size_t>(i)], i, tokens, lengths);
  };
  for (int64_t i = 0; i < layers; ++i) {
    const LayerFlops layer = layer_of(model, i);
    const bool joined = i + 1 == layers && joins_head(model, objective, settings);
    const LayerRuns runs = layer_runs(settings, lengths, model.config(), i, joined);
    flops += i < first ? layer.forward(once) : layer.forward(runs) + layer.backward(runs);
    const bool runs_again =
        i >= first && i + 1 < layers && !keeps_input(i + 1, first, layers, settings.every);
    if (runs_again) flops += layer.forward(again);
  }
  return flops;
}

double forward_flops(const Model& model, const Batch& batch) {
  const auto tokens = static_cast<double>(batch.size());
  const std::vector<int64_t> lengths = sequence_lengths(batch.offsets);
  double flops = 0.0;
  for (size_t i = 0; i < model.layers().size(); ++i)
    flops +=
        LayerFlops(model.config(), model.layers()[i], static_cast<int64_t>(i), tokens, lengths).forward({});
  return flops;
}

}  // namespace streambp::plan
