// What a decoder is: the settings of config.json that change the mathematics, under Hugging Face's names
// where it has one.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "streambp/model/config/attention_settings.h"
#include "streambp/model/config/mixture_settings.h"
#include "streambp/model/config/ngram_settings.h"
#include "streambp/model/config/parameter_names.h"
#include "streambp/model/config/parameter_shapes.h"
#include "streambp/model/config/shared_blocks.h"
#include "streambp/ops/mlp/activation.h"
#include "streambp/ops/rows/pick_kind.h"

namespace streambp {

enum class RopeType { kDefault, kLinear, kDynamic, kLlama3, kYarn, kLongrope, kProportional };

/// Rotary position embedding, as transformers' modeling_rope_utils.py defines each type.
struct RopeSettings {
  RopeType type = RopeType::kDefault;
  double theta = 10000.0;
  double factor = 1.0;                           // linear, dynamic, llama3, yarn, proportional
  double low_freq_factor = 1.0;                  // llama3
  double high_freq_factor = 4.0;                 // llama3
  int64_t original_max_position_embeddings = 0;  // llama3, yarn, longrope; dynamic: max_position_embeddings
  double beta_fast = 32.0;                       // yarn
  double beta_slow = 1.0;                        // yarn
  bool truncate = true;                          // yarn: whether the ramp's ends are whole numbers
  double attention_factor = 1.0;                 // yarn, longrope: cosines and sines are multiplied by it
  double proportion = 1.0;           // proportional: how much of a head turns; the other frequencies are 0
  std::vector<double> short_factor;  // longrope, [rotary_dim / 2]
  std::vector<double> long_factor;   // longrope, [rotary_dim / 2]

  bool operator==(const RopeSettings&) const = default;
};

/// The gated delta rule of layers that are recurrent instead of attending (Qwen3-Next, Qwen3.5, Kimi Linear),
/// or the state space in its place (Mamba-2), whose groups of B and C are key heads, or a convolution between
/// two gates alone (LFM2), which is as one value head without keys.
struct DeltaRuleSettings {
  int64_t key_heads = 0;     // linear_num_key_heads
  int64_t value_heads = 0;   // linear_num_value_heads
  int64_t key_head_dim = 0;  // linear_key_head_dim
  int64_t value_head_dim = 0;
  int64_t conv_kernel = 0;         // linear_conv_kernel_dim: the tokens that the convolution sees
  bool fused_projections = false;  // qwen3_next: in_proj_qkvz and in_proj_ba
  bool state_space = false;
  bool convolution_alone = false;
  bool channel_gates = false;  // kimi_linear: a decay for each entry of a key, and maps and norm of its own
  bool rates_in_row = false;   // glm5_next_text: their A_log is [heads], not [1, 1, heads, 1]
  double decay_bound = 0.0;    // glm5_next_text (linear_lower_bound): of logarithms of decays; 0: none
  /// falcon_h1: the layers attend as well, to the same norm of their input, and what both give is added.
  bool beside_attention = false;
  // Of the state space and of lfm2: whether the convolution has a bias, and in_proj and out_proj.
  bool conv_bias = false, in_bias = false, out_bias = false;
  // Of the state space: what steps of time are cut off at.
  double time_step_low = 0.0;
  double time_step_high = std::numeric_limits<double>::infinity();
  bool norms_gated = true;        // falcon_h1 (mamba_rms_norm): whether there is a norm of what is gated ...
  bool norm_before_gate = false;  // ... or of the same before its gate
  double norm_eps = 0.0;          // zamba2: of that norm; 0: rms_norm_eps
  bool logistic_gate = false;     // qwen4_exp_text (output_gate_type): the gate of the output is no silu
  /// falcon_h1: factors of the rows of in_proj for gates, x, B, C and steps (ssm_in_multiplier times those of
  /// ssm_multipliers), and of out_proj (ssm_out_multiplier).
  std::array<double, 5> in_multipliers = {1.0, 1.0, 1.0, 1.0, 1.0};
  double out_multiplier = 1.0;

  int64_t keys() const { return key_heads * key_head_dim; }        // the width of all keys, or queries
  int64_t values() const { return value_heads * value_head_dim; }  // of all values
  int64_t channels() const { return 2 * keys() + values(); }       // of the convolution

  bool operator==(const DeltaRuleSettings&) const = default;
};

/// What differs in Gemma 4 from layer to layer, and what its layers read but the layer below. See Config for
/// those that see all tokens.
struct Gemma4Settings {
  int64_t global_head_dim = 0;             // of the layers that see all tokens; 0: the model is no Gemma 4
  int64_t num_global_key_value_heads = 0;  // of the same
  bool attention_k_eq_v = false;           // in the same: values are the projected keys
  /// The last layers have no keys and values of their own: they read those of the last layer of their kind
  /// (with a window or without) below them.
  int64_t num_kv_shared_layers = 0;
  bool use_double_wide_mlp = false;  // of those last layers
  /// Each layer adds a gated function of a small vector of the token, from a second embedding and a
  /// projection of the first; 0: none.
  int64_t hidden_size_per_layer_input = 0;
  int64_t vocab_size_per_layer_input = 0;

  bool operator==(const Gemma4Settings&) const = default;
};

/// Where the norms of a layer stand, by the names of their modules; empty: there is none.
struct NormNames {
  std::string before_attention;
  std::string after_attention;
  std::string before_mlp;
  std::string after_mlp;
};

/// Settings of one decoder. Sizes are positive and consistent once parsed: heads are a multiple of key/value
/// heads and head_dim and rotary_dim are even.
struct Config {
  std::string family;  // model_type; of a multimodal model its text part's
  int64_t vocab_size = 0;
  int64_t hidden_size = 0;
  int64_t intermediate_size = 0;
  int64_t num_hidden_layers = 0;
  int64_t num_attention_heads = 0;
  int64_t num_key_value_heads = 0;
  int64_t head_dim = 0;    // gemma4: of the layers with a window
  int64_t rotary_dim = 0;  // the first entries of a head, which `rope` rotates: head_dim times
                           // partial_rotary_factor; gemma4: global_head_dim
  int64_t window_attention_heads = 0, window_rotary_dim = 0;  // step3p5: of layers with a window; 0: others'
  int64_t max_position_embeddings = 0;
  double rms_norm_eps = 1e-6;
  bool qkv_bias = false;  // qwen2: always; most others: attention_bias; deepseek_v3: of the maps to its ranks
  bool o_bias = false;    // attention_bias, but for qwen2 and glm4
  bool mlp_bias = false;  // llama, granite, smollm3
  bool qk_norm = false;   // qwen3, gemma3, olmo: RMS norm of queries and keys before they are rotated
  bool qk_norm_full_width = false;  // olmo: of all heads as one group, else of every head
  bool qk_norm_by_head = false;     // cohere: of every head, with a weight of its own for each
  bool tie_word_embeddings = false;
  bool value_model = false;        // a critic or reward model: score.weight [1, D] instead of an LM head
  bool fused_projections = false;  // phi3: one qkv_proj, one gate_up_proj
  bool fused_gate_up = false;      // glm4: one gate_up_proj
  bool sandwich_norms = false;     // gemma2, gemma3, glm4: also the outputs of attention and MLP are normed
  bool glm_norm_names = false;     // glm4: the sandwich's norms have other names
  bool norms_values = false;       // gemma4: also values have an RMS norm, without a weight
  bool layer_scalar = false;       // gemma4: a layer's output is multiplied by a number that is not trained
  bool norm_after = false;         // olmo: only the outputs of attention and MLP are normed
  bool norm_adds_one = false;      // gemma: norms multiply by 1 + weight
  bool norm_centers = false;       // cohere: norms are of what they read less its mean
  /// muse_glimmer: rows of the embedding, queries and keys have RMS norms without weights, and the last norm
  /// multiplies by its weight where the others add one; the norms of outputs have an epsilon of their own.
  bool plain_norms = false;
  double post_norm_eps = 0.0;
  /// muse_spark: heads of what attention gives have a norm without a weight, before its gate, and so has what
  /// attention adds; what the MLP adds is normed after it is scaled (residual_gate.h). Both are added by
  /// gates of this temperature; 0: by none of this.
  double residual_temperature = 0.0;
  bool parallel = false;                // cohere: attention and MLP read one norm of the layer's input
  double embedding_scale = 1.0;         // gemma: sqrt(hidden_size); granite: embedding_multiplier
  bool rounds_embedding_scale = false;  // gemma: to the dtype of the parameters
  double residual_multiplier = 1.0;     // granite: of what attention and MLP add to the residual stream
  double logits_scaling = 1.0;          // granite, cohere (1 / logit_scale): the logits are divided by it
  /// falcon_h1: factors of what maps give: of q_proj and v_proj, of k_proj, of o_proj, of gate_proj and of
  /// down_proj.
  double query_multiplier = 1.0, key_multiplier = 1.0, attention_multiplier = 1.0, gate_multiplier = 1.0,
         down_multiplier = 1.0;
  double attention_scale = 0.0;          // of the scores: granite's attention_multiplier, or head_dim or
                                         // query_pre_attn_scalar to the power -1/2
  double attn_logit_softcapping = 0.0;   // gemma2: scores s become cap tanh(s / cap); 0: they don't
  double final_logit_softcapping = 0.0;  // gemma2: the same of the logits
  Activation hidden_act = Activation::kSilu;
  double swiglu_alpha = 0.0;     // gpt_oss: experts have a clamped gate instead; 0: hidden_act
  bool clamps_all_mlps = false;  // minimax_m3_vl_text: and every other MLP has it too
  double swiglu_limit = 0.0;     // what gate and up are clamped to in it; hy_v4, with alpha 0: before
                                 // hidden_act, in the routed experts alone; 0: they aren't
  bool limits_all_mlps = false;  // deepseek_v4, glm5_next_text: swiglu_limit is all MLPs'
  /// step3p5, of each layer: what act(gate) is at most and up is clamped to, in experts and in other MLPs; 0:
  /// neither is. Empty: in no layer.
  std::vector<double> expert_limits, mlp_limits;
  bool attention_sinks = false;        // gpt_oss, hy_v4: one more score of every head, whose value is 0
  bool attention_output_gate = false;  // qwen3_next: what attention gives times sigmoid of a part of q_proj
  bool output_gate_map = false;        // muse_glimmer, hy_v4: or of a map of its own, self_attn.gate_proj
  bool gates_heads = false;            // step3p5: of one that gives a number for each head, self_attn.g_proj
  RopeSettings rope;
  std::optional<RopeSettings> local_rope;  // gemma3, gemma4, olmo3, step3p5: of the layers with a window
  bool rope_interleaved = false;       // glm4: entries 2i and 2i + 1 are rotated together, not i and i + R/2
  std::vector<bool> no_rope;           // smollm3, of each layer: nothing is rotated. Empty: in no layer
  double query_scale_beta = 0.0;       // ministral3 (llama_4_scaling_beta): rotated queries are multiplied by
  int64_t query_scale_original = 0;    // 1 + beta log(1 + floor(position / original)); beta 0: they aren't
  std::vector<int64_t> windows;        // of each layer: how many tokens a query sees, itself included; 0: all
  std::vector<bool> linear_attention;  // of each layer: the delta rule instead of attention. Empty: none
  std::vector<bool> no_mixer, no_mlp;  // nemotron_h, of each layer: whether it lacks its first half (and is
                                       // then recurrent, with no state) or its second. Empty: none does
  DeltaRuleSettings delta_rule;
  LatentAttentionSettings latent;
  IndexerSettings indexer;
  CompressedSettings compressed;
  HyperSettings hyper;
  NgramSettings ngrams;
  SharedBlockSettings shared_blocks;
  Gemma4Settings gemma4;
  MixtureSettings mixture;
  /// The embedding's padding_idx: its row gets no gradient from the input's side, even where the token is
  /// real.
  std::optional<int64_t> pad_token_id;
  std::string dtype = "float32";  // of the stored weights, as config.json names it

  bool has_window(int64_t layer) const { return windows[static_cast<size_t>(layer)] > 0; }
  bool rotates(int64_t layer) const { return no_rope.empty() || !no_rope[static_cast<size_t>(layer)]; }
  bool is_recurrent(int64_t layer) const {
    return !linear_attention.empty() && linear_attention[static_cast<size_t>(layer)];
  }
  /// Whether it attends: instead of a recurrence, or next to one.
  bool attends(int64_t layer) const {
    return has_mixer(layer) && (!is_recurrent(layer) || delta_rule.beside_attention || runs_block(layer));
  }
  bool has_shared_blocks() const { return !shared_blocks.layers.empty(); }
  /// Whether a layer runs a shared block; how many below it do; and the lowest layer that runs the same one.
  bool runs_block(int64_t layer) const;
  int64_t block_use(int64_t layer) const;
  int64_t block_owner(int64_t layer) const;
  /// Whether layers leave gradients in parameters that are final with the embedding's.
  bool layers_share_parameters() const { return layers_read_embedding() || latent.trained_positions; }
  bool layers_read_embedding() const { return has_per_layer_inputs() || has_shared_blocks(); }
  bool has_mixer(int64_t layer) const { return no_mixer.empty() || !no_mixer[static_cast<size_t>(layer)]; }
  bool has_mlp(int64_t layer) const { return no_mlp.empty() || !no_mlp[static_cast<size_t>(layer)]; }
  /// Whether MLPs have a gate, and not an up projection alone.
  bool has_gate() const { return hidden_act != Activation::kRelu2; }
  /// Whether what gate and up projection give can be kept (Settings::keep).
  bool can_store_gate_up(int64_t layer) const { return has_mlp(layer) && !is_sparse(layer) && has_gate(); }
  bool is_latent() const { return latent.kv_lora_rank > 0; }
  bool is_compressed() const { return compressed.q_lora_rank > 0; }
  /// Whether a row of the layer sees blocks of rows besides its window.
  bool has_blocks(int64_t layer) const { return is_compressed() && compressed.rate_of(layer) > 0; }
  bool is_global(int64_t layer) const { return gemma4.global_head_dim > 0 && !has_window(layer); }
  /// Sizes of a layer's attention, and of its dense MLP.
  int64_t head_dim_of(int64_t layer) const { return is_global(layer) ? gemma4.global_head_dim : head_dim; }
  int64_t key_value_heads_of(int64_t layer) const {
    return is_global(layer) ? gemma4.num_global_key_value_heads : num_key_value_heads;
  }
  int64_t local_rotary_dim() const {
    if (window_rotary_dim > 0) return window_rotary_dim;
    return gemma4.global_head_dim > 0 ? head_dim : rotary_dim;
  }
  int64_t query_heads_of(int64_t layer) const {
    return window_attention_heads > 0 && has_window(layer) ? window_attention_heads : num_attention_heads;
  }
  int64_t query_width(int64_t layer) const { return query_heads_of(layer) * head_dim_of(layer); }
  /// What a layer's MLPs are clamped to: those of its experts, or any other; 0: they aren't.
  double mlp_limit(int64_t layer, bool of_expert) const;
  int64_t intermediate_size_of(int64_t layer) const {
    return shares_keys_values(layer) && gemma4.use_double_wide_mlp ? 2 * intermediate_size
                                                                   : intermediate_size;
  }
  bool has_indexers() const { return indexer.topk > 0; }
  /// The layer whose indexer picks what this one sees: itself, or the nearest below that has one.
  int64_t picker_of(int64_t layer) const {
    while (!indexer.shared.empty() && indexer.shared[static_cast<size_t>(layer)]) --layer;
    return layer;
  }
  /// Whether the layer picks what it sees by an indexer of its own.
  bool has_indexer(int64_t layer) const;
  /// Whether indexers pick blocks of keys for groups of query heads (MiniMax M3).
  bool picks_key_blocks() const { return indexer.block > 0; }
  /// What indexers pick.
  PickKind pick_kind() const;
  bool keys_are_values(int64_t layer) const { return is_global(layer) && gemma4.attention_k_eq_v; }
  /// Whether a layer reads keys and values of one below, which one, and whether a layer's are read by others.
  bool shares_keys_values(int64_t layer) const {
    return latent.shares(layer) || layer >= num_hidden_layers - gemma4.num_kv_shared_layers;
  }
  int64_t producer_of(int64_t layer) const;
  /// Whether the backward pass can only take the layer's chunks from last to first.
  bool in_reverse_alone(int64_t layer) const {
    return is_recurrent(layer) || shares_keys_values(layer) || has_consumers(layer);
  }
  bool has_consumers(int64_t layer) const;
  bool has_per_layer_inputs() const { return gemma4.hidden_size_per_layer_input > 0; }
  /// What a token hands on to later ones in a layer that attends, [heads, width] each: its keys and values,
  /// or with latent attention what they are projected from and the rotated key, or DeepSeek V4's key and what
  /// its compressor makes blocks of.
  int64_t carry_heads(int64_t layer) const { return is_latent() ? 1 : key_value_heads_of(layer); }
  int64_t carry_key_width(int64_t layer) const {
    return is_latent() ? latent.kv_lora_rank : head_dim_of(layer);
  }
  int64_t carry_value_width(int64_t layer) const {
    if (is_compressed()) return has_blocks(layer) ? (compressed.overlaps_in(layer) ? 4 : 2) * head_dim : 0;
    return is_latent() ? latent_rope(layer) : head_dim_of(layer);
  }
  /// With latent attention: the entries of a layer's keys that all heads have in common, and the others.
  int64_t latent_rope(int64_t layer) const {
    return latent.trained_positions && !rotates(layer) ? 0 : latent.qk_rope_head_dim;
  }
  int64_t latent_nope(int64_t layer) const {
    return latent.qk_nope_head_dim + latent.qk_rope_head_dim - latent_rope(layer);
  }
  /// Numbers of a token in both.
  int64_t carry_width(int64_t layer) const {
    return carry_heads(layer) * (carry_key_width(layer) + carry_value_width(layer));
  }
  /// Numbers of a token that attention gives.
  int64_t attention_width(int64_t layer) const {
    if (is_compressed()) return compressed.o_groups * compressed.o_lora_rank;
    return is_latent() ? num_attention_heads * latent.v_head_dim : query_width(layer);
  }
  /// Numbers of a token that q_proj gives: queries and, where it makes them, their gates.
  int64_t projected_query_width(int64_t layer) const {
    return query_width(layer) * (attention_output_gate ? 2 : 1);
  }
  /// Whether a layer's attention can be kept for another pass (Settings::keep): not in recurrent layers, nor
  /// yet with latent attention or DeepSeek V4's; and what its keys and values are made of: only where they
  /// are its own.
  bool can_store_attention(int64_t layer) const {
    return !is_recurrent(layer) && !is_latent() && !is_compressed();
  }
  bool can_store_keys_values(int64_t layer) const {
    return can_store_attention(layer) && !shares_keys_values(layer);
  }
  bool is_sparse(int64_t layer) const {
    return mixture.num_experts > 0 && mixture.sparse[static_cast<size_t>(layer)];
  }
  /// Whether the outputs of attention and MLP are normed before they are added to the residual stream.
  bool norms_outputs() const { return sandwich_norms || norm_after; }
  bool has_streams() const { return hyper.streams > 0; }
  /// Whether what the final norm reads is a sum of streams by gates.
  bool has_head_gates() const { return has_streams() && !hyper.head_reads_mean && !has_low_rank_streams(); }
  /// Whether maps of all streams, and not gates of each, say what is read of them and given to them.
  bool has_low_rank_streams() const { return hyper.lowrank > 0; }
  /// Numbers of a token that experts read and give.
  int64_t expert_size() const { return mixture.moe_hidden_size > 0 ? mixture.moe_hidden_size : hidden_size; }
  bool has_residual_gates() const { return residual_temperature > 0.0; }
  /// Numbers of a token between two layers: those of its residual streams, side by side.
  int64_t residual_width() const { return has_streams() ? hyper.streams * hidden_size : hidden_size; }
  /// Whether the backward pass reads what attention and MLP give: a norm's, or that of their shares in
  /// several streams.
  bool reads_outputs() const { return norms_outputs() || has_streams(); }
  NormNames norm_names(int64_t layer) const;

  bool operator==(const Config&) const = default;
};

/// Reads a config.json in the spelling of transformers 4 (rope_theta, rope_scaling, torch_dtype) or 5
/// (rope_parameters, dtype). Of a multimodal Gemma 3 or 4, Mistral 3 or Qwen3.5 it takes the text part.
/// Throws InputError, naming the file, the key, what it holds and what is known, for a file that is missing
/// or not JSON, an unknown model_type or rope type, a missing or impossible size, two keys that contradict
/// each other, and every setting that would change the mathematics in a way not supported here (other
/// activations, attention in both directions, ...): a setting is honoured or refused, never ignored. Where a
/// key is absent the default of the family's class in transformers holds, unless that is hardly ever meant
/// (key/value heads, Mistral's window): then the key is required.
Config read_config(const std::filesystem::path& path);

/// As read_config, from text; `where` names the source in errors.
Config parse_config(std::string_view json, const std::string& where);

/// A published architecture, or a small one for the CPU, by name (`qwen3-8b`, `qwen3-cpu`, ...), without a
/// pad_token_id: its tokens are random, and each of them counts.
/// Throws InputError that lists the names if there is none such.
Config preset(const std::string& name);

/// The config.json of a preset, as text that transformers reads too. Throws as preset does.
std::string preset_json(const std::string& name);

bool is_preset(const std::string& name);
std::vector<std::string> preset_names();

/// Those that a user may mean, for messages, which are cut at their ends: small ones for a CPU first, without
/// those for tests.
std::vector<std::string> suggested_presets();

}  // namespace streambp
