#include "streambp/model/layers/compressed_layer.h"

#include <algorithm>
#include <cmath>

#include "streambp/memory/meter.h"
#include "streambp/ops/attention/indexer.h"

namespace streambp {
namespace {

bool is_trained(const Linear* map) {
  return map != nullptr && map->trainable();
}

bool is_trained(const Parameter* parameter) {
  return parameter != nullptr && parameter->trainable();
}

/// What a compressor's maps give of x [n, D], side by side.
std::vector<const Linear*> maps_of(const Compressor& compressor) {
  if (!compressor.is_there()) return {};
  return {compressor.kv_proj, compressor.gate_proj};
}

at::Tensor keys_of(const CompressedAttention& layer, const at::Tensor& projected, const RopeTable& table,
                   const ModelOps& ops) {
  return rope_last_pairs(ops.rms_norm(projected.unsqueeze(1), layer.kv_norm), table);
}

/// The rotations of a sequence's blocks: those of their first rows.
RopeTable ropes_of_blocks(const RopeTable& stream, int64_t sequence_begin, int64_t blocks, int64_t rate) {
  const auto of = [&](const at::Tensor& x) {
    return x.slice(0, sequence_begin, sequence_begin + (blocks - 1) * rate + 1, rate);
  };
  return {of(stream.cosine), of(stream.sine)};
}

/// Rows of a stream in sequences, and where these are.
struct RowsInSequences {
  const std::vector<int64_t>& offsets;
  int64_t begin, sequence_begin;

  int64_t earlier(size_t s) const { return s == 0 ? begin - sequence_begin : 0; }
  int64_t length(size_t s) const { return earlier(s) + offsets[s + 1] - offsets[s]; }
  int64_t begin_of(size_t s) const { return s == 0 ? sequence_begin : begin + offsets[s]; }
};

/// The compressor's rows of all whole blocks of the sequences, [M, E]; undefined: there are none.
at::Tensor compressed_blocks(const Compressor& compressor, const at::Tensor& raw, const Prefix& prefix,
                             const RowsInSequences& rows, const RopeTable& stream, const ModelOps& ops) {
  std::vector<at::Tensor> cosines, sines;
  for (size_t s = 0; s + 1 < rows.offsets.size(); ++s) {
    const int64_t blocks = compressor.pooling.blocks(rows.length(s));
    if (blocks == 0) continue;
    const RopeTable of_sequence = ropes_of_blocks(stream, rows.begin_of(s), blocks, compressor.pooling.rate);
    cosines.push_back(of_sequence.cosine);
    sines.push_back(of_sequence.sine);
  }
  if (cosines.empty()) return {};
  const at::Tensor pooled = pooled_blocks(raw, prefix, rows.offsets, compressor.pooling);
  const at::Tensor normed = ops.rms_norm(pooled.unsqueeze(1), compressor.norm);
  return rope_last_pairs(normed, {at::cat(cosines), at::cat(sines)}).squeeze(1);
}

/// Runs the layer's indexer over rows x [n, D] with the queries' latents [n, q_lora_rank].
void run_indexer(const CompressedAttention& layer, const at::Tensor& x, const at::Tensor& latents,
                 const BlockRopes& ropes, const RowsInSequences& rows, const PickingRows& picking) {
  const IndexerSettings& settings = layer.indexing;
  const BlockIndexer& indexer = layer.indexer;
  const BlockPooling& pooling = indexer.compressor.pooling;
  RowPicks& picks = *picking.picks;
  const int64_t n = x.size(0), rate = pooling.rate, topk = settings.topk;
  const at::Tensor own = at::cat(
      {linear_forward(*indexer.compressor.kv_proj, x), linear_forward(*indexer.compressor.gate_proj, x)},
      /*dim=*/1);
  const at::Tensor raw = picks.add_keys(picking.layer, picking.sequence_begin, picking.begin, own);
  at::Tensor queries, weights;  // of the rows, where any of them picks
  int64_t tied = 0;
  for (size_t s = 0; s + 1 < rows.offsets.size(); ++s) {
    const int64_t earlier = rows.earlier(s), end = rows.offsets[s + 1];
    const int64_t many = rate * (topk + 1) - 1;  // the first row of a sequence that may see more
    const int64_t begin = first_picking(picking, rows.offsets[s] + std::max<int64_t>(many - earlier, 0), end);
    if (begin >= end) continue;
    if (!queries.defined()) {
      queries = rope_last_pairs(
          linear_forward(*indexer.q_b_proj, latents).view({n, settings.heads, settings.head_dim}),
          ropes.rows);
      weights = wide_product(*indexer.weights_proj, x)
                    .mul_(1.0 / std::sqrt(static_cast<double>(settings.head_dim * settings.heads)));
    }
    const int64_t length = rows.length(s), blocks = pooling.blocks(length);
    const at::Tensor of_sequence = raw.narrow(0, rows.begin_of(s) - picking.sequence_begin, length);
    const at::Tensor pooled = pooled_blocks_forward(of_sequence, pooling).unsqueeze(1);
    const at::Tensor keys = rope_last_pairs(rms_norm(pooled, indexer.compressor.norm),
                                            ropes_of_blocks(ropes.stream, rows.begin_of(s), blocks, rate));
    picks.keep(picking.layer, picking.begin + begin,
               pick_rows(queries.narrow(0, begin, end - begin), weights.narrow(0, begin, end - begin),
                         keys.squeeze(1), topk, earlier + begin - rows.offsets[s], rate, tied));
  }
  picks.count_tied(picking.layer, tied);
  picks.finish(picking.layer, picking.begin + n);
}

/// What is picked for rows, those of their first run if they have run before; undefined: they see all.
at::Tensor picks_of(const CompressedAttention& layer, const at::Tensor& x, const at::Tensor& latents,
                    const BlockRopes& ropes, const RowsInSequences& rows, const PickingRows& picking) {
  if (layer.indexer.q_b_proj == nullptr || picking.picks == nullptr || !picking.picks->are_needed())
    return {};
  const int64_t n = x.size(0);
  if (!picking.picks->are_known(picking.layer, picking.begin + n)) {
    const at::NoGradGuard no_grad;
    const MemoryScope scope("indexer");
    run_indexer(layer, x.detach(), latents.detach(), ropes, rows, picking);
  }
  bool are_read = picking.picks->are_given();
  for (size_t s = 0; s + 1 < rows.offsets.size(); ++s)
    are_read = are_read || layer.compressor.pooling.blocks(rows.length(s)) > layer.indexing.topk;
  return are_read ? picking.picks->find(picking.layer, picking.begin, n) : at::Tensor();
}

/// What the first projection gives of each group of heads of y [n, H, E], side by side.
at::Tensor grouped_output(const CompressedAttention& layer, const at::Tensor& y) {
  const auto groups = static_cast<int64_t>(layer.o_a_proj.size());
  const at::Tensor heads = y.view({y.size(0), groups, -1});
  std::vector<at::Tensor> all;
  for (int64_t group = 0; group < groups; ++group)
    all.push_back(
        linear(heads.select(1, group).contiguous(), {layer.o_a_proj[static_cast<size_t>(group)]}).front());
  return at::cat(all, /*dim=*/1);
}

}  // namespace

bool Compressor::trainable() const {
  return is_trained(kv_proj) || is_trained(gate_proj) || is_trained(pooling.bias) || is_trained(norm.weight);
}

bool CompressedAttention::trainable() const {
  return is_trained(q_a_proj) || is_trained(q_b_proj) || is_trained(kv_proj) || is_trained(q_a_norm.weight) ||
         is_trained(kv_norm.weight) || compressor.trainable() ||
         std::any_of(o_a_proj.begin(), o_a_proj.end(), [](const Linear* map) { return is_trained(map); });
}

CompressedRows compressed_rows(const CompressedAttention& layer, const at::Tensor& x, const RopeTable& table,
                               const ModelOps& ops) {
  std::vector<const Linear*> maps{layer.kv_proj};
  for (const Linear* map : maps_of(layer.compressor)) maps.push_back(map);
  const auto all = linear(x, maps);
  const at::Tensor keys = keys_of(layer, all[0], table, ops);
  if (!layer.compressor.is_there()) return {keys, keys.narrow(2, 0, 0)};
  return {keys, at::cat({all[1], all[2]}, /*dim=*/1).unsqueeze(1)};
}

at::Tensor compressed_forward(const CompressedAttention& layer, const at::Tensor& x, const BlockRopes& ropes,
                              const std::vector<int64_t>& offsets, const Prefix& prefix,
                              const AttentionSettings& settings, const ModelOps& ops,
                              const PickingRows& picking, CompressedRows& own) {
  std::vector<const Linear*> maps{layer.q_a_proj, layer.kv_proj};
  for (const Linear* map : maps_of(layer.compressor)) maps.push_back(map);
  const auto first = linear(x, maps);
  const RowsInSequences rows{offsets, picking.begin, picking.sequence_begin};
  own.keys = keys_of(layer, first[1], ropes.rows, ops);
  own.raw = own.keys.narrow(2, 0, 0);
  SeenBlocks seen;
  const at::Tensor latents = ops.rms_norm(first[0], layer.q_a_norm);
  if (layer.compressor.is_there()) {
    own.raw = at::cat({first[2], first[3]}, /*dim=*/1).unsqueeze(1);
    seen.rows = compressed_blocks(layer.compressor, own.raw, prefix, rows, ropes.stream, ops);
    seen.rate = layer.compressor.pooling.rate;
    seen.picks = picks_of(layer, x, latents, ropes, rows, picking);
    seen.picks_of_all_rows = seen.picks.defined() && picking.picks->are_given();
  }
  const at::Tensor heads =
      linear(latents, {layer.q_b_proj}).front().view({x.size(0), layer.heads, layer.head_dim});
  const at::Tensor queries = rope_last_pairs(ops.rms_norm(heads, layer.q_b_norm), ropes.rows);
  AttentionSettings own_settings = settings;
  own_settings.window = layer.window;
  const at::Tensor attended = block_attention(queries, own.keys, prefix, offsets, seen, own_settings);
  return grouped_output(layer, rope_last_pairs(attended, ropes.rows, /*back=*/true));
}

}  // namespace streambp
