#include "streambp/model/latent_layer.h"

#include <algorithm>

namespace streambp {
namespace {

/// The rotated entries of heads [n, heads, rope], a slice of a wider product.
at::Tensor rotate(const LatentAttention& layer, const at::Tensor& x, const RopeTable& table,
                  const ModelOps& ops) {
  // Nobody else reads what split_pairs makes, nor a copy.
  return ops.normed_rope(layer.interleaved ? split_pairs(x, layer.heads.rope) : x.contiguous(), nullptr,
                         table);
}

/// [n, H, nope + rope] of what the first of query_maps() gives.
at::Tensor queries(const LatentAttention& layer, at::Tensor projected, const RopeTable& table,
                   const ModelOps& ops) {
  if (layer.q_a_proj != nullptr)
    projected = linear(ops.rms_norm(projected, layer.q_a_norm), {layer.q_proj}).front();
  const LatentHeads& heads = layer.heads;
  const auto parts =
      projected.view({-1, heads.heads, heads.key()}).split_with_sizes({heads.nope, heads.rope}, /*dim=*/2);
  return at::cat({parts[0], rotate(layer, parts[1], table, ops)}, /*dim=*/2);
}

/// Of kv_a_proj's output [n, kv_lora_rank + rope].
LatentRows rows_of(const LatentAttention& layer, const at::Tensor& projected, const RopeTable& table,
                   const ModelOps& ops) {
  const int64_t rope = layer.heads.rope;
  const auto parts = projected.split_with_sizes({projected.size(1) - rope, rope}, /*dim=*/1);
  return {ops.rms_norm(parts[0], layer.kv_a_norm).unsqueeze(1),
          rotate(layer, parts[1].unsqueeze(1), table, ops)};
}

}  // namespace

std::vector<const Linear*> LatentAttention::query_maps() const {
  return q_a_proj != nullptr ? std::vector{q_a_proj, q_proj} : std::vector{q_proj};
}

bool LatentAttention::trainable() const {
  if (kv_b_proj == nullptr) return false;
  std::vector<const Linear*> maps = query_maps();
  maps.insert(maps.end(), {kv_a_proj, kv_b_proj});
  const auto is_trained = [](const RmsNorm& norm) {
    return norm.weight != nullptr && norm.weight->trainable();
  };
  return is_trained(q_a_norm) || is_trained(kv_a_norm) ||
         std::any_of(maps.begin(), maps.end(), [](const Linear* map) { return map->trainable(); });
}

LatentRows latent_rows(const LatentAttention& layer, const at::Tensor& x, const RopeTable& table,
                       const ModelOps& ops) {
  return rows_of(layer, linear(x, {layer.kv_a_proj}).front(), table, ops);
}

at::Tensor latent_forward(const LatentAttention& layer, const at::Tensor& x, const RopeTable& table,
                          const std::vector<int64_t>& offsets, const Prefix& prefix,
                          const AttentionSettings& settings, const ModelOps& ops, LatentRows& own) {
  const auto first = linear(x, {layer.query_maps().front(), layer.kv_a_proj});
  own = rows_of(layer, first[1], table, ops);
  return latent_attention(queries(layer, first[0], table, ops), own.latents, own.rotated, offsets, prefix,
                          settings, layer.heads);
}

}  // namespace streambp
