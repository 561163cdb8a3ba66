// An indexer beside ordinary attention, whose heads each pick blocks of keys for their share of the query
// heads (MiniMax M3), or all of them together groups of rows by the means of their keys (Qwen4-Exp): the maps
// around ops/attention/indexer.h.
#pragma once

#include <functional>
#include <vector>

#include <ATen/ATen.h>

#include "streambp/model/config/config.h"
#include "streambp/model/layers/picking_rows.h"
#include "streambp/ops/attention/picked_attention.h"
#include "streambp/ops/linear.h"
#include "streambp/ops/rms_norm.h"
#include "streambp/ops/rope.h"

namespace streambp {

/// The maps, below self_attn.indexer. All null: a layer without one.
struct KeyBlockIndexer {
  const Linear *q_proj = nullptr, *k_proj = nullptr;  // [heads head_dim, D], [head_dim, D]
  RmsNorm q_norm, k_norm;                             // of each head; of means k_norm is of these
  IndexerSettings settings;

  bool is_there() const { return q_proj != nullptr; }
};

/// Rotary tables of some rows, and of all rows of the stream.
struct IndexerRope {
  const RopeTable &rows, &stream;
};

/// What is picked for rows in sequences from `offsets` on, those of their first run if they have run before.
/// `read` gives what attention reads of the rows, [n, D], and is called in their first run alone.
PickedRows picked_key_blocks(const KeyBlockIndexer& indexer, const std::function<at::Tensor()>& read,
                             const IndexerRope& rope, const std::vector<int64_t>& offsets,
                             const PickingRows& picking);

}  // namespace streambp
