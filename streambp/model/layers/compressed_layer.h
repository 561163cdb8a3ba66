// DeepSeek V4's attention: a window of rows, and what is before it in blocks of rows made one row each; keys
// are values, one head of them for all queries. The maps around ops/attention/block_attention.h.
//
// What a row hands on is its key, and what its compressor's maps give of it: later rows pool blocks of those
// anew. A block that chunks cut then needs no state of its own, and the gradient of a block is that of rows.
#pragma once

#include <vector>

#include <ATen/ATen.h>

#include "streambp/model/config/config.h"
#include "streambp/model/layers/picking_rows.h"
#include "streambp/model/model_ops.h"
#include "streambp/ops/attention/block_attention.h"
#include "streambp/ops/attention/pooled_blocks.h"
#include "streambp/ops/linear.h"
#include "streambp/ops/rms_norm.h"
#include "streambp/ops/rope.h"

namespace streambp {

/// The maps of a compressor, [E, D] or where blocks overlap [2 E, D] each. Null: a layer without one.
struct Compressor {
  const Linear *kv_proj = nullptr, *gate_proj = nullptr;
  BlockPooling pooling;
  RmsNorm norm;  // of pooled rows

  bool is_there() const { return kv_proj != nullptr; }
  bool trainable() const;
};

/// The maps of an indexer, below self_attn.compressor.indexer, which picks blocks.
struct BlockIndexer {
  Compressor compressor;                 // of keys
  const Linear* q_b_proj = nullptr;      // [heads head_dim, q_lora_rank]
  const Linear* weights_proj = nullptr;  // [heads, D], in float32 or wider
};

/// The maps, in the model's names below model.layers.N.self_attn.
struct CompressedAttention {
  const Linear *q_a_proj = nullptr, *q_b_proj = nullptr;  // [q_lora_rank, D], [H E, q_lora_rank]
  const Linear* kv_proj = nullptr;                        // [E, D]
  std::vector<const Linear*> o_a_proj;  // of each group of heads, [o_lora_rank, H E / groups]
  RmsNorm q_a_norm, q_b_norm, kv_norm;  // of q_a_proj's output, of each head's query, of kv_proj's output
  int64_t heads = 0, head_dim = 0;
  int64_t window = 0;  // rows that a row sees, itself included
  Compressor compressor;
  BlockIndexer indexer;  // of a compressor whose blocks overlap
  IndexerSettings indexing;

  bool trainable() const;
};

/// What is held of n tokens.
struct CompressedRows {
  at::Tensor keys;  // [n, 1, E], rotated
  at::Tensor raw;   // [n, 1, W]: what the compressor's maps give; W is 0 without one
};

/// Of x [n, D], what a layer's attention reads.
CompressedRows compressed_rows(const CompressedAttention& layer, const at::Tensor& x, const RopeTable& table,
                               const ModelOps& ops);

/// The rotations of rows of a stream, and of all of its tokens.
struct BlockRopes {
  const RopeTable& rows;
  const RopeTable& stream;
};

/// What attention gives of x [n, D] after its first projection, [n, groups o_lora_rank]. `own` receives the
/// carry of these rows.
at::Tensor compressed_forward(const CompressedAttention& layer, const at::Tensor& x, const BlockRopes& ropes,
                              const std::vector<int64_t>& offsets, const Prefix& prefix,
                              const AttentionSettings& settings, const ModelOps& ops,
                              const PickingRows& picking, CompressedRows& own);

}  // namespace streambp
