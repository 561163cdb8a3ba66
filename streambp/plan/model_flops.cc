#include "streambp/plan/model_flops.h"

#include <algorithm>

#include "streambp/plan/map_flops.h"

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
    for (const Linear* map : {weights.q_proj, weights.k_proj, weights.v_proj, weights.o_proj}) maps.add(*map);
    add_mlp(weights, maps, maps);
    const bool goes_back = static_cast<int64_t>(i) >= model.lowest_trainable_layer();
    add(maps, goes_back);
    flops += (goes_back ? 12.0 : 4.0) * static_cast<double>(config.num_attention_heads * config.head_dim) *
             visible_pairs(lengths, config.windows[i]);
  }
  if (!model.has_head()) return flops;
  MapFlops head;
  head.add(model.head());
  add(head, /*goes_back=*/true);
  return flops;
}

}  // namespace streambp::plan
