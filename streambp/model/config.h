// What a decoder is: the settings of config.json that change the mathematics, under Hugging Face's names
// where it has one.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "streambp/ops/activation.h"

namespace streambp {

enum class RopeType { kDefault, kLinear, kDynamic, kLlama3, kYarn, kLongrope };

/// Rotary position embedding, as transformers' modeling_rope_utils.py defines each type.
struct RopeSettings {
  RopeType type = RopeType::kDefault;
  double theta = 10000.0;
  double factor = 1.0;                           // linear, dynamic, llama3, yarn
  double low_freq_factor = 1.0;                  // llama3
  double high_freq_factor = 4.0;                 // llama3
  int64_t original_max_position_embeddings = 0;  // llama3, yarn, longrope; dynamic: max_position_embeddings
  double beta_fast = 32.0;                       // yarn
  double beta_slow = 1.0;                        // yarn
  bool truncate = true;                          // yarn: whether the ramp's ends are whole numbers
  double attention_factor = 1.0;                 // yarn, longrope: cosines and sines are multiplied by it
  std::vector<double> short_factor;              // longrope, [rotary_dim / 2]
  std::vector<double> long_factor;               // longrope, [rotary_dim / 2]

  bool operator==(const RopeSettings&) const = default;
};

/// A mixture of experts instead of a layer's MLP (Qwen3-MoE).
struct MixtureSettings {
  int64_t num_experts = 0;  // 0: every MLP is dense
  int64_t num_experts_per_tok = 0;
  int64_t moe_intermediate_size = 0;
  bool norm_topk_prob = false;        // whether the chosen experts' weights are made to sum to 1
  double router_aux_loss_coef = 0.0;  // weight of the routers' load-balancing loss
  bool output_router_logits = false;  // whether transformers' own loss has that term
  std::vector<bool> sparse;           // of each layer: experts, or a dense MLP

  bool operator==(const MixtureSettings&) const = default;
};

/// Settings of one decoder. Sizes are positive and consistent once parsed: heads are a multiple of key/value
/// heads and head_dim and rotary_dim are even.
struct Config {
  std::string family;  // model_type: gemma2, gemma3_text, llama, mistral, phi3, qwen2, qwen3, qwen3_moe
  int64_t vocab_size = 0;
  int64_t hidden_size = 0;
  int64_t intermediate_size = 0;
  int64_t num_hidden_layers = 0;
  int64_t num_attention_heads = 0;
  int64_t num_key_value_heads = 0;
  int64_t head_dim = 0;
  int64_t rotary_dim =
      0;  // the first entries of a head, which are rotated: head_dim times partial_rotary_factor
  int64_t max_position_embeddings = 0;
  double rms_norm_eps = 1e-6;
  bool qkv_bias = false;  // qwen2: always; qwen3, llama: attention_bias
  bool o_bias = false;    // qwen3, llama: attention_bias
  bool mlp_bias = false;  // llama
  bool qk_norm = false;   // qwen3, gemma3: RMS norm of every query and key head
  bool tie_word_embeddings = false;
  bool value_model = false;             // a critic or reward model: score.weight [1, D] instead of an LM head
  bool fused_projections = false;       // phi3: one qkv_proj, one gate_up_proj
  bool sandwich_norms = false;          // gemma: also the outputs of attention and MLP are normed
  bool norm_adds_one = false;           // gemma: norms multiply by 1 + weight
  double embedding_scale = 1.0;         // gemma: sqrt(hidden_size)
  double attention_scale = 0.0;         // of the scores: head_dim or query_pre_attn_scalar to the power -1/2
  double attn_logit_softcapping = 0.0;  // gemma2: scores s become cap tanh(s / cap); 0: they don't
  double final_logit_softcapping = 0.0;  // gemma2: the same of the logits
  Activation hidden_act = Activation::kSilu;
  RopeSettings rope;
  std::optional<RopeSettings> local_rope;  // gemma3: of the layers with a window
  std::vector<int64_t> windows;  // of each layer: how many tokens a query sees, itself included; 0: all
  MixtureSettings mixture;
  /// The embedding's padding_idx: its row gets no gradient from the input's side, even where the token is
  /// real.
  std::optional<int64_t> pad_token_id;
  std::string dtype = "float32";  // of the stored weights, as config.json names it

  bool has_window(int64_t layer) const { return windows[static_cast<size_t>(layer)] > 0; }
  bool is_sparse(int64_t layer) const {
    return mixture.num_experts > 0 && mixture.sparse[static_cast<size_t>(layer)];
  }

  bool operator==(const Config&) const = default;
};

/// What a parameter is in its model.
enum class ParameterRole {
  kEmbedding,  // model.embed_tokens.weight, the head too where they are tied
  kNorm,       // [size]
  kWeight,     // of a linear map, [out, in]
  kBias,       // [out]
  kHead,       // lm_head.weight or score.weight
};

/// Name and shape of one parameter, under Hugging Face's name.
struct ParameterShape {
  std::string name;
  std::vector<int64_t> shape;
  ParameterRole role = ParameterRole::kWeight;
  bool of_expert = false;  // of a mixture's
};

/// "model.norm" of "model.norm.weight".
inline std::string module_of(const std::string& parameter) {
  return parameter.substr(0, parameter.rfind('.'));
}

/// The parameters of `config` in the order of the model: embedding, layers, norm, head. Linear weights are
/// [out, in]. A tied head is not listed: it is the embedding.
std::vector<ParameterShape> parameter_shapes(const Config& config);

/// Number of parameters (a tied embedding counts once).
int64_t parameter_count(const Config& config);

/// Reads a config.json in the spelling of transformers 4 (rope_theta, rope_scaling, torch_dtype) or 5
/// (rope_parameters, dtype). Of a multimodal Gemma 3 it takes the text part, as gemma3_text. Throws
/// InputError, naming the file, the key, what it holds and what is known, for a file that is missing or not
/// JSON, an unknown model_type or rope type, a missing or impossible size, two keys that contradict each
/// other, and every setting that would change the mathematics in a way not supported here (other activations,
/// attention in both directions, ...): a setting is honoured or refused, never ignored. Where a key is absent
/// the default of the family's class in transformers holds, unless that is hardly ever meant (key/value
/// heads, Mistral's window): then the key is required.
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

}  // namespace streambp
