// What a decoder is: the settings of config.json that change the mathematics, under Hugging Face's names
// where it has one.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace streambp {

enum class RopeType { kDefault, kLinear, kLlama3 };

/// Rotary position embedding, as transformers' modeling_rope_utils.py defines each type.
struct RopeSettings {
  RopeType type = RopeType::kDefault;
  double theta = 10000.0;
  double factor = 1.0;                           // linear, llama3
  double low_freq_factor = 1.0;                  // llama3
  double high_freq_factor = 4.0;                 // llama3
  int64_t original_max_position_embeddings = 0;  // llama3

  bool operator==(const RopeSettings&) const = default;
};

/// Settings of one decoder. Sizes are positive and consistent once parsed: heads are a multiple of key/value
/// heads and head_dim is even.
struct Config {
  std::string family;  // model_type: qwen2, qwen3, llama
  int64_t vocab_size = 0;
  int64_t hidden_size = 0;
  int64_t intermediate_size = 0;
  int64_t num_hidden_layers = 0;
  int64_t num_attention_heads = 0;
  int64_t num_key_value_heads = 0;
  int64_t head_dim = 0;
  int64_t max_position_embeddings = 0;
  double rms_norm_eps = 1e-6;
  bool qkv_bias = false;  // qwen2: always; qwen3, llama: attention_bias
  bool o_bias = false;    // qwen3, llama: attention_bias
  bool mlp_bias = false;  // llama
  bool qk_norm = false;   // qwen3: RMS norm of every query and key head
  bool tie_word_embeddings = false;
  bool value_model = false;  // a critic: score.weight [1, D] where the LM head would be
  RopeSettings rope;
  std::string dtype = "float32";  // of the stored weights, as config.json names it

  bool operator==(const Config&) const = default;
};

/// Name and shape of one parameter, under Hugging Face's name.
struct ParameterShape {
  std::string name;
  std::vector<int64_t> shape;
};

/// The parameters of `config` in the order of the model: embedding, layers, norm, head. Linear weights are
/// [out, in]. A tied head is not listed: it is the embedding.
std::vector<ParameterShape> parameter_shapes(const Config& config);

/// Number of parameters (a tied embedding counts once).
int64_t parameter_count(const Config& config);

/// Reads a config.json in the spelling of transformers 4 (rope_theta, rope_scaling, torch_dtype) or 5
/// (rope_parameters, dtype). Throws InputError, naming the file, the key, what it holds and what is known,
/// for a file that is missing or not JSON, an unknown model_type or rope type, a missing or impossible size,
/// and every setting that would change the mathematics in a way not supported here (other activations,
/// sliding windows, ...): a setting is honoured or refused, never ignored.
Config read_config(const std::filesystem::path& path);

/// As read_config, from text; `where` names the source in errors.
Config parse_config(std::string_view json, const std::string& where);

/// A published architecture, or a small one for the CPU, by name (`qwen3-8b`, `qwen3-cpu`, ...).
/// Throws InputError that lists the names if there is none such.
Config preset(const std::string& name);

bool is_preset(const std::string& name);
std::vector<std::string> preset_names();

}  // namespace streambp
