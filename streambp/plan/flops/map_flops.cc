#include "streambp/plan/flops/map_flops.h"

namespace streambp::plan {
namespace {

double elements(const at::Tensor& tensor) {
  return static_cast<double>(tensor.numel());
}

/// A row's way through the map, forward or back.
double of_one_pass(const Linear& map) {
  double parameters = elements(map.weight->value);
  if (map.adapter && map.adapter->enabled)
    parameters += elements(map.adapter->a->value) + elements(map.adapter->b->value);
  return 2.0 * parameters;
}

}  // namespace

void MapFlops::add(const Linear& map, double share) {
  const double weight = elements(map.weight->value);
  forward += share * 2.0 * weight;
  backward += share * 2.0 * weight * (map.weight->trainable() ? 2.0 : 1.0);
  if (map.trained_rows != nullptr && map.trained_rows->enabled)
    backward += share * 2.0 * elements(map.trained_rows->delta->value);
  if (map.pair.is_there()) {
    add(*map.pair.in, share);
    add(*map.pair.out, share);
    double more = 0.0;  // what the one is given, and the gradient that reaches the other, once more
    if (map.pair.out->trainable()) more += share * of_one_pass(*map.pair.in);
    if (map.pair.in->trainable()) more += share * of_one_pass(*map.pair.out);
    backward += more;
    again += more;
  }
  if (!map.adapter || !map.adapter->enabled) return;
  const LowRankAdapter& adapter = *map.adapter;
  const double of_a = share * 2.0 * elements(adapter.a->value),
               of_b = share * 2.0 * elements(adapter.b->value);
  forward += of_a + of_b;
  backward += of_a + of_b;
  if (adapter.a->trainable()) {
    backward += of_a + of_b;
    again += of_b;
  }
  if (adapter.b->trainable()) {
    backward += of_a + of_b;
    again += of_a;
  }
}

void MapFlops::add(const StreamGates& gates) {
  if (!gates.are_there()) return;
  double product = 2.0 * elements(gates.fn->value), mixing = 0.0;
  if (gates.mix.are_mixed()) {
    product += 2.0 * elements(gates.mix.fn->value);
    // A matrix [S, S] by S streams of D numbers is as many operations as S rows of its map by S D.
    mixing = 2.0 * elements(gates.mix.fn->value) / static_cast<double>(gates.streams());
  }
  forward += product + mixing;
  // The backward pass makes the gates again, and mixes the gradient alone.
  backward += product * (gates.fn->trainable() ? 3.0 : 2.0) + 2.0 * mixing;
  again += product;
}

void MapFlops::add_reading(const StreamMixer& mixer) {
  if (!mixer.is_there()) return;
  add(*mixer.down);
  add(*mixer.up);
}

double mlp_width(const Config& config, int64_t layer) {
  const MixtureSettings& mixture = config.mixture;
  int64_t width = 0;
  if (config.is_sparse(layer))
    width =
        mixture.num_experts_per_tok * mixture.moe_intermediate_size + mixture.shared_expert_intermediate_size;
  if (!config.has_mlp(layer)) return 0.0;
  if (!config.is_sparse(layer) || mixture.next_to_mlp) width += config.intermediate_size_of(layer);
  return static_cast<double>(width);
}

void add_block(const SharedBlock& block, MapFlops& maps) {
  maps.add(*block.o_proj);
  for (const Linear* map : block.mlp.input_maps()) maps.add(*map);
  maps.add(*block.mlp.down_proj);
  maps.add(*block.linear);
}

void add_mlp(const DecoderLayer::Weights& weights, MapFlops& mlp, MapFlops& down) {
  const auto add = [&](const GatedMlp& one, double share) {
    for (const Linear* map : one.input_maps()) mlp.add(*map, share);
    down.add(*one.down_proj, share);
  };
  if (weights.mlp.down_proj != nullptr) add(weights.mlp, 1.0);
  const PerLayerInput& input = weights.per_layer;
  if (input.is_there()) {
    // As often as the last product of the MLP: they follow it, and nothing of them is kept.
    for (const Linear* map : {input.model_projection, input.gate, input.projection}) down.add(*map);
  }
  const Mixture& mixture = weights.mixture;
  if (mixture.router == nullptr) return;
  mlp.add(*mixture.router);
  if (weights.into_experts != nullptr) {
    mlp.add(*weights.into_experts);
    down.add(*weights.out_of_experts);
  }
  // Experts are of one size: whichever a token chooses, it costs as much.
  const double share =
      static_cast<double>(mixture.experts_per_token) / static_cast<double>(mixture.experts.size());
  for (const GatedMlp& expert : mixture.experts) add(expert, share);
  if (mixture.shared_expert_gate != nullptr) mlp.add(*mixture.shared_expert_gate);
  if (mixture.has_shared_expert()) add(mixture.shared_expert, 1.0);
}

}  // namespace streambp::plan
