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
  return ops.normed_rope(layer.interleaved ? split_pairs(x, layer.heads.rope) : x.contiguous(), nullptr,
                         table);
}

/// [n, H, nope + rope] of what the first of query_maps() gives, normed where it is the queries' latents.
at::Tensor queries(const LatentAttention& layer, at::Tensor projected, const RopeTable& table,
                   const ModelOps& ops) {
  if (layer.q_a_proj != nullptr) projected = linear(projected, {layer.q_proj}).front();
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

/// An indexer's heads [n, heads, E], rotated.
at::Tensor rotate_index(const LatentAttention& layer, const at::Tensor& x, const RopeTable& table) {
  if (layer.indexing.rotates_last) {
    const auto parts = x.split_with_sizes({x.size(2) - layer.heads.rope, layer.heads.rope}, /*dim=*/2);
    return at::cat({parts[0], normed_rope(parts[1].contiguous(), nullptr, table)}, /*dim=*/2);
  }
  return normed_rope(layer.indexing.interleaved ? split_pairs(x, layer.heads.rope) : x, nullptr, table);
}

/// An indexer's norm of its keys; at::layer_norm has no kernel for dry runs.
at::Tensor layer_norm(const Indexer& indexer, double eps, const at::Tensor& x) {
  const at::ScalarType wide = sum_dtype(x);
  const at::Tensor rows = x.to(wide), centered = rows - rows.mean(-1, /*keepdim=*/true);
  const at::Tensor normed = centered * (centered * centered).mean(-1, /*keepdim=*/true).add_(eps).rsqrt_();
  return (normed * indexer.norm_weight->value.to(wide) + indexer.norm_bias->value.to(wide))
      .to(x.scalar_type());
}

/// Runs the layer's indexer over rows x [n, D] with the queries' latents [n, q_lora_rank].
void run_indexer(const LatentAttention& layer, const at::Tensor& x, const at::Tensor& latents,
                 const RopeTable& table, const std::vector<int64_t>& offsets, const PickingRows& picking) {
  const IndexerSettings& settings = layer.indexing;
  const Indexer& indexer = layer.indexer;
  RowPicks& picks = *picking.picks;
  const int64_t n = x.size(0), size = settings.head_dim, topk = settings.topk;
  const at::Tensor normed = layer_norm(indexer, settings.norm_eps, linear_forward(*indexer.wk, x));
  const at::Tensor own = rotate_index(layer, normed.unsqueeze(1), table).squeeze(1);
  const at::Tensor keys = picks.add_keys(picking.layer, picking.sequence_begin, picking.begin, own);
  const int64_t prefix = picking.begin - picking.sequence_begin;
  at::Tensor queries, weights;  // of the rows, where any of them picks
  for (size_t s = 0; s + 1 < offsets.size(); ++s) {
    const int64_t end = offsets[s + 1], first = s == 0 ? prefix : 0;
    const int64_t more = offsets[s] + std::max<int64_t>(topk - first, 0);  // the first row that sees more
    const int64_t begin = first_picking(picking, more, end);
    if (begin >= end) continue;
    if (!queries.defined()) {
      queries =
          rotate_index(layer, linear_forward(*indexer.wq_b, latents).view({n, settings.heads, size}), table);
      weights = wide_product(*indexer.weights_proj, x)
                    .mul_(1.0 / std::sqrt(static_cast<double>(size) * static_cast<double>(settings.heads)));
    }
    const int64_t key = s == 0 ? 0 : prefix + offsets[s], rows = end - begin;
    picks.keep(picking.layer, picking.begin + begin,
               pick_rows(queries.narrow(0, begin, rows), weights.narrow(0, begin, rows),
                         keys.narrow(0, key, first + end - offsets[s]), topk, first + begin - offsets[s]));
  }
  picks.finish(picking.layer, picking.begin + n);
}

/// What is picked for rows, those of their first run if they have run before.
PickedRows picked_rows(const LatentAttention& layer, const at::Tensor& x, const at::Tensor& latents,
                       const RopeTable& table, const std::vector<int64_t>& offsets,
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
    run_indexer(layer, x.detach(), latents.detach(), table, offsets, picking);
  }
  bool are_read = picking.picks->are_given();
  for (size_t s = 0; s + 1 < offsets.size(); ++s) {
    const int64_t earlier = s == 0 ? picking.begin - picking.sequence_begin : 0;
    are_read = are_read || earlier + offsets[s + 1] - offsets[s] > layer.indexing.topk;
  }
  if (!are_read) return {};
  PickedRows picked{picking.picks->find(picking.layer, picking.begin, n)};
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
  maps.insert(maps.end(), {kv_a_proj, kv_b_proj});
  if (gate_proj != nullptr) maps.push_back(gate_proj);
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
                          const AttentionSettings& settings, const ModelOps& ops, const PickingRows& picking,
                          LatentRows& own) {
  std::vector<const Linear*> maps{layer.query_maps().front(), layer.kv_a_proj};
  if (layer.gate_proj != nullptr) maps.push_back(layer.gate_proj);
  const auto first = linear(x, maps);
  own = rows_of(layer, first[1], table, ops);
  const at::Tensor of_queries = layer.q_a_proj != nullptr ? ops.rms_norm(first[0], layer.q_a_norm) : first[0];
  const PickedRows picked = picked_rows(layer, x, of_queries, table, offsets, picking);
  const at::Tensor attended = latent_attention(queries(layer, of_queries, table, ops), own.latents,
                                               own.rotated, offsets, prefix, settings, layer.heads, picked);
  return layer.gate_proj == nullptr ? attended : gated_output(attended, first[2].view(attended.sizes()));
}

}  // namespace streambp
