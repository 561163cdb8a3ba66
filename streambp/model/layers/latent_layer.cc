#include "streambp/model/layers/latent_layer.h"

#include <algorithm>
#include <cmath>

#include "streambp/error.h"
#include "streambp/memory/meter.h"
#include "streambp/ops/attention/indexer.h"
#include "streambp/ops/mlp/gated_output.h"
#include "streambp/ops/norm_rope.h"
#include "streambp/ops/sum_dtype.h"

namespace streambp {
namespace {

/// The rotated entries of heads [n, heads, rope], a slice of a wider product.
at::Tensor rotate(const LatentAttention& layer, const at::Tensor& x, const RopeTable& table,
                  const ModelOps& ops) {
  if (!layer.rotates) return x.contiguous();
  // Nobody else reads what split_pairs makes, nor a copy.
  const at::Tensor y =
      ops.normed_rope(layer.interleaved ? split_pairs(x, layer.heads.rope) : x.contiguous(), nullptr, table);
  return layer.alpha == nullptr ? y : with_trained_frequencies(y, 0, table, *layer.alpha);
}

/// [n, H, nope + rope] of what the first of query_maps() gives, normed where it is the queries' latents.
at::Tensor queries(const LatentAttention& layer, at::Tensor projected, const LatentPositions& positions,
                   const ModelOps& ops) {
  if (layer.q_a_proj != nullptr) projected = linear(projected, {layer.q_proj}).front();
  const LatentHeads& heads = layer.heads;
  const auto parts =
      projected.view({-1, heads.heads, heads.key()}).split_with_sizes({heads.nope, heads.rope}, /*dim=*/2);
  at::Tensor q = at::cat({parts[0], rotate(layer, parts[1], positions.rope, ops)}, /*dim=*/2);
  if (positions.query_scales.defined())  // of the queries' type, as transformers has them
    q.mul_(positions.query_scales.to(q.scalar_type()).view({-1, 1, 1}));
  return layer.scales.are_there() ? scaled_queries(q, positions.logarithms, layer.scales) : q;
}

/// Of kv_a_proj's output [n, kv_lora_rank + rope].
LatentRows rows_of(const LatentAttention& layer, const at::Tensor& projected, const RopeTable& table,
                   const ModelOps& ops) {
  const int64_t rope = layer.heads.rope;
  const auto parts = projected.split_with_sizes({projected.size(1) - rope, rope}, /*dim=*/1);
  return {ops.rms_norm(parts[0], layer.kv_a_norm).unsqueeze(1),
          rotate(layer, parts[1].unsqueeze(1), table, ops)};
}

/// An indexer's heads [n, heads, E], rotated.
at::Tensor rotate_index(const LatentAttention& layer, const at::Tensor& x, const RopeTable& table) {
  if (!layer.rotates) return x;
  if (layer.indexing.rotates_last) {
    const auto parts = x.split_with_sizes({x.size(2) - layer.heads.rope, layer.heads.rope}, /*dim=*/2);
    return at::cat({parts[0], normed_rope(parts[1].contiguous(), nullptr, table)}, /*dim=*/2);
  }
  return normed_rope(layer.indexing.interleaved ? split_pairs(x, layer.heads.rope) : x, nullptr, table);
}

/// An indexer's norm of its keys, or of what its queries are of; at::layer_norm has no kernel for dry runs.
at::Tensor layer_norm(const Parameter& weight, const Parameter& bias, double eps, const at::Tensor& x) {
  const at::ScalarType wide = sum_dtype(x);
  const at::Tensor rows = x.to(wide), centered = rows - rows.mean(-1, /*keepdim=*/true);
  const at::Tensor normed = centered * (centered * centered).mean(-1, /*keepdim=*/true).add_(eps).rsqrt_();
  return (normed * weight.value.to(wide) + bias.value.to(wide)).to(x.scalar_type());
}

/// An indexer's queries [n, heads, E] of rows x [n, D] with the queries' latents, rotated.
at::Tensor index_queries(const LatentAttention& layer, const at::Tensor& x, const at::Tensor& latents,
                         const LatentPositions& positions) {
  const IndexerSettings& settings = layer.indexing;
  const Indexer& indexer = layer.indexer;
  const at::Tensor read =
      indexer.query_norm_weight == nullptr
          ? latents
          : layer_norm(*indexer.query_norm_weight, *indexer.query_norm_bias, settings.norm_eps, x);
  at::Tensor heads = linear_forward(*indexer.wq_b, read).view({x.size(0), settings.heads, -1});
  if (indexer.scales.are_there()) heads = scaled_queries_forward(heads, positions.logarithms, indexer.scales);
  return rotate_index(layer, heads, positions.rope);
}

/// What an indexer holds of rows x [n, D]: their keys, rotated, and with groups their gates beside them.
at::Tensor index_rows(const LatentAttention& layer, const at::Tensor& x, const LatentPositions& positions) {
  const Indexer& indexer = layer.indexer;
  const at::Tensor normed = layer_norm(*indexer.norm_weight, *indexer.norm_bias, layer.indexing.norm_eps,
                                       linear_forward(*indexer.wk, x));
  const at::Tensor keys = rotate_index(layer, normed.unsqueeze(1), positions.rope).squeeze(1);
  return indexer.picks_groups() ? at::cat({keys, at::mm(x, indexer.group_gate->value.t())}, /*dim=*/1) : keys;
}

/// Runs the layer's indexer over rows x [n, D] with the queries' latents [n, q_lora_rank].
void run_indexer(const LatentAttention& layer, const at::Tensor& x, const at::Tensor& latents,
                 const LatentPositions& positions, const std::vector<int64_t>& offsets,
                 const PickingRows& picking) {
  const IndexerSettings& settings = layer.indexing;
  const Indexer& indexer = layer.indexer;
  const at::Tensor held = picking.picks->add_keys(picking.layer, picking.sequence_begin, picking.begin,
                                                  index_rows(layer, x, positions));
  const auto asks = [&] {
    const at::Tensor queries = index_queries(layer, x, latents, positions);
    return std::pair(queries, wide_product(*indexer.weights_proj, x)
                                  .mul_(1.0 / std::sqrt(static_cast<double>(settings.head_dim) *
                                                        static_cast<double>(settings.heads))));
  };
  pick_in_sequences(settings, held, x.size(0), offsets, picking, asks, [&](const at::Tensor& rows, int64_t) {
    return indexer.picks_groups() ? pooled_blocks_forward(rows, indexer.pooling) : rows;
  });
}

/// What is picked for rows, those of their first run if they have run before.
PickedRows picked_rows(const LatentAttention& layer, const at::Tensor& x, const at::Tensor& latents,
                       const LatentPositions& positions, const std::vector<int64_t>& offsets,
                       const PickingRows& picking) {
  if (picking.picks == nullptr || !picking.picks->are_needed()) return {};
  const int64_t n = x.size(0);
  if (!picking.picks->are_known(picking.layer, picking.begin + n)) {
    if (layer.indexer.wk == nullptr)
      throw InputError(
          "a layer that sees the rows picked by layer {}, which has not run: expected the layers "
          "in their order",
          picking.layer);
    const at::NoGradGuard no_grad;
    const MemoryScope scope("indexer");
    run_indexer(layer, x.detach(), latents.detach(), positions, offsets, picking);
  }
  bool are_read = picking.picks->are_given();
  for (size_t s = 0; s + 1 < offsets.size(); ++s) {
    const int64_t earlier = s == 0 ? picking.begin - picking.sequence_begin : 0;
    const int64_t length = earlier + offsets[s + 1] - offsets[s];
    are_read = are_read || length / layer.indexing.rows_of_pick() > layer.indexing.topk;
  }
  if (!are_read) return {};
  PickedRows picked{picking.picks->find(picking.layer, picking.begin, n)};
  picked.rate = layer.indexing.rows_of_pick();
  picked.has_tail = picked.rate > 1;
  picked.of_all_rows = picking.picks->are_given();
  return picked;
}

}  // namespace

std::vector<const Linear*> LatentAttention::query_maps() const {
  return q_a_proj != nullptr ? std::vector{q_a_proj, q_proj} : std::vector{q_proj};
}

bool LatentAttention::trainable() const {
  if (kv_b_proj == nullptr) return false;
  std::vector<const Linear*> maps = query_maps();
  for (const Linear* map : {kv_a_proj, kv_b_proj, gate_proj}) {
    if (map != nullptr) maps.push_back(map);
  }
  for (const Parameter* numbers : {scales.scale, scales.bias, rotates ? alpha : nullptr}) {
    if (numbers != nullptr && numbers->trainable()) return true;
  }
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

at::Tensor latent_forward(const LatentAttention& layer, const at::Tensor& x, const LatentPositions& positions,
                          const std::vector<int64_t>& offsets, const Prefix& prefix,
                          const AttentionSettings& settings, const ModelOps& ops, const PickingRows& picking,
                          LatentRows& own) {
  std::vector<const Linear*> maps{layer.query_maps().front()};
  for (const Linear* map : {layer.kv_a_proj, layer.gate_proj}) {
    if (map != nullptr) maps.push_back(map);
  }
  const auto first = linear(x, maps);
  if (layer.kv_a_proj != nullptr) own = rows_of(layer, first[1], positions.rope, ops);
  const at::Tensor of_queries = layer.q_a_proj != nullptr ? ops.rms_norm(first[0], layer.q_a_norm) : first[0];
  const PickedRows picked = picked_rows(layer, x, of_queries, positions, offsets, picking);
  const at::Tensor attended = latent_attention(queries(layer, of_queries, positions, ops), own.latents,
                                               own.rotated, offsets, prefix, settings, layer.heads, picked);
  return layer.gate_proj == nullptr ? attended : gated_output(attended, first.back().view(attended.sizes()));
}

}  // namespace streambp
