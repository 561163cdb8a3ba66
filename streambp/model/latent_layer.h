// Latent attention instead of keys and values of every head (DeepSeek V3): the maps around
// ops/latent_attention.h.
#pragma once

#include <vector>

#include <ATen/ATen.h>

#include "streambp/model/config/config.h"
#include "streambp/model/model_ops.h"
#include "streambp/ops/attention/latent_attention.h"
#include "streambp/ops/linear.h"
#include "streambp/ops/rms_norm.h"
#include "streambp/ops/rope.h"

namespace streambp {

/// The maps, in the model's names below model.layers.N.self_attn.
struct LatentAttention {
  const Linear* q_a_proj = nullptr;   // [q_lora_rank, D], with q_a_layernorm behind it; null: q_proj alone
  const Linear* q_proj = nullptr;     // [H (nope + rope), D], or q_b_proj [H (nope + rope), q_lora_rank]
  const Linear* kv_a_proj = nullptr;  // kv_a_proj_with_mqa [kv_lora_rank + rope, D]
  const Linear* kv_b_proj = nullptr;  // [H (nope + value), kv_lora_rank]
  RmsNorm q_a_norm, kv_a_norm;
  bool interleaved = false;  // Config::rope_interleaved
  LatentHeads heads;

  /// Those of the queries, one after another.
  std::vector<const Linear*> query_maps() const;
  bool trainable() const;
};

/// What is held of n tokens.
struct LatentRows {
  at::Tensor latents;  // [n, 1, kv_lora_rank], normed
  at::Tensor rotated;  // [n, 1, rope]
};

/// Of x [n, D], what a layer's attention reads.
LatentRows latent_rows(const LatentAttention& layer, const at::Tensor& x, const RopeTable& table,
                       const ModelOps& ops);

/// The attention [n, H, value] of x [n, D], to be projected. `own` receives the carry of these rows.
at::Tensor latent_forward(const LatentAttention& layer, const at::Tensor& x, const RopeTable& table,
                          const std::vector<int64_t>& offsets, const Prefix& prefix,
                          const AttentionSettings& settings, const ModelOps& ops, LatentRows& own);

}  // namespace streambp
