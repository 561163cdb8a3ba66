#include "streambp/plan/flops/hardware_flops.h"

#include <algorithm>
#include <cmath>

#include "streambp/model/scored.h"
#include "streambp/plan/flops/delta_rule_flops.h"
#include "streambp/plan/flops/map_flops.h"
#include "streambp/plan/flops/model_flops.h"

namespace streambp::plan {
namespace {

/// Of the first `tokens` of the stream.
std::vector<int64_t> lengths_of_first(const std::vector<int64_t>& lengths, double tokens) {
  std::vector<int64_t> first;
  auto left = static_cast<int64_t>(std::llround(tokens));
  for (const int64_t length : lengths) {
    first.push_back(std::min(length, left));
    left -= first.back();
  }
  return first;
}

/// One layer over one stream.
class LayerFlops {
 public:
  LayerFlops(const Config& config, const DecoderLayer& layer, int64_t index, double tokens,
             const std::vector<int64_t>& lengths)
      : tokens_(tokens), lengths_(lengths) {
    const DecoderLayer::Weights& weights = layer.weights();
    if (weights.recurrent_out != nullptr) output_.add(*weights.recurrent_out);
    if (config.is_recurrent(index) && config.has_mixer(index)) {
      const DeltaRule& rule = weights.delta_rule;
      rule_ = delta_rule_flops(rule.settings);
      std::vector<const Linear*> maps = rule.maps();
      for (const Linear* map : rule.second_maps()) maps.push_back(map);
      for (const Linear* map : maps) (rule.is_of_output_gate(map) ? queries_ : keys_values_).add(*map);
    }
    if (config.attends(index) && config.is_latent()) {
      const LatentAttention& latent = weights.latent;
      attention_ = 2.0 * static_cast<double>(latent.heads.heads * latent.heads.width()) *
                   visible_pairs(lengths, config.windows[static_cast<size_t>(index)]);
      for (const Linear* map : latent.query_maps()) queries_.add(*map);
      if (latent.gate_proj != nullptr) queries_.add(*latent.gate_proj);
      if (latent.kv_a_proj != nullptr) keys_values_.add(*latent.kv_a_proj);
      expansion_.add(*latent.kv_b_proj);
      indexer_ = indexer_flops(weights, lengths);
    } else if (weights.block.is_there()) {
      // All of it is run again for the state that a chunk leaves.
      block_attention_ = 2.0 * static_cast<double>(config.query_width(index));
      attention_ = block_attention_ * visible_pairs(lengths, /*window=*/0);
      for (const Linear* map : weights.projections()) keys_values_.add(*map);
      add_block(weights.block, keys_values_);
    } else if (config.attends(index) && config.is_compressed()) {
      const CompressedAttention& compressed = weights.compressed;
      double pairs = visible_pairs(lengths, config.compressed.window);
      if (config.has_blocks(index))
        pairs += block_pairs(lengths, config.compressed.rate_of(index), /*most=*/0);
      attention_ = 2.0 * static_cast<double>(config.query_width(index)) * pairs;
      for (const Linear* map : {compressed.q_a_proj, compressed.q_b_proj}) queries_.add(*map);
      for (const Linear* map : compressed.o_a_proj) queries_.add(*map);
      keys_values_.add(*compressed.kv_proj);
      if (compressed.compressor.is_there()) {
        keys_values_.add(*compressed.compressor.kv_proj);
        keys_values_.add(*compressed.compressor.gate_proj);
      }
      indexer_ = indexer_flops(weights, lengths);
    } else if (config.attends(index)) {
      attention_ = 2.0 * static_cast<double>(config.query_width(index)) *
                   visible_pairs(lengths, config.windows[static_cast<size_t>(index)]);
      const Linear* const gate = config.attention_output_gate ? weights.q_proj : weights.output_gate;
      gates_of_queries_ = config.attention_output_gate;
      for (const Linear* map : weights.projections())
        (map == gate ? gates_ : map == weights.q_proj ? queries_ : keys_values_).add(*map);
      indexer_ = indexer_flops(weights, lengths);
    }
    if (weights.o_proj != nullptr) output_.add(*weights.o_proj);
    add_mlp(weights, mlp_, down_);
    keys_values_.add(weights.into_attention);
    reading_.add_reading(weights.attention_streams);
    for (const Linear* map : {weights.ngrams.key_proj, weights.ngrams.value_proj}) {
      if (map != nullptr) keys_values_.add(*map);
    }
    down_.add_reading(weights.mlp_streams);
    for (const Linear* map : {weights.attention_streams.inject, weights.mlp_streams.inject}) {
      if (map != nullptr) down_.add(*map);
    }
    // As often as the layer: what they give is no norm's, and nothing of them is kept.
    for (const StreamGates* gates : {&weights.out_of_attention, &weights.into_mlp, &weights.out_of_mlp})
      down_.add(*gates);
  }

  double forward(const LayerRuns& runs) const {
    // Attention that is kept is kept before its gate.
    double gates = runs.projections > 0.0 || runs.output == 0.0 ? runs.projections : 1.0;
    if (gates_of_queries_) gates = std::max(gates + runs.queries, 0.0);
    return tokens_ * (std::max(runs.projections + runs.queries, 0.0) * queries_.forward +
                      gates * gates_.forward + (runs.projections + runs.keys_values) * keys_values_.forward +
                      (runs.projections + std::max(runs.keys_values, runs.keys_values_backward)) *
                          reading_.forward +
                      runs.output * output_.forward + runs.mlp * mlp_.forward + runs.down * down_.forward +
                      runs.attention * rule_.forward + runs.keys_values * rule_.state +
                      runs.attention * (1.0 + runs.prefixes) * expansion_.forward) +
           (runs.attention - (runs.keeps_scores ? 1.0 : 0.0)) * 2.0 * attention_ +
           2.0 * block_attention_ *
               visible_pairs(lengths_of_first(lengths_, runs.keys_values * tokens_), /*window=*/0);
  }

  /// Of the layer's first run alone, whose picks all others take.
  double indexer() const { return indexer_; }

  double backward(const LayerRuns& runs) const {
    return tokens_ * (queries_.backward + gates_.backward +
                      (1.0 + runs.keys_values_backward) * (keys_values_.backward + reading_.backward) +
                      output_.backward + mlp_.backward + down_.backward + rule_.backward +
                      (1.0 + runs.prefixes) * (expansion_.forward + expansion_.backward)) +
           5.0 * attention_;
  }

 private:
  double tokens_;
  double attention_ = 0.0;  // one product of scores, or with them; of picked rows those that a mask hides too
  double indexer_ = 0.0;
  double block_attention_ = 0.0;  // of a shared block, of a pair of tokens
  std::vector<int64_t> lengths_;
  DeltaRuleFlops rule_;            // of a recurrent layer
  bool gates_of_queries_ = false;  // q_proj makes both
  MapFlops queries_, gates_, keys_values_, output_, mlp_, down_;
  MapFlops reading_;    // of streams, for queries too where keys and values are kept
  MapFlops expansion_;  // of latents to keys and values: in every run of attention, and in its backward pass
};

double head_flops(const Model& model, const Objective& objective, const Settings& settings, double tokens,
                  double scored, const Model* teacher) {
  if (!objective.request().log_probabilities || !model.has_head()) return 0.0;
  const bool streamed = settings.streams_head();
  const double rows = streamed ? scored : tokens;
  const double runs = streamed && !objective.separable() ? 2.0 : 1.0;
  MapFlops head, theirs;
  head.add(model.head());
  head.add(model.head_gates());
  MapFlops reading;
  reading.add_reading(model.head_mixer());
  head.add_reading(model.head_mixer());
  if (teacher != nullptr) {
    theirs.add(teacher->head());
    theirs.add(teacher->head_gates());
    theirs.add_reading(teacher->head_mixer());
  }
  // The backward pass of a streamed head reads the streams again.
  return rows * (runs * (head.forward + theirs.forward) + head.backward + (streamed ? reading.forward : 0.0));
}

}  // namespace

double hardware_flops(const Model& model, const Batch& batch, const Objective& objective,
                      const Settings& given, const Model* teacher) {
  const int64_t scored = scored_indices(batch).size(0);
  if (scored == 0 && objective.request().pooling == Pooling::kNone) return 0.0;
  const std::vector<int64_t> lengths = sequence_lengths(batch.offsets);
  if (objective.request().divergence == Divergence::kNone) teacher = nullptr;
  const auto tokens = static_cast<double>(batch.size());
  Settings settings = given;
  const MethodKind& kind = method_kind(settings.method);
  settings.chunk = chunk_of(given, batch.size(), model.device());
  const auto layers = static_cast<int64_t>(model.layers().size());
  const int64_t first = std::max<int64_t>(model.lowest_trainable_layer(), 0);
  double flops = teacher == nullptr ? 0.0 : forward_flops(*teacher, batch);
  flops += head_flops(model, objective, settings, tokens, static_cast<double>(scored), teacher);
  const auto layer_of = [&](const Model& of, int64_t i) {
    return LayerFlops(of.config(), of.layers()[static_cast<size_t>(i)], i, tokens, lengths);
  };
  for (int64_t i = 0; i < layers; ++i) {
    const LayerFlops layer = layer_of(model, i);
    const bool joined = i + 1 == layers && joins_head(model, objective, settings);
    const LayerRuns runs = kind.layer_runs(settings, lengths, model.config(), i, joined);
    flops += layer.indexer();
    flops +=
        i < first ? layer.forward({.prefixes = runs.prefixes}) : layer.forward(runs) + layer.backward(runs);
    if (kind.rebuild_runs == nullptr) continue;
    if (auto rebuild = kind.rebuild_runs(settings, model.config(), i, first)) {
      rebuild->prefixes = runs.prefixes;
      flops += layer.forward(*rebuild);
    }
  }
  return flops;
}

double forward_flops(const Model& model, const Batch& batch) {
  const auto tokens = static_cast<double>(batch.size());
  const std::vector<int64_t> lengths = sequence_lengths(batch.offsets);
  Settings by_chunks;  // as streamed_hidden_states has it
  by_chunks.chunk = auto_chunk(batch.size(), model.device());
  const auto runs_of = method_kind(by_chunks.method).layer_runs;
  double flops = 0.0;
  for (size_t i = 0; i < model.layers().size(); ++i) {
    const auto layer = static_cast<int64_t>(i);
    const double prefixes = runs_of(by_chunks, lengths, model.config(), layer, /*joined=*/false).prefixes;
    const LayerFlops of_layer(model.config(), model.layers()[i], layer, tokens, lengths);
    flops += of_layer.indexer() + of_layer.forward({.prefixes = prefixes});
  }
  return flops;
}

}  // namespace streambp::plan
