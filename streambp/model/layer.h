// A decoder layer, written once: every method of back-propagation is built from its two functions.
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/ATen.h>

#include "streambp/model/config.h"
#include "streambp/ops/attention.h"
#include "streambp/ops/linear.h"
#include "streambp/ops/rope.h"

namespace streambp {

/// Tokens [begin, end) of the stream, as a layer needs to know them.
struct Rows {
  int64_t begin = 0;
  int64_t end = 0;
  std::vector<int64_t> offsets;  // where the sequences among these rows begin, counted from `begin`; 0 first,
                                 // the number of rows last
  int64_t sequence_begin =
      0;  // stream place where the sequence of the first row begins: [sequence_begin, begin) is its prefix
  RopeTable rope;  // of these rows

  int64_t size() const { return end - begin; }
};

/// What later tokens may look at: [n, K, E] each.
struct KeysValues {
  at::Tensor keys;
  at::Tensor values;
};

struct LayerOutput {
  at::Tensor hidden;  // [n, D]
  KeysValues own;     // of these rows
};

/// One layer of a pre-norm decoder with rotary grouped-query attention and a gated MLP: Qwen2, Qwen3, Llama.
class DecoderLayer {
 public:
  struct Weights {
    Parameter* input_layernorm = nullptr;
    const Linear *q_proj = nullptr, *k_proj = nullptr, *v_proj = nullptr, *o_proj = nullptr;
    Parameter* q_norm = nullptr;  // [E], only with Config::qk_norm
    Parameter* k_norm = nullptr;
    Parameter* post_attention_layernorm = nullptr;
    const Linear *gate_proj = nullptr, *up_proj = nullptr, *down_proj = nullptr;
  };

  DecoderLayer(const Config& config, const Weights& weights) : config_(config), weights_(weights) {}

  /// Keys and values of hidden states x [n, D].
  KeysValues keys_values(const at::Tensor& x, const Rows& rows) const;

  /// The layer's output for x [n, D], whose first sequence continues `prefix`.
  LayerOutput forward(const at::Tensor& x, const Rows& rows, const Prefix& prefix) const;

  /// Whether any parameter of the layer needs a gradient.
  bool trainable() const;

 private:
  at::Tensor query_heads(const at::Tensor& projected, const Rows& rows) const;
  KeysValues key_value_heads(const at::Tensor& keys, const at::Tensor& values, const Rows& rows) const;

  Config config_;
  Weights weights_;
};

}  // namespace streambp
