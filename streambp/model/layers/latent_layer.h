// Latent attention instead of keys and values of every head (DeepSeek V3): the maps around
// ops/latent_attention.h.
#pragma once

#include <vector>

#include <ATen/ATen.h>

#include "streambp/model/config/config.h"
#include "streambp/model/layers/picking_rows.h"
#include "streambp/model/model_ops.h"
#include "streambp/ops/attention/latent_attention.h"
#include "streambp/ops/attention/pooled_blocks.h"
#include "streambp/ops/attention/trained_positions.h"
#include "streambp/ops/linear.h"
#include "streambp/ops/rms_norm.h"
#include "streambp/ops/rope.h"

namespace streambp {

/// The maps of an indexer, below self_attn.indexer. All null: a layer above another's picks.
struct Indexer {
  const Linear* wq_b = nullptr;          // [heads head_dim, q_lora_rank], or with query_norm_weight D
  const Linear* wk = nullptr;            // [head_dim, D], with k_norm behind it
  const Linear* weights_proj = nullptr;  // [heads, D], in float32 or wider
  const Parameter *norm_weight = nullptr, *norm_bias = nullptr;  // of k_norm, which removes the mean
  // Of q_input_norm, the same of hidden states that queries are of; null: they are of the queries' latents.
  const Parameter *query_norm_weight = nullptr, *query_norm_bias = nullptr;
  QueryScales scales;
  /// Where it picks groups: what the weights of a group's rows are of, [head_dim, D], and how they are
  /// pooled.
  const Parameter* group_gate = nullptr;
  BlockPooling pooling;

  bool picks_groups() const { return group_gate != nullptr; }
};

/// The maps, in the model's names below model.layers.N.self_attn.
struct LatentAttention {
  const Linear* gate_proj = nullptr;  // [H value, D], of a gate of what attention gives; null: there is none
  const Linear* q_a_proj = nullptr;   // [q_lora_rank, D], with q_a_layernorm behind it; null: q_proj alone
  const Linear* q_proj = nullptr;     // [H (nope + rope), D], or q_b_proj [H (nope + rope), q_lora_rank]
  const Linear* kv_a_proj =
      nullptr;  // kv_a_proj_with_mqa [kv_lora_rank + rope, D]; null: another layer's rows
  const Linear* kv_b_proj = nullptr;  // [H (nope + value), kv_lora_rank]
  RmsNorm q_a_norm, kv_a_norm;
  bool interleaved = false;  // Config::rope_interleaved
  bool rotates = true;       // Config::rotates
  QueryScales scales;
  Parameter* alpha = nullptr;  // of the rotary frequencies, where these are trained
  LatentHeads heads;
  IndexerSettings indexing;  // of a model with indexers
  Indexer indexer;

  /// Those of the queries, one after another.
  std::vector<const Linear*> query_maps() const;
  bool trainable() const;
};

/// Where n tokens stand in their sequences.
struct LatentPositions {
  const RopeTable& rope;
  at::Tensor logarithms;    // [n], of 1 + position, where queries are scaled by them
  at::Tensor query_scales;  // [n], what queries are multiplied by (Config::query_scale_beta)
};

/// What is held of n tokens.
struct LatentRows {
  at::Tensor latents;  // [n, 1, kv_lora_rank], normed
  at::Tensor rotated;  // [n, 1, rope]
};

/// Of x [n, D], what a layer's attention reads.
LatentRows latent_rows(const LatentAttention& layer, const at::Tensor& x, const RopeTable& table,
                       const ModelOps& ops);

/// The attention [n, H, value] of x [n, D], to be projected. `own` receives the carry of these rows, or of a
/// layer that reads another's is that.
at::Tensor latent_forward(const LatentAttention& layer, const at::Tensor& x, const LatentPositions& positions,
                          const std::vector<int64_t>& offsets, const Prefix& prefix,
                          const AttentionSettings& settings, const ModelOps& ops, const PickingRows& picking,
                          LatentRows& own);

}  // namespace streambp
