// A decoder layer, written once: every method of back-propagation is built from its two functions.
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/ATen.h>

#include "streambp/model/config.h"
#include "streambp/model/model_ops.h"
#include "streambp/ops/attention.h"
#include "streambp/ops/linear.h"
#include "streambp/ops/mixture.h"
#include "streambp/ops/mlp.h"
#include "streambp/ops/rms_norm.h"
#include "streambp/ops/rope.h"

namespace streambp {

/// Tokens [begin, end) of the stream, as a layer needs to know them.
struct Rows {
  int64_t begin = 0;
  int64_t end = 0;
  /// Where the sequences among these rows begin, relative to `begin`; 0 first, the number of rows last.
  std::vector<int64_t> offsets;
  /// Where in the stream the sequence of the first row begins: [sequence_begin, begin) is its prefix.
  int64_t sequence_begin = 0;
  RopeTable rope;        // of these rows
  RopeTable local_rope;  // the same for layers with a window, where they have their own

  int64_t size() const { return end - begin; }
};

/// What later tokens may look at: [n, K, E] each.
struct KeysValues {
  at::Tensor keys;
  at::Tensor values;
};

/// What a layer has computed for some rows, without a graph, for another pass over the same rows that need
/// not compute it again. Undefined tensors: they are computed.
struct Activations {
  AttentionBlock attention;      // its output and log-sum-exps
  KeysValues projected;          // keys and values as projected, [n, K E] each, before norm and rotation
  at::Tensor attention_half;     // [n, D]: the first half's result, or with sandwich norms what o_proj gives
  GatedProjections projections;  // of a dense layer's MLP
};

/// How a layer is run over some rows.
struct LayerRun {
  const ModelOps& ops = own_ops();
  /// Whether the output is wanted for its graph alone. Values that no backward pass reads are then left out:
  /// those of the output, with the product that makes them, where no norm follows it (they are NaN). Early
  /// stopping of torch.utils.checkpoint does the same.
  bool graph_only = false;
  RouterBalance* balance = nullptr;  // of the batch, where a loss keeps the experts' load balanced
  RouterChoices* choices = nullptr;  // of the batch, where layers run more than once
  /// Which activations the run hands out in addition to attention's.
  bool keeps_projected = false;
  bool keeps_attention_half = false;
  bool keeps_projections = false;
};

struct LayerOutput {
  at::Tensor hidden;        // [n, D]
  KeysValues own;           // of these rows
  Activations activations;  // attention's, and those that LayerRun asks for
};

/// One layer of a pre-norm decoder with rotary grouped-query attention and a gated MLP or a mixture of them:
/// Qwen2, Qwen3, Llama, Mistral, Phi-3, Gemma 2 and 3, Qwen3-MoE.
///     middle = x + attention(input_layernorm(x)),   y = middle + mlp(post_attention_layernorm(middle))
/// and where norms come in sandwiches (Gemma)
///     middle = x + post_attention_layernorm(attention(input_layernorm(x)))
///     y = middle + post_feedforward_layernorm(mlp(pre_feedforward_layernorm(middle)))
class DecoderLayer {
 public:
  struct Weights {
    RmsNorm input_layernorm;
    const Linear *q_proj = nullptr, *k_proj = nullptr, *v_proj = nullptr, *o_proj = nullptr;
    RmsNorm q_norm, k_norm;  // [E], only with Config::qk_norm
    RmsNorm post_attention_layernorm;
    RmsNorm pre_feedforward_layernorm, post_feedforward_layernorm;  // only with Config::sandwich_norms
    GatedMlp mlp;                                                   // of a dense layer
    Mixture mixture;                                                // of a sparse one
  };

  /// `index` is the layer's number, from 0.
  DecoderLayer(const Config& config, int64_t index, Weights weights);

  /// Keys and values of hidden states x [n, D], or of `projected`; x may then be undefined where no graph is
  /// wanted.
  KeysValues keys_values(const at::Tensor& x, const Rows& rows, const KeysValues& projected = {}) const;

  /// The layer's output for x [n, D], whose first sequence continues `prefix`. `known` is what an earlier
  /// pass over the same rows has given. The backward pass may write over its `projections`.
  LayerOutput forward(const at::Tensor& x, const Rows& rows, const Prefix& prefix, const LayerRun& run,
                      Activations known = {}) const;

  /// The layer's output for x [n, D] and `known`, which has attention's output or the first half's: token by
  /// token.
  at::Tensor after_attention(const at::Tensor& x, Activations known, const Rows& rows,
                             const LayerRun& run) const;

  /// The first half of `forward`: middle [n, D] for x [n, D], rows that continue no sequence.
  at::Tensor attention_half(const at::Tensor& x, const Rows& rows, const LayerRun& run) const;

  /// The second half: the layer's output for middle [n, D], token by token. `projections` as in gated_mlp.
  at::Tensor feed_forward(const at::Tensor& middle, const Rows& rows, const LayerRun& run,
                          GatedProjections* projections = nullptr) const;

  /// Whether any parameter of the layer needs a gradient.
  bool trainable() const;

  const Weights& weights() const { return weights_; }

 private:
  const RopeTable& rope_of(const Rows& rows) const;
  at::Tensor query_heads(const at::Tensor& projected, const Rows& rows, const ModelOps& ops) const;
  /// `shared`: whether somebody else reads `keys` too, the projected ones.
  KeysValues key_value_heads(const at::Tensor& keys, const at::Tensor& values, const Rows& rows,
                             const ModelOps& ops, bool shared) const;
  /// What attention gives before its projection, [n, H, E]; `own` receives the rows' own keys and values,
  /// `known` what is computed.
  at::Tensor attend(const at::Tensor& x, const Rows& rows, const Prefix& prefix, const LayerRun& run,
                    KeysValues& own, Activations& known) const;
  /// Middle [n, D] for x [n, D] and what its attention gave. `half`: Activations::attention_half, which
  /// receives what is computed; where it is known and no graph is wanted, `attended` may be undefined.
  at::Tensor add_attention(const at::Tensor& x, const at::Tensor& attended, at::Tensor& half) const;

  Config config_;
  int64_t index_;
  bool sparse_;
  bool own_rope_;  // rotates heads by the local table
  AttentionSettings attention_;
  Weights weights_;
};

}  // namespace streambp
