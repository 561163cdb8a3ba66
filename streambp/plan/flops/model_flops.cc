#include "streambp/plan/flops/model_flops.h"

#include <algorithm>

#include "streambp/plan/flops/delta_rule_flops.h"
#include "streambp/plan/flops/map_flops.h"

namespace streambp::plan {

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

double block_pairs(const std::vector<int64_t>& lengths, int64_t rate, int64_t most) {
  double pairs = 0.0;
  for (const int64_t length : lengths) {
    const int64_t blocks = length / rate, seen = most > 0 ? std::min(most, blocks) : blocks;
    // Block b is seen by the length - (b + 1) rate + 1 rows from its last one on; of picked ones as many are
    // seen as of the first ones alone.
    const auto b = static_cast<double>(seen);
    pairs += b * static_cast<double>(length + 1) - static_cast<double>(rate) * b * (b + 1.0) / 2.0;
  }
  return pairs;
}

namespace {

std::vector<const Linear*> maps_before_attention(const DecoderLayer::Weights& weights) {
  if (weights.delta_rule.conv1d != nullptr) {
    std::vector<const Linear*> maps = weights.delta_rule.maps();
    for (const Linear* map : weights.delta_rule.second_maps()) maps.push_back(map);
    for (const Linear* map : weights.projections()) maps.push_back(map);  // of a layer that attends as well
    return maps;
  }
  if (weights.compressed.kv_proj != nullptr) {
    const CompressedAttention& layer = weights.compressed;
    std::vector<const Linear*> maps{layer.q_a_proj, layer.q_b_proj, layer.kv_proj};
    if (layer.compressor.is_there())
      maps.insert(maps.end(), {layer.compressor.kv_proj, layer.compressor.gate_proj});
    maps.insert(maps.end(), layer.o_a_proj.begin(), layer.o_a_proj.end());
    return maps;
  }
  if (weights.latent.kv_b_proj == nullptr) return weights.projections();  // none without a first half
  std::vector<const Linear*> maps = weights.latent.query_maps();
  for (const Linear* map : {weights.latent.kv_a_proj, weights.latent.kv_b_proj, weights.latent.gate_proj}) {
    if (map != nullptr) maps.push_back(map);
  }
  return maps;
}

}  // namespace

namespace {

/// Of an indexer with these maps that picks rows, or groups or blocks of `rate` rows.
double picking_flops(const MapFlops& maps, const IndexerSettings& settings, int64_t rate,
                     const std::vector<int64_t>& lengths) {
  const bool picks = std::any_of(lengths.begin(), lengths.end(),
                                 [&](int64_t length) { return length / rate > settings.topk; });
  if (!picks) return 0.0;
  double tokens = 0.0;
  for (const int64_t length : lengths) tokens += static_cast<double>(length);
  return tokens * maps.forward + 2.0 * static_cast<double>(settings.heads * (settings.head_dim + 1)) *
                                     block_pairs(lengths, rate, /*most=*/0);
}

/// Of an indexer of blocks.
double block_indexer_flops(const CompressedAttention& layer, const std::vector<int64_t>& lengths) {
  const BlockIndexer& indexer = layer.indexer;
  MapFlops maps;
  for (const Linear* map :
       {indexer.q_b_proj, indexer.weights_proj, indexer.compressor.kv_proj, indexer.compressor.gate_proj})
    maps.add(*map);
  return picking_flops(maps, layer.indexing, layer.compressor.pooling.rate, lengths);
}

/// Of an indexer beside ordinary attention.
double key_block_indexer_flops(const KeyBlockIndexer& indexer, const std::vector<int64_t>& lengths) {
  const IndexerSettings& settings = indexer.settings;
  MapFlops maps;
  for (const Linear* map : {indexer.q_proj, indexer.k_proj}) maps.add(*map);
  if (settings.of_means) return picking_flops(maps, settings, settings.group, lengths);
  const bool picks = std::any_of(lengths.begin(), lengths.end(),
                                 [&](int64_t length) { return length > settings.topk * settings.block; });
  if (!picks) return 0.0;
  double tokens = 0.0;
  for (const int64_t length : lengths) tokens += static_cast<double>(length);
  return tokens * maps.forward +
         2.0 * static_cast<double>(settings.heads * settings.head_dim) * visible_pairs(lengths, /*window=*/0);
}

/// Pairs of a row and one that it sees in the groups that are picked, or in its own that has not ended.
double group_pairs(const std::vector<int64_t>& lengths, const IndexerSettings& settings) {
  const auto size = static_cast<double>(settings.group);
  double pairs = size * block_pairs(lengths, settings.group, settings.topk);
  for (const int64_t length : lengths) {
    const auto whole = static_cast<double>(length / settings.group),
               rest = static_cast<double>(length % settings.group);
    pairs += whole * size * (size - 1.0) / 2.0 + rest * (rest + 1.0) / 2.0;
  }
  return pairs;
}

/// Pairs of a row and one that it sees in the blocks of keys that are picked for a head, its own among them.
double key_block_pairs(const std::vector<int64_t>& lengths, const IndexerSettings& settings) {
  const auto triangle = [](int64_t n) { return static_cast<double>(n) * static_cast<double>(n + 1) / 2.0; };
  const int64_t size = settings.block, most = settings.topk * size;
  double pairs = 0.0;
  for (const int64_t length : lengths) {
    const int64_t rest = std::max<int64_t>(length - most, 0);
    pairs += triangle(std::min(length, most)) + static_cast<double>(rest) * static_cast<double>(most - size) +
             static_cast<double>(rest / size) * triangle(size) + triangle(rest % size);
  }
  return pairs;
}

}  // namespace

double indexer_flops(const DecoderLayer::Weights& weights, const std::vector<int64_t>& lengths) {
  if (weights.indexer.is_there()) return key_block_indexer_flops(weights.indexer, lengths);
  if (weights.compressed.indexer.q_b_proj != nullptr) return block_indexer_flops(weights.compressed, lengths);
  const Indexer& indexer = weights.latent.indexer;
  if (indexer.wk == nullptr) return 0.0;
  MapFlops maps;
  for (const Linear* map : {indexer.wq_b, indexer.wk, indexer.weights_proj}) maps.add(*map);
  if (indexer.picks_groups()) maps.forward += 2.0 * static_cast<double>(indexer.group_gate->value.numel());
  return picking_flops(maps, weights.latent.indexing, weights.latent.indexing.rows_of_pick(), lengths);
}

double model_flops(const Model& model, const std::vector<int64_t>& lengths) {
  const Config& config = model.config();
  double tokens = 0.0;
  for (const int64_t length : lengths) tokens += static_cast<double>(length);
  double flops = 0.0;
  const auto add = [&](const MapFlops& maps, bool goes_back) {
    flops += tokens * (maps.forward + (goes_back ? maps.backward - maps.again : 0.0));
  };
  for (size_t i = 0; i < model.layers().size(); ++i) {
    const DecoderLayer::Weights& weights = model.layers()[i].weights();
    MapFlops maps;
    const bool recurrent = model.layers()[i].is_recurrent();
    for (const Linear* map : {weights.o_proj, weights.recurrent_out}) {
      if (map != nullptr) maps.add(*map);
    }
    for (const Linear* map : maps_before_attention(weights)) maps.add(*map);
    add_mlp(weights, maps, maps);
    if (weights.block.is_there()) add_block(weights.block, maps);
    for (const StreamGates* gates :
         {&weights.into_attention, &weights.out_of_attention, &weights.into_mlp, &weights.out_of_mlp})
      maps.add(*gates);
    for (const StreamMixer* mixer : {&weights.attention_streams, &weights.mlp_streams}) {
      maps.add_reading(*mixer);
      if (mixer->inject != nullptr) maps.add(*mixer->inject);
    }
    for (const Linear* map : {weights.ngrams.key_proj, weights.ngrams.value_proj}) {
      if (map != nullptr) maps.add(*map);
    }
    const bool goes_back = static_cast<int64_t>(i) >= model.lowest_trainable_layer();
    add(maps, goes_back);
    if (recurrent && weights.o_proj == nullptr) continue;
    if (recurrent)
      flops += (goes_back ? 3.0 : 1.0) * tokens * delta_rule_flops(weights.delta_rule.settings).recurrence;
    const auto layer = static_cast<int64_t>(i);
    if (!config.attends(layer)) continue;
    const int64_t both = config.is_compressed() ? 2 * config.query_width(layer)
                                                : config.query_width(layer) + config.attention_width(layer);
    // Of picked rows as many are seen as a window of that size shows.
    const bool of_rows = config.has_indexers() && !config.picks_key_blocks();
    const int64_t window = config.is_compressed() ? config.compressed.window
                           : of_rows              ? config.indexer.topk
                                                  : config.windows[i];
    double pairs = config.indexer.group > 0     ? group_pairs(lengths, config.indexer)
                   : weights.indexer.is_there() ? key_block_pairs(lengths, config.indexer)
                                                : visible_pairs(lengths, window);
    if (config.has_blocks(layer))
      pairs += block_pairs(lengths, config.compressed.rate_of(layer),
                           config.has_indexer(layer) ? config.indexer.topk : 0);
    flops += (goes_back ? 6.0 : 2.0) * static_cast<double>(both) * pairs + indexer_flops(weights, lengths);
  }
  if (!model.has_head()) return flops;
  MapFlops head;
  head.add(model.head());
  head.add(model.head_gates());
  head.add_reading(model.head_mixer());
  add(head, /*goes_back=*/true);
  return flops;
}

}  // namespace streambp::plan
