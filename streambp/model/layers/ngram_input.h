// What a layer adds to its residual streams of the n-grams that end with each token (Qwen4-Exp's Per-Layer
// Embeddings): the maps around ops/ngrams.h.
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/ATen.h>

#include "streambp/ops/linear.h"
#include "streambp/ops/recurrent/causal_conv.h"
#include "streambp/ops/rms_norm.h"

namespace streambp {

/// The maps, below model.layers.N.ple, for S streams of D numbers and heads of E entries in all. All null: a
/// layer without them.
struct NgramInput {
  Parameter* table = nullptr;              // ple_embedding.ngram_embedding: [rows of all heads, E / heads]
  std::vector<int64_t> multipliers, rows;  // as in ngram_rows
  const Linear *key_proj = nullptr, *value_proj = nullptr;  // [S D, E], [D, E]
  RmsNorm norm_key, norm_query, norm_conv;                  // of each stream: [S D]
  Parameter* conv1d = nullptr;                              // [S D, 1, K]
  int64_t streams = 0;

  bool is_there() const { return table != nullptr; }
  bool trainable() const;
};

struct NgramOutput {
  at::Tensor streams;  // [n, S D]
  at::Tensor tail;     // of the convolution: [(K - 1) size, S D]
};

/// x + u + silu(conv(norm_conv u)) of the streams x [n, S D] and ngrams [n, size], with e the table's rows
/// and
///     u = opened_values(norm_key(key_proj e), norm_query x, value_proj e)
/// and taps of the convolution `size` rows apart. `offsets` (0 first, n last) cut the rows into sequences,
/// the first of which continues `before`. The input must outlive the graph.
NgramOutput add_ngrams(const NgramInput& input, const at::Tensor& x, const at::Tensor& ngrams,
                       const std::vector<int64_t>& offsets, const TailBefore& before);

}  // namespace streambp
