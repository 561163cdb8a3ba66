// What a decoder is: its settings, and the names and shapes of its parameters.
#pragma once

#include <limits>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "reference/config_kinds.h"
#include "reference/rope_frequencies.h"
#include "reference/tape.h"

namespace streambp::STREAMBP_REFERENCE {

/// The last is max(x, 0)^2, of MLPs without a gate.
enum class Activation { kSilu, kGeluTanh, kGelu, kRelu, kRelu2 };

/// A low-rank adapter of a linear layer (Hu et al. 2021, https://arxiv.org/abs/2106.09685):
///     y = W x + b + scale (B (A x) + b'),   A [rank, in], B [out, rank], and b' only where has_bias
/// with scale = lora_alpha / rank, or lora_alpha / sqrt(rank) under rsLoRA. Of the embedding, x is one of the
/// vocabulary's unit vectors: h += scale B A[:, token]. Of the experts' gate_up_proj (gate above up) or
/// down_proj, PEFT keeps all experts in one A [experts rank, in] and one B [out, rank experts]: expert e has
/// the rows e rank + j of A and the columns j experts + e of B, 0 <= j < rank.
struct LoraAdapter {
  int rank = 1;
  double scale = 1.0;
  bool has_bias = false;
};

/// A mixture of experts in place of a layer's MLP; see mixture.h.
struct MixtureSettings {
  int num_experts = 0;  // 0: every MLP is dense
  int num_experts_per_tok = 0;
  int moe_intermediate_size = 0;
  bool norm_topk_prob = false;
  double router_aux_loss_coef = 0.0;        // of load_balancing_loss; 0: the loss has no such term
  std::vector<bool> sparse = {};            // of each layer: experts, or a dense MLP
  bool output_router_logits = true;         // whether a loss that does not say so has that term
  int shared_expert_intermediate_size = 0;  // Qwen2-MoE: of an expert that every token has; 0: there is none
  bool biased_interleaved = false;          // GPT-OSS: biases of router and experts, whose gate and up
                                            // alternate in one matrix for all; see parameter_shapes
  bool shared_expert_ungated = false;       // DeepSeek-V3's, which is called shared_experts and has no gate
  bool sigmoid_scores =
      false;               // DeepSeek-V3: the router's scores are no softmax, and the choice is of groups
  bool corrected = false;  // likewise, and of scores with a correction; see chosen_experts
  std::string correction = "gate.e_score_correction_bias";  // its name in the MLP
  double added_to_sum = 0.0;           // to what the chosen scores are divided by, with norm_topk_prob
  double least_sum = 0.0;              // what they are divided by at least
  int n_group = 1;                     // of experts
  int topk_group = 1;                  // in how many of the groups a token's experts are
  double routed_scaling_factor = 1.0;  // of what the experts add
  bool sqrt_softplus_scores = false;   // DeepSeek V4: scores are sqrt(softplus(z)) of the router's z
  bool balanced_by_softmax = false;    // MiniMax, DeepSeek V4, GLM-5.3: their load_balancing_loss is of a
                                       // softmax of the z that their scores are no softmax of
  std::vector<bool> hashed = {};  // DeepSeek V4, of each layer: a token's experts are those that gate.tid2eid
                                  // has for it. Empty: in none
  bool stacked = false;        // Hunyuan 4, Mistral 4: experts in two matrices for all; see parameter_shapes
  bool granite_names = false;  // Granite: experts in two matrices for all; see parameter_shapes
  int moe_hidden_size = 0;     // Muse Spark; see Layers::narrow_experts. 0: experts read hidden_size
  bool plain_latents = false;  // Nemotron-H: with moe_hidden_size; see Layers::latent_experts
  double router_factor = 1.0;  // Muse Spark: of the router's logits
  bool added_to_mlp = false;   // Gemma 4: the experts add to the MLP; see Layers::mlp_and_experts
};

/// The gated delta rule, or a state space, in place of attention; see ops_recurrent.h.
struct DeltaRuleSettings {
  int key_heads = 0;       // linear_num_key_heads
  int value_heads = 0;     // linear_num_value_heads, a multiple of key_heads: as many memories are there
  int key_head_dim = 0;    // linear_key_head_dim
  int value_head_dim = 0;  // linear_value_head_dim
  int conv_kernel = 0;     // linear_conv_kernel_dim: how many tokens the convolution sees, the own included
  bool fused_projections = false;  // Qwen3-Next; see parameter_shapes
  bool state_space = false;        // Mamba-2, with key_heads groups of B and C, of key_head_dim states each
  bool channel_gates = false;      // Kimi Linear; see Layers::channel_gated_rule
  bool rates_in_row = false;       // GLM-5.3: its A_log is [1, H], not [H, 1]
  double decay_bound = 0.0;        // GLM-5.3; see Layers::channel_gated_rule
  bool convolution_alone = false;  // LFM2, of which conv_kernel alone is read; see Layers::short_convolution
  bool conv_bias = false;          // of its convolution, or Mamba-2's
  bool in_bias = false, out_bias = false;                           // of either's in_proj and out_proj
  double time_step_low = 0.0;                                       // what its steps of time are at least
  double time_step_high = std::numeric_limits<double>::infinity();  // and at most
  bool norms_gated = true;        // of a state space, whether what is gated is normed ...
  bool norm_before_gate = false;  // ... or the same before its gate
  bool beside_attention = false;  // Falcon-H1: the layers attend as well, and both are added to the stream
  std::vector<double> in_multipliers = {};  // of the columns z, x, B, C and dt of in_proj; empty: none
  double out_multiplier = 1.0;              // of out_proj
  double norm_eps = 0.0;                    // of a state space's norm; 0: rms_norm_eps
  bool logistic_gate = false;               // Qwen4-Exp: what is normed is gated by a sigmoid, not by silu
};

/// What a family calls some modules of a layer.
struct ModuleNames {
  std::string recurrence = "linear_attn", mlp = "mlp", gate_up = "gate_up_proj", down = "down_proj";
  std::string attention = "self_attn";
  std::string out = "o_proj", q_norm = "q_norm", k_norm = "k_norm", gate = "gate_proj", up = "up_proj";
  std::string before_attention = "input_layernorm", before_mlp = "post_attention_layernorm";
  std::string after_attention = "", after_mlp = "";  // of a sandwich; empty: those of LayerNorms
};

/// What Gemma 4 changes in some of its layers and gives to all of them. A full layer is one without a window.
struct Gemma4Settings {
  int global_head_dim = 0;             // of full layers, in place of head_dim; 0: they have that too
  int num_global_key_value_heads = 0;  // of full layers, in place of num_key_value_heads; 0: likewise
  bool attention_k_eq_v = false;       // the values of full layers are their keys before norm and rotation
  bool value_norm = false;             // values are normed as keys are, without a weight
  int num_kv_shared_layers = 0;  // the last layers, which have another's keys and values; see key_value_layer
  bool use_double_wide_mlp = false;     // the MLP of those is twice as wide
  int hidden_size_per_layer_input = 0;  // see Layers::per_layer_inputs; 0: there are none
  int vocab_size_per_layer_input = 0;   // the rows of their table
  bool layer_scalar = false;            // what a layer gives is multiplied by a number, which is not trained
};

/// A model's settings under Hugging Face's names.
struct ModelConfig {
  int vocab_size = 0;
  int hidden_size = 0;
  int intermediate_size = 0;
  int num_hidden_layers = 0;
  int num_attention_heads = 0;
  int window_attention_heads = 0;  // Step 3.7: of layers with a window; 0: they have as many as the others
  int num_key_value_heads = 0;
  int head_dim = 0;
  int rotary_dim = 0;         // the first entries of a head, which are rotated, while the rest pass; 0: all
  int window_rotary_dim = 0;  // Step 3.7: of layers with a window; 0: rotary_dim is theirs too
  double rms_norm_eps = 1e-6;
  bool qkv_bias = false;
  bool o_bias = false;
  bool mlp_bias = false;
  bool qk_norm = false;
  bool tie_word_embeddings = false;
  bool qk_norm_full_width = false;   // OLMo 2: qk_norm takes all heads as one group, before they are split
  bool qk_norm_by_head = false;      // Command R+: it has a weight for each head
  bool norms_rotated_heads = false;  // Hunyuan: qk_norm acts after the rotation, under other names
  bool fused_projections = false;    // one matrix for query, key and value, and one for gate and up
  bool fused_gate_up = false;        // GLM-4: only the second of these
  bool sandwich_norms = false;       // also the outputs of attention and MLP are normed
  bool glm_norm_names = false;       // the sandwich's norms are called as in GLM-4; see parameter_shapes
  bool norm_after = false;           // OLMo 2: only the outputs of attention and MLP are normed
  bool norm_adds_one = false;        // norms multiply by 1 + weight
  /// Muse Glimmer: rows of the embedding, queries and keys have norms without weights, the last norm
  /// multiplies by its weight whatever norm_adds_one says, and those of outputs have post_norm_eps.
  bool plain_norms = false;
  double post_norm_eps = 0.0;
  double residual_temperature = 0.0;  // Muse Spark; see Layers::gated_sum. 0: halves are added
  bool norm_centers = false;          // Cohere: norms are of what they read less its mean
  bool parallel = false;              // Cohere: attention and MLP read one norm of the layer's input
  double embedding_scale = 1.0;       // Granite's embedding_multiplier
  double residual_multiplier = 1.0;   // Granite: of what attention and MLP add to the residual stream
  /// Falcon-H1: factors of what q_proj and v_proj, k_proj, the output's projection, gate and down give.
  double query_multiplier = 1.0, key_multiplier = 1.0, attention_multiplier = 1.0, gate_multiplier = 1.0,
         down_multiplier = 1.0;
  double attention_scale = 0.0;          // of the scores; 0: 1 / sqrt(head_dim)
  double attn_logit_softcapping = 0.0;   // scores s become cap tanh(s / cap); 0: they don't
  double final_logit_softcapping = 0.0;  // the same of the logits
  double logits_scaling = 1.0;           // Granite: logits are divided by it, before any cap
  Activation hidden_act = Activation::kSilu;
  double swiglu_alpha = 0.0;     // GPT-OSS: experts have clamped_swiglu (mixture.h), not hidden_act; 0: no
  double swiglu_limit = 0.0;     // what gate and up are clamped to in it; Hunyuan 4, with alpha 0: of routed
                                 // experts before hidden_act; 0: they are not
  bool clamps_all_mlps = false;  // MiniMax M3: likewise of all MLPs, with gate above up in gate_up_proj
  bool limits_all_mlps = false;  // DeepSeek V4, GLM-5.3: likewise of the expert that every token has, and of
                                 // dense MLPs
  /// Step 3.7, of each layer: the limit of limited_swiglu (mixture.h), which its experts and its other MLPs
  /// have for the product of the activated gate and up; 0: they have that. Empty: in every layer.
  std::vector<double> expert_limits = {}, mlp_limits = {};
  RopeSettings rope = {};
  std::optional<RopeSettings> local_rope = std::nullopt;  // of the layers with a window, if it is another
  bool rope_interleaved = false;    // GLM-4: entries 2 i and 2 i + 1 are a pair, not i and i + rotary_dim / 2
  std::vector<bool> no_rope = {};   // of each layer: neither queries nor keys rotate (Hugging Face's
                                    // no_rope_layers is 0 there). Empty: all layers rotate
  double query_scale_beta = 0.0;    // Ministral 3 (llama_4_scaling_beta): rotated queries are multiplied by
  double query_scale_original = 0;  // 1 + beta ln(1 + floor(position / original)); beta 0: they aren't
  bool output_gate_map = false;     // Muse Glimmer: or of a map of its own, self_attn.gate_proj
  bool gates_heads = false;         // Step 3.7: of one number for each head, of self_attn.g_proj
  bool attention_output_gate = false;       // Qwen3-Next: what a head mixes is multiplied by a sigmoid; see
                                            // parameter_shapes
  std::vector<bool> linear_attention = {};  // of each layer: the gated delta rule. Empty: no layer has it
  std::vector<bool> no_mixer = {}, no_mlp = {};  // Nemotron-H, of each layer: it is one half of a layer,
                                                 // whose only norm is called `norm`. Empty: all are whole
  DeltaRuleSettings delta_rule = {};
  ModuleNames modules = {};
  LatentAttentionSettings latent = {};  // in place of head_dim and num_key_value_heads
  IndexerSettings indexer = {};         // of latent attention, or of blocks
  CompressedSettings compressed = {};
  HyperSettings hyper = {};
  NgramSettings ngrams = {};
  SharedBlockSettings shared_blocks = {};
  Gemma4Settings gemma4 = {};
  bool attention_sinks = false;   // GPT-OSS: one more score of every head, a parameter, whose value is 0
  std::vector<int> windows = {};  // of each layer: how many tokens a query sees, itself included; 0: all.
                                  // Empty: all in every layer
  MixtureSettings mixture = {};
  int pad_token_id = -1;    // its embedding is a constant of the network's input; -1: there is none
  bool has_lm_head = true;  // false: a critic, which only has a value head
  bool has_value_head = false;
  /// By module ("model.layers.0.self_attn.q_proj", "lm_head", "model.embed_tokens",
  /// "model.layers.0.mlp.experts.down_proj").
  std::map<std::string, LoraAdapter> adapters = {};
  /// By module ("model.embed_tokens", or "lm_head" where it is not tied): rows of its weight that are trained
  /// apart from it, which they replace (PEFT's trainable tokens).
  std::map<std::string, std::vector<int>> trained_rows = {};

  int window(int layer) const { return windows.empty() ? 0 : windows[static_cast<std::size_t>(layer)]; }
  bool rotates(int layer) const { return no_rope.empty() || !no_rope[static_cast<std::size_t>(layer)]; }
  bool is_linear(int layer) const {
    return !linear_attention.empty() && linear_attention[static_cast<std::size_t>(layer)];
  }
  bool runs_block(int layer) const {
    return !shared_blocks.layers.empty() && shared_blocks.layers[static_cast<std::size_t>(layer)];
  }
  /// Of a layer that runs a block: how many below it run one; and the lowest layer that runs the same block,
  /// under whose name its parameters are.
  int block_use(int layer) const;
  int block_owner(int layer) const;
  bool has_mixer(int layer) const { return no_mixer.empty() || !no_mixer[static_cast<std::size_t>(layer)]; }
  bool has_mlp(int layer) const { return no_mlp.empty() || !no_mlp[static_cast<std::size_t>(layer)]; }
  bool is_sparse(int layer) const {
    return mixture.num_experts > 0 && mixture.sparse[static_cast<std::size_t>(layer)];
  }
  bool is_latent() const { return latent.kv_lora_rank > 0; }
  /// With latent attention, of a layer's keys the entries that all heads share, and the others.
  int latent_rope(int layer) const {
    return latent.trained_positions && !rotates(layer) ? 0 : latent.qk_rope_head_dim;
  }
  /// The layer whose latents a layer reads.
  int latent_source(int layer) const {
    return latent.sources.empty() ? layer : latent.sources[static_cast<std::size_t>(layer)];
  }
  int latent_nope(int layer) const {
    return latent.qk_nope_head_dim + latent.qk_rope_head_dim - latent_rope(layer);
  }
  bool is_compressed() const { return compressed.q_lora_rank > 0; }
  bool has_ngrams(int layer) const {
    return !ngrams.modules.empty() && ngrams.modules[static_cast<std::size_t>(layer)] >= 0;
  }
  bool picks_key_blocks(int layer) const {
    return indexer.block > 0 && indexer.layers[static_cast<std::size_t>(layer)];
  }
  bool is_hashed(int layer) const {
    return !mixture.hashed.empty() && mixture.hashed[static_cast<std::size_t>(layer)];
  }
  /// The layer whose indexer picks what a layer sees.
  int picker_of(int layer) const {
    while (!indexer.shared.empty() && indexer.shared[static_cast<std::size_t>(layer)]) --layer;
    return layer;
  }
  bool is_full(int layer) const { return window(layer) == 0; }
  int head_dim_of(int layer) const {
    return is_full(layer) && gemma4.global_head_dim > 0 ? gemma4.global_head_dim : head_dim;
  }
  int key_value_heads_of(int layer) const {
    const int global = gemma4.num_global_key_value_heads;
    return is_full(layer) && global > 0 ? global : num_key_value_heads;
  }
  int query_heads_of(int layer) const {
    return !is_full(layer) && window_attention_heads > 0 ? window_attention_heads : num_attention_heads;
  }
  int rotary_entries(int layer) const {
    if (!is_full(layer) && window_rotary_dim > 0) return window_rotary_dim;
    return rotary_dim == 0 ? head_dim_of(layer) : rotary_dim;
  }
  bool shares_keys(int layer) const { return layer >= num_hidden_layers - gemma4.num_kv_shared_layers; }
  bool values_are_keys(int layer) const { return gemma4.attention_k_eq_v && is_full(layer); }
  /// The layer whose keys and values a layer sees: its own, or of one that shares them those of the last
  /// layer with keys of its own that is full or not as it is; -1: there is none.
  int key_value_layer(int layer) const;
  int mlp_width(int layer) const {
    return gemma4.use_double_wide_mlp && shares_keys(layer) ? 2 * intermediate_size : intermediate_size;
  }
};

/// Parameters, or their gradients, under Hugging Face's names ("model.layers.0.self_attn.q_proj.weight").
/// Weights of linear layers are [out, in]; norms and biases are [1, n]. "lm_head.weight" is absent where
/// embeddings are tied; "value_head.weight" is [1, hidden_size]; an adapter adds "<module>.lora_A.weight",
/// "<module>.lora_B.weight" and perhaps "<module>.lora_B.bias", trained rows
/// "<module>.token_adapter.trainable_tokens_delta".
using Weights = std::map<std::string, Matrix>;

/// The same on a tape.
using Parameters = std::map<std::string, Var>;

/// Whether the parameter of that name is held constant, and has the gradient 0, although the loss depends on
/// it: Gemma 4's layer_scalar, and DeepSeek V4's tables of experts.
bool is_constant(const std::string& name);

/// "model.layers.3."
std::string layer_prefix(int layer);

/// The names of a layer's norms after its prefix, in the order in which they act; empty: there is none.
struct LayerNorms {
  std::string before_attention, after_attention, before_mlp, after_mlp;
};

/// Before attention and MLP `input_layernorm` and `post_attention_layernorm`. In a sandwich
/// `input_layernorm`, `post_attention_layernorm`, `pre_feedforward_layernorm` and
/// `post_feedforward_layernorm`, the last three of which are with glm_norm_names `post_self_attn_layernorm`,
/// `post_attention_layernorm` and `post_mlp_layernorm`, or those of ModuleNames. In a parallel layer
/// `input_layernorm` alone. With norm_after the names of a sandwich, of what comes after alone.
LayerNorms layer_norms(const ModelConfig& config, int layer);

/// The name and shape (rows, columns) of every parameter. Names are those of transformers 5's modules:
/// - norms: `model.norm`, and of a layer those of layer_norms.
/// - fused projections: `self_attn.qkv_proj` with the rows of query, key and value below one another, and
///   `mlp.gate_up_proj` with gate above up.
/// - norms_rotated_heads: `self_attn.query_layernorm`, `self_attn.key_layernorm` in place of `q_norm`,
/// `k_norm`.
/// - qk_norm_full_width: `self_attn.q_norm` [1, H E], `self_attn.k_norm` [1, K E].
/// - attention_output_gate: `self_attn.q_proj` is twice as wide, and of every head has the rows of its query
///   and then those of its gate.
/// - gates_heads: `self_attn.g_proj` [H, hidden_size] for the H heads of the layer.
/// - linear_attention: `linear_attn.in_proj_qkv`, the queries of all K key heads above their keys above the
///   values of all H heads, `in_proj_z`, `in_proj_b` and `in_proj_a` (of H rows each), `conv1d` [C, taps] for
///   the C columns of query, key and value (Hugging Face's [C, 1, taps]), `norm` [1, value_head_dim],
///   `out_proj`, and without ".weight" `A_log` and `dt_bias` [1, H]. Fused, `in_proj_qkvz` has of every key
///   head its query, its key, the values of its H / K heads and then their z; `in_proj_ba` likewise b and a.
///   A state space has instead `mamba.in_proj`, the rows of z above those of C columns x, B and C above those
///   of dt, `conv1d.bias` [1, C], `norm` [1, H value_head_dim], and without ".weight" `D` [1, H].
///   A convolution alone has `conv.in_proj` [3 D, D], `conv.conv` [D, taps] and `conv.out_proj`.
///   With channel_gates, of H heads of E entries, `self_attn.q_proj`, `k_proj` and `v_proj`, their
///   convolutions `q_conv1d`, `k_conv1d` and `v_conv1d` [H E, taps] (which files call so, and transformers
///   holds as one), `g_a_proj` of E rows and `g_b_proj` of H E, `b_proj` of H, `o_norm` [1, E] and `o_proj`;
///   in `self_attn.forget_gate` likewise `f_a_proj` and `f_b_proj`, and without ".weight" `dt_bias` [1, H E]
///   and `A_log` [H, 1] (Hugging Face's [1, 1, H, 1]), with rates_in_row [1, H].
/// - latent attention, with H heads: `self_attn.q_proj`, or `q_a_proj` to the rank, `q_a_layernorm` and
///   `q_b_proj`, of every head the rows that do not rotate and then those that do; `kv_a_proj_with_mqa` to
///   the rank and below it the key that rotates, `kv_a_layernorm`, and `kv_b_proj`, of every head its key and
///   then its value. qkv_bias is of the `_a_` projections.
///   With trained_positions also `self_attn.softmax_scaling.scale` and `.bias` [1, H], of an indexer the same
///   of its heads and `q_input_norm`, and of the model `rotary_emb.alpha` [1, qk_rope_head_dim / 2].
/// - an indexer of its own: `self_attn.indexer.wq_b` [heads head_dim, q_lora_rank], `wk` [head_dim,
///   hidden_size], `k_norm` [1, head_dim] with `.weight` and `.bias`, and `weights_proj` [heads,
///   hidden_size], none of which ever has a gradient but 0. MiniMax M3's has `q_proj` [heads head_dim,
///   hidden_size], `k_proj` [head_dim, hidden_size], `q_norm` and `k_norm` [1, head_dim] instead.
///   hidden_size], none of which ever has a gradient but 0. Of one that picks groups also
///   `index_kpool_compress_ape` [group, head_dim] and `index_kpool_compress_gate` [head_dim, hidden_size],
///   both without ".weight".
/// - hyper-connections of S streams of D entries: `attn_hc` and `ffn_hc`, each with `.fn` [2 S, S D], `.base`
///   [1, 2 S] and `.scale` [1, 2], and of the model, but for head_reads_mean, `hc_head.hc_fn` [S, S D],
///   `hc_base` [1, S] and `hc_scale` [1, 1].
///   Where streams are mixed `attn_hc` and `ffn_hc` have S S rows more in `.fn` and `.base`, of row j of the
///   matrix those from 2 S + j S on, and a third number in `.scale`.
/// - DeepSeek V4's attention: `self_attn.q_a_proj`, `q_a_norm` and `q_b_proj`, `kv_proj` [head_dim,
///   hidden_size], `kv_norm`, `o_a_proj` [o_groups o_lora_rank, H E / o_groups], `o_b_proj`, `sinks`; of a
///   layer with blocks of rate tokens `self_attn.compressor` with `kv_proj`, `gate_proj` [n, hidden_size],
///   `position_bias` [rate, n] without ".weight" and `kv_norm` [1, head_dim], where n is head_dim or, of
///   blocks that overlap, twice that; and then `compressor.indexer` with the same of the indexer's head_dim,
///   `q_b_proj` and `scorer.weights_proj`, none of which ever has a gradient but 0.
/// - a hashed layer has `mlp.gate.tid2eid` [vocab_size, num_experts_per_tok], whole numbers, in place of a
///   router's correction.
/// - shared blocks: of each layer that runs one `linear` and, below `mamba_decoder`, its norm and state
/// space;
///   of the lowest that runs the same one, below `shared_transformer`, `self_attn` with maps from
///   2 hidden_size, `feed_forward.gate_up_proj` with gate above up, `feed_forward.down_proj`,
///   `input_layernorm` [1, 2 hidden_size] and `pre_ff_layernorm`, and for the u-th such layer that runs it
///   `feed_forward.gate_up_proj_adapter_list.u.0` and `.1`, with attention_adapters also
///   `self_attn.linear_q_adapter_list.u.0` and so on.
/// - attention_sinks: `self_attn.sinks` [1, H], without ".weight".
/// - a sparse layer: the router `mlp.gate` and its experts `mlp.experts.0` and so on, each with `gate_proj`,
///   `up_proj` and `down_proj` (which Mixtral's files call `block_sparse_moe.gate`, `experts.0.w1`, `w3` and
///   `w2`); `mlp.shared_expert` with the same three, and `mlp.shared_expert_gate` [1, hidden_size]; or
///   `mlp.shared_experts` alone. Corrected, there is `mlp.gate.e_score_correction_bias` [1, E], or of
///   another name in the MLP, which never has a gradient.
/// - granite_names: the router `block_sparse_moe.router.layer`, `block_sparse_moe.input_linear` [E 2 F, D],
/// of
///   every expert gate above up, and `block_sparse_moe.output_linear` [E D, F]: Hugging Face's tensors
///   [E, 2 F, D] and [E, D, F] with the first two dimensions as one; and the layer's MLP as a shared expert.
/// - biased_interleaved: the router `mlp.router` with `.weight` and `.bias`, and without ".weight"
///   `mlp.experts.gate_up_proj` [E D, 2 F], `gate_up_proj_bias` [E, 2 F], `down_proj` [E F, D] and
///   `down_proj_bias` [E, D] for E experts of width F and hidden size D: Hugging Face's tensors [E, D, 2 F]
///   and [E, F, D] with the first two dimensions as one. They multiply from the right, and column 2 j of
///   gate_up is row j of a gate, column 2 j + 1 of an up.
/// - Gemma 4: `self_attn.k_proj`, `v_proj` and `k_norm` are of layers with keys of their own, and `v_proj` is
///   not of full ones with attention_k_eq_v. `model.embed_tokens_per_layer` and
///   `model.per_layer_model_projection`, both of P numbers for every layer, and
///   `model.per_layer_projection_norm` [1, P]; of a layer
///   `per_layer_input_gate`, `per_layer_projection` and `post_per_layer_input_norm`; without ".weight"
///   `layer_scalar` [1, 1], which never has a gradient.
/// - added_to_mlp: `mlp` as of a dense layer, the norms `post_feedforward_layernorm_1`,
///   `pre_feedforward_layernorm_2` and `post_feedforward_layernorm_2`, the router `router.proj` and without
///   ".weight" its `router.scale` [1, D] and `router.per_expert_scale` [1, E], and `experts.gate_up_proj`
///   [E 2 F, D], of every expert gate above up, and `experts.down_proj` [E D, F]: Hugging Face's tensors
///   [E, 2 F, D] and [E, D, F] with the first two dimensions as one.
/// Throws std::invalid_argument if a size is not positive (layers may be none), the key/value heads do not
/// divide the query heads or the delta rule's key heads its value heads, head_dim or rotary_dim is odd or
/// more is rotated than there is, windows, layers that do not rotate or sparse layers are not given for each
/// layer, a token has no or more experts than there are, a factor or divisor is not positive, settings
/// exclude each other (norm_after and sandwich_norms) or lack what they change, no layer has keys for one
/// that shares them, or an adapter or trained rows belong to a module that can't have them.
std::map<std::string, std::pair<Index, Index>> parameter_shapes(const ModelConfig& config);

/// Throws what parameter_shapes does, but for adapters and trained rows.
void require_valid(const ModelConfig& config);

}  // namespace streambp::STREAMBP_REFERENCE
