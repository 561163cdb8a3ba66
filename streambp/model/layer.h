// A decoder layer, written once: every method of back-propagation is built from its two functions.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include <ATen/ATen.h>

#include "streambp/model/config/config.h"
#include "streambp/model/layers/compressed_layer.h"
#include "streambp/model/layers/delta_rule_layer.h"
#include "streambp/model/layers/key_block_indexer.h"
#include "streambp/model/layers/latent_layer.h"
#include "streambp/model/layers/ngram_input.h"
#include "streambp/model/layers/per_layer_input.h"
#include "streambp/model/layers/shared_block.h"
#include "streambp/model/layers/stream_mixer.h"
#include "streambp/model/model_ops.h"
#include "streambp/ops/attention/attention.h"
#include "streambp/ops/hyper_connection.h"
#include "streambp/ops/linear.h"
#include "streambp/ops/mlp/mixture.h"
#include "streambp/ops/mlp/mlp.h"
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
  RopeTable rope;                 // of these rows
  RopeTable local_rope;           // the same for layers with a window, where they have their own
  RopeTable query_rope;           // the same for queries, where it differs from the keys'
  RopeTable stream_rope;          // as `rope`, of all tokens of the stream
  at::Tensor log_positions = {};  // LatentPositions::logarithms of these rows
  at::Tensor query_scales = {};   // LatentPositions::query_scales of these rows
  /// Tokens [n]; where the layers read them (Gemma 4) the model's first hidden states [n, D], which are part
  /// of the layer's graph, and where their gradient is added; undefined: nobody wants it.
  at::Tensor tokens, embedded, embedded_gradient;
  at::Tensor ngrams = {};     // [n, size]: the last tokens of each, where layers read them
  RowPicks* picks = nullptr;  // of the stream, where layers have indexers

  int64_t size() const { return end - begin; }
};

/// Keys and values of n tokens, [n, K, E] each, or as projected; with latent attention the normed latents
/// [n, 1, kv_lora_rank] and the rotated keys [n, 1, qk_rope_head_dim]; of DeepSeek V4 what CompressedRows
/// are.
struct KeysValues {
  at::Tensor keys;
  at::Tensor values;
};

/// What some rows attend with, normed and rotated: queries [n, H, E], keys and values [n, K, E], and with an
/// output gate what it multiplies, [n, H, E] or [n, H, 1].
struct AttentionHeads {
  at::Tensor queries, gates;
  KeysValues own;
};

/// What later tokens may see of some rows: in a layer with attention their keys and values, in a recurrent
/// one the state that they leave.
struct Carry {
  KeysValues attention;
  DeltaCarry recurrent;
};

/// What the first sequence of some rows continues, if it does: its earlier tokens' carry, and where the
/// gradient that reaches it is added; and what other layers have of the rows.
struct Before {
  Prefix attention;
  DeltaBefore recurrent;
  /// Keys and values of the rows themselves in a layer that has none of its own.
  Prefix shared = {};
};

/// What a layer has computed for some rows, without a graph, for another pass over the same rows that need
/// not compute it again. Undefined tensors: they are computed.
struct Activations {
  AttentionBlock attention;      // its output and log-sum-exps
  at::Tensor queries;            // as projected, [n, H E], with Config::attention_output_gate [n, 2 H E]
  KeysValues projected;          // keys and values as projected, [n, K E] each, before norm and rotation
  at::Tensor attention_half;     // [n, D]: the first half's result, or with Config::reads_outputs what o_proj
                                 // gives
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
  RouterOutput* router = nullptr;    // of the layer, where somebody else has a loss of it
  /// Which activations the run hands out in addition to attention's.
  bool keeps_queries = false;
  bool keeps_projected = false;
  bool keeps_attention_half = false;
  bool keeps_projections = false;
};

struct LayerOutput {
  at::Tensor hidden;        // [n, D], of Config::residual_width as x
  Carry own;                // of these rows
  Activations activations;  // attention's, and those that LayerRun asks for
};

/// One layer of a decoder with rotary grouped-query, or latent, attention and a gated MLP or a mixture of
/// them, whose norms stand before both (Llama and most others)
///     middle = x + attention(input_layernorm(x)),   y = middle + mlp(post_attention_layernorm(middle))
/// or around them (Gemma 2 and 3; GLM-4 under other names)
///     middle = x + post_attention_layernorm(attention(input_layernorm(x)))
///     y = middle + post_feedforward_layernorm(mlp(pre_feedforward_layernorm(middle)))
/// (Gemma 4 likewise, with experts next to the MLP, per-layer inputs after it and a constant factor)
/// or after them (OLMo 2 and 3)
///     middle = x + post_attention_layernorm(attention(x)),   y = middle +
///     post_feedforward_layernorm(mlp(middle))
/// or before both at once (Cohere)
///     y = x + attention(input_layernorm(x)) + mlp(input_layernorm(x))
/// A recurrence may stand in attention's place, or next to it (Falcon-H1):
///     middle = x + recurrence(input_layernorm(x)) + attention(input_layernorm(x))
/// or read what a transformer block makes of x and the model's first hidden states e (Zamba 2):
///     y = x + recurrence(input_layernorm(x + block([x, e])))
/// Between layers a token may have several residual streams (Hunyuan 4): x, middle and y are then as many
/// times as wide, each half reads their weighted sum, and each stream takes its share of what the half gives
/// (hyper_connection.h).
class DecoderLayer {
 public:
  struct Weights {
    // Where the layer's norms stand, under any name; without a weight: there is none.
    RmsNorm before_attention, after_attention, before_mlp, after_mlp;
    const Linear *q_proj = nullptr, *k_proj = nullptr, *v_proj = nullptr, *o_proj = nullptr;
    const Linear* output_gate = nullptr;  // with Config::output_gate_map [H E, D], with gates_heads [H, D]
    RmsNorm q_norm, k_norm;      // only with Config::qk_norm: [E], or [H E] and [K E] with qk_norm_full_width
    RmsNorm v_norm;              // only with Config::norms_values: [E]
    Parameter* sinks = nullptr;  // [H], only with Config::attention_sinks
    KeyBlockIndexer indexer;     // only with Config::picks_key_blocks()
    DeltaRule delta_rule;        // of a recurrent layer, whose o_proj is linear_attn.out_proj; no q_proj ...
    const Linear* recurrent_out = nullptr;  // ... but where it attends as well: that is this then
    LatentAttention latent;                 // with latent attention; no q_proj
    CompressedAttention compressed;         // with DeepSeek V4's; o_proj is o_b_proj then, and no q_proj
    GatedMlp mlp;                           // of a dense layer, or one with both
    Mixture mixture;                        // of a sparse one
    RmsNorm router_norm, after_mlp_alone, before_experts, after_experts;  // of one with both
    /// Only with MixtureSettings::moe_hidden_size, before_experts between the first of them and the experts
    /// but with plain_latents.
    const Linear *into_experts = nullptr, *out_of_experts = nullptr;
    // Only with Config::has_residual_gates(): of each head that attention gives, and how halves are added.
    RmsNorm attended_norm;
    ResidualGate attention_residual, mlp_residual;
    // Only with Config::has_streams(): of what each half reads and gives, by gates or by maps.
    StreamGates into_attention, out_of_attention, into_mlp, out_of_mlp;
    StreamMixer attention_streams, mlp_streams;
    NgramInput ngrams;  // only where Config::ngrams are in the layer
    SharedBlock block;  // only with Config::runs_block(), whose projections are q_proj, k_proj and v_proj
    PerLayerInput per_layer;            // only with Config::has_per_layer_inputs()
    Parameter* layer_scalar = nullptr;  // [1], only with Config::layer_scalar

    /// Of q_proj, k_proj, v_proj and output_gate those that there are.
    std::vector<const Linear*> projections() const {
      std::vector<const Linear*> maps;
      for (const Linear* map : {q_proj, k_proj, v_proj, output_gate}) {
        if (map != nullptr) maps.push_back(map);
      }
      return maps;
    }
  };

  /// `index` is the layer's number, from 0.
  DecoderLayer(const Config& config, int64_t index, Weights weights);

  /// Whether it hands a state, which may be empty, from token to token instead of looking at all of them.
  bool is_recurrent() const { return recurrent_; }
  /// Whether it attends, be it next to a recurrence.
  bool attends() const { return config_.attends(index_); }
  /// Whether it has a first half.
  bool has_mixer() const { return config_.has_mixer(index_); }

  /// Keys and values of hidden states x [n, D], or of `projected`; x may then be undefined where no graph is
  /// wanted. Of a layer that attends.
  KeysValues keys_values(const at::Tensor& x, const Rows& rows, const KeysValues& projected = {}) const;

  /// What a recurrent layer's rows x [n, D] leave, without a graph: its state and, where a shared block has
  /// had to be run for it, keys and values too.
  Carry state_after(const at::Tensor& x, const Rows& rows, const Before& before) const;

  /// The layer's output for x [n, D], whose first sequence continues `before`. `known` is what an earlier
  /// pass over the same rows has given. The backward pass may write over its `projections`.
  LayerOutput forward(const at::Tensor& x, const Rows& rows, const Before& before, const LayerRun& run,
                      Activations known = {}) const;

  // The same where attention is somebody else's work, between the two:

  /// What attention takes of x [n, D]; not of layers that are recurrent alone, or of latent attention.
  /// What is `known` as projected is not computed again; receives what the run keeps. `shared`:
  /// Before::shared.
  AttentionHeads attention_heads(const at::Tensor& x, const Rows& rows, const LayerRun& run,
                                 Activations& known, const Prefix& shared = {}) const;

  /// The output for x [n, D] and `known`, which has attention's output or the first half's: token by token.
  /// Nothing is handed on.
  LayerOutput after_attention(const at::Tensor& x, Activations known, const Rows& rows,
                              const LayerRun& run) const;

  const AttentionSettings& attention_settings() const { return attention_; }

  /// The first half of `forward`: middle [n, D] for x [n, D], rows that continue no sequence. `own` receives
  /// what the rows hand on.
  at::Tensor attention_half(const at::Tensor& x, const Rows& rows, const Before& before, const LayerRun& run,
                            Carry& own) const;

  /// The second half: the layer's output for middle [n, D] and, where it reads that, the layer's input x
  /// [n, D], token by token. `projections` as in gated_mlp.
  at::Tensor feed_forward(const at::Tensor& middle, const at::Tensor& x, const Rows& rows,
                          const LayerRun& run, GatedProjections* projections = nullptr) const;

  /// Whether the second half reads the layer's input as well.
  bool is_parallel() const { return config_.parallel; }

  /// Whether any parameter of the layer needs a gradient.
  bool trainable() const;

  const Weights& weights() const { return weights_; }

 private:
  const RopeTable& rope_of(const Rows& rows, bool of_queries) const;
  /// Heads [n, heads, E] of a projection [n, heads E], normed and rotated as the layer has it. `shared`:
  /// whether somebody else reads the projection too; else it may be written over.
  at::Tensor heads(const at::Tensor& projected, const RmsNorm& norm, const RopeTable& table,
                   const ModelOps& ops, bool shared) const;
  /// What attention or MLP reads of x: `norm` of it, or x itself where there is none.
  static at::Tensor normed(const at::Tensor& x, const RmsNorm& norm, const ModelOps& ops);
  /// What attention, or the recurrence, reads of x: of its streams the sum, where it has several.
  at::Tensor mixer_input(const at::Tensor& x, const ModelOps& ops) const;
  /// What the projections of attention read: that, or of a shared block the norm of x and the first hidden
  /// states.
  at::Tensor attention_input(const at::Tensor& x, const Rows& rows, const ModelOps& ops) const;
  /// x and what the layer's shared block makes of it, [n, D]; `own` receives the block's keys and values.
  at::Tensor with_block(const at::Tensor& x, const Rows& rows, const Before& before, const LayerRun& run,
                        KeysValues& own) const;
  /// `shared`: whether somebody else reads what is projected, here and of the keys, too.
  at::Tensor query_heads(const at::Tensor& projected, const Rows& rows, const ModelOps& ops,
                         bool shared) const;
  KeysValues key_value_heads(const at::Tensor& keys, const at::Tensor& values, const Rows& rows,
                             const ModelOps& ops, bool shared) const;
  /// Keys and values as projected from `input`; those that are `known` are not computed again.
  KeysValues projected_keys_values(const at::Tensor& input, const KeysValues& known) const;
  /// What attention, or the recurrence, gives before its projection, [n, H E]; `own` receives what the rows
  /// hand on, `known` what is computed.
  at::Tensor mixed(const at::Tensor& x, const Rows& rows, const Before& before, const LayerRun& run,
                   Carry& own, Activations& known) const;
  at::Tensor attend_latents(const at::Tensor& x, const Rows& rows, const Before& before, const LayerRun& run,
                            KeysValues& own) const;
  at::Tensor attend_compressed(const at::Tensor& x, const Rows& rows, const Prefix& prefix,
                               const LayerRun& run, KeysValues& own) const;
  at::Tensor attend(const at::Tensor& x, const Rows& rows, const Before& before, const LayerRun& run,
                    KeysValues& own, Activations& known) const;
  /// x with what a recurrence next to attention adds, or x itself; `own` receives the state. `half`:
  /// Activations::attention_half; where it is known, the sum is wanted for its graph alone.
  at::Tensor with_recurrence(const at::Tensor& x, const Rows& rows, const Before& before, const LayerRun& run,
                             Carry& own, const at::Tensor& half) const;
  /// x with what the layer adds to its streams of n-grams, or x itself; `tail` receives what that hands on.
  at::Tensor with_ngrams(const at::Tensor& x, const Rows& rows, const Before& before, at::Tensor& tail) const;
  /// The output for x [n, D], its residual (with_recurrence) and what its attention gave (add_attention),
  /// with what the run keeps of `known`.
  LayerOutput finish(const at::Tensor& x, const at::Tensor& residual, at::Tensor attended, const Rows& rows,
                     const LayerRun& run, Activations known) const;
  /// Queries of what q_proj gives, and their gates [n, H, E], undefined where there are none.
  std::pair<at::Tensor, at::Tensor> queries_and_gates(const at::Tensor& projected) const;
  /// Middle [n, D] for x [n, D] and what its attention gave. `half`: Activations::attention_half, which
  /// receives what is computed; where it is known and no graph is wanted, `attended` may be undefined.
  at::Tensor add_attention(const at::Tensor& x, const at::Tensor& attended, at::Tensor& half) const;
  /// norm(mlp) + norm(experts(norm(middle))), where a layer has both; `mlp` is what its MLP gives.
  at::Tensor add_experts(const at::Tensor& middle, const at::Tensor& mlp, const Rows& rows,
                         const LayerRun& run) const;
  /// What attention gives, [n, H, E], normed and gated as the layer has it; `gates` as in AttentionHeads.
  at::Tensor gated(const at::Tensor& attended, const at::Tensor& gates) const;
  /// What experts between two maps make of x [n, D].
  at::Tensor narrow_experts(const at::Tensor& x, const Rows& rows, const LayerRun& run) const;
  /// residual + what such experts, which norm nothing, and the shared one beside them make of x.
  at::Tensor latent_experts(const at::Tensor& residual, const at::Tensor& x, const Rows& rows,
                            const LayerRun& run) const;
  MixtureRun mixture_run(const Rows& rows, const LayerRun& run, bool graph_only) const;

  Config config_;
  int64_t index_;
  int64_t head_dim_;
  bool sparse_;
  bool recurrent_;
  bool rotates_;
  bool own_rope_;  // rotates heads by the local table
  AttentionSettings attention_;
  Weights weights_;
};

}  // namespace streambp
