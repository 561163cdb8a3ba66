#include "streambp/model/config.h"

#include <algorithm>
#include <array>
#include <fmt/ranges.h>
#include <functional>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <utility>

#include "streambp/error.h"
#include "streambp/model/strict_json.h"

namespace streambp {
namespace {

using nlohmann::json;

// Upper bounds of the sizes: far above any published model, and low enough that the parameters' bytes in
// double stay below 2^63 (MLP: 2^12 layers x 3 matrices x 2^18 x 2^22 x 8 bytes; attention: 2^12 layers x 4
// matrices x 2^18 x 2^25 x 8 bytes = 2^60).
constexpr int64_t kMaxVocab = int64_t{1} << 24;
constexpr int64_t kMaxHidden = int64_t{1} << 18;
constexpr int64_t kMaxIntermediate = int64_t{1} << 22;
constexpr int64_t kMaxLayers = int64_t{1} << 12;
constexpr int64_t kMaxHeads = int64_t{1} << 12;
constexpr int64_t kMaxHeadDim = int64_t{1} << 13;
constexpr int64_t kMaxPositions = int64_t{1} << 40;

constexpr std::array<const char*, 3> kFamilies = {"llama", "qwen2", "qwen3"};
constexpr std::array<const char*, 4> kDtypes = {"float64", "float32", "bfloat16", "float16"};

// One JSON object of a config, read key by key. A key that holds null counts as absent, as in transformers.
class Settings {
 public:
  // `prefix` goes before key names in messages: empty, or the name of the object and a dot.
  Settings(const json& object, const std::string& where, std::string prefix = "")
      : object_(object), where_(where), prefix_(std::move(prefix)) {
    if (!object.is_object()) {
      throw InputError("{}: {} is not a JSON object", where, prefix_.empty() ? "config" : prefix_);
    }
  }

  const json* find(const char* key) const {
    const auto at = object_.find(key);
    return at == object_.end() || at->is_null() ? nullptr : &*at;
  }

  const json& object() const { return object_; }

  [[noreturn]] void refuse(const std::string& key, const std::string& expected) const {
    const auto at = object_.find(key);
    const std::string found = at == object_.end() ? "missing" : shown(*at);
    throw InputError("{}: {}{} is {}, expected {}", where_, prefix_, key, found, expected);
  }

  // A size from 1 to `limit`; required where there is no fallback.
  int64_t size(const char* key, int64_t limit, std::optional<int64_t> fallback = {}) const {
    const json* const value = find(key);
    if (value == nullptr && fallback) return *fallback;
    if (value == nullptr || !value->is_number_unsigned() || value->get<uint64_t>() < 1 ||
        value->get<uint64_t>() > static_cast<uint64_t>(limit)) {
      refuse(key, fmt::format("an integer from 1 to {}", limit));
    }
    return value->get<int64_t>();
  }

  // A finite number; absent: nothing.
  std::optional<double> number(const char* key) const {
    const json* const value = find(key);
    if (value == nullptr) return {};
    if (!value->is_number()) refuse(key, "a number");
    return value->get<double>();
  }

  bool flag(const char* key, bool fallback) const {
    const json* const value = find(key);
    if (value != nullptr && !value->is_boolean()) refuse(key, "true or false");
    return value == nullptr ? fallback : value->get<bool>();
  }

  std::optional<std::string> text(const char* key) const {
    const json* const value = find(key);
    if (value == nullptr) return {};
    if (!value->is_string()) refuse(key, "a string");
    return value->get<std::string>();
  }

  // The one value that is supported here; absent means that value.
  void only(const char* key, const json& supported) const {
    const json* const value = find(key);
    if (value != nullptr && *value != supported)
      refuse(key, shown(supported) + " (nothing else is supported)");
  }

 private:
  const json& object_;
  const std::string& where_;
  std::string prefix_;
};

// Two spellings of one setting, each optional: they may both be there if they agree.
template <typename T>
std::optional<T> agreed(const Settings& settings, const char* key, std::optional<T> a, const char* other,
                        std::optional<T> b) {
  if (a && b && *a != *b) settings.refuse(key, fmt::format("the same as {}: {}", other, shown(*b)));
  return a ? a : b;
}

// One rope_parameters or rope_scaling object; `theta` is the base where the object does not state it.
RopeSettings parse_rope_object(const Settings& settings, double theta) {
  static const std::array<std::pair<const char*, RopeType>, 3> kTypes = {
      {{"default", RopeType::kDefault}, {"linear", RopeType::kLinear}, {"llama3", RopeType::kLlama3}}};
  static const std::array<std::vector<std::string>, 3> kUsed = {
      {{},
       {"factor"},
       {"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"}}};

  const std::string name =
      agreed(settings, "rope_type", settings.text("rope_type"), "type", settings.text("type"))
          .value_or("default");
  const auto type =
      std::find_if(kTypes.begin(), kTypes.end(), [&](const auto& known) { return known.first == name; });
  if (type == kTypes.end()) {
    settings.refuse(settings.find("rope_type") != nullptr ? "rope_type" : "type",
                    "default, linear or llama3");
  }
  const auto& used = kUsed[static_cast<std::size_t>(type - kTypes.begin())];
  settings.only("partial_rotary_factor", 1);
  for (const auto& [key, value] : settings.object().items()) {
    const bool common =
        key == "rope_type" || key == "type" || key == "rope_theta" || key == "partial_rotary_factor";
    if (!common && !value.is_null() && std::find(used.begin(), used.end(), key) == used.end()) {
      settings.refuse(key, fmt::format("no such key with rope type {}", name));
    }
  }

  RopeSettings rope;
  rope.type = type->second;
  rope.theta = settings.number("rope_theta").value_or(theta);
  if (rope.type == RopeType::kDefault) return rope;
  rope.factor = settings.number("factor").value_or(0.0);
  if (!(rope.factor >= 1.0)) settings.refuse("factor", "a number of at least 1");
  if (rope.type == RopeType::kLinear) return rope;
  rope.low_freq_factor = settings.number("low_freq_factor").value_or(0.0);
  rope.high_freq_factor = settings.number("high_freq_factor").value_or(0.0);
  rope.original_max_position_embeddings = settings.size("original_max_position_embeddings", kMaxPositions);
  if (!(rope.low_freq_factor > 0.0)) settings.refuse("low_freq_factor", "a number above 0");
  if (!(rope.high_freq_factor > rope.low_freq_factor)) {
    settings.refuse("high_freq_factor",
                    fmt::format("a number above low_freq_factor ({})", rope.low_freq_factor));
  }
  return rope;
}

// transformers 4 has rope_theta beside rope_scaling, transformers 5 has everything in rope_parameters. A file
// may hold both where both say the same.
RopeSettings parse_rope(const Settings& settings, const std::string& where) {
  std::vector<Settings> objects;
  std::optional<double> theta = settings.number("rope_theta");
  for (const char* key : {"rope_parameters", "rope_scaling"}) {
    const json* const value = settings.find(key);
    if (value == nullptr) continue;
    const Settings& object = objects.emplace_back(*value, where, std::string(key) + ".");
    theta = agreed(object, "rope_theta", object.number("rope_theta"),
                   "the theta stated elsewhere in the file", theta);
  }
  RopeSettings rope;
  rope.theta = theta.value_or(rope.theta);
  if (!(rope.theta > 0.0))
    throw InputError("{}: rope_theta is {}, expected a number above 0", where, rope.theta);
  std::vector<RopeSettings> parsed;
  for (const Settings& object : objects) parsed.push_back(parse_rope_object(object, rope.theta));
  if (parsed.size() == 2 && parsed[0] != parsed[1])
    settings.refuse("rope_scaling", "the same as rope_parameters");
  return parsed.empty() ? rope : parsed.front();
}

// Settings that change the mathematics, or the training of it, and have one supported value.
void refuse_unsupported(const Settings& settings, int64_t layers) {
  static const std::vector<std::pair<const char*, json>> kOnly = {
      {"hidden_act", "silu"},
      {"hidden_activation", "silu"},
      {"attention_dropout", 0},
      {"pretraining_tp", 1},
      {"partial_rotary_factor", 1},
      {"quantization_config", nullptr},
      {"attn_logit_softcapping", nullptr},
      {"final_logit_softcapping", nullptr},
      {"use_sliding_window", false},
      {"is_causal", true},
      {"use_bidirectional_attention", false},
  };
  for (const auto& [key, supported] : kOnly) settings.only(key, supported);
  // Published Qwen files carry a window that is switched off; without the switch it is not clear that it is.
  if (settings.find("sliding_window") != nullptr && settings.find("use_sliding_window") == nullptr) {
    settings.refuse("sliding_window", "null, or use_sliding_window: false beside it");
  }
  if (const json* const types = settings.find("layer_types")) {
    const bool full =
        types->is_array() && types->size() == static_cast<std::size_t>(layers) &&
        std::all_of(types->begin(), types->end(), [](const json& t) { return t == "full_attention"; });
    if (!full)
      settings.refuse("layer_types", fmt::format("full_attention for each of the {} layers", layers));
  }
}

void parse_family(const Settings& settings, Config& config) {
  config.family = settings.text("model_type").value_or("");
  if (std::find(kFamilies.begin(), kFamilies.end(), config.family) == kFamilies.end()) {
    settings.refuse("model_type", fmt::format("one of {}", fmt::join(kFamilies, ", ")));
  }
  if (config.family == "qwen2") {
    settings.only("attention_bias", true);
    config.qkv_bias = true;
  } else {
    config.qkv_bias = config.o_bias = settings.flag("attention_bias", false);
  }
  config.qk_norm = config.family == "qwen3";
  if (config.family == "llama") {
    config.mlp_bias = settings.flag("mlp_bias", false);
  } else {
    settings.only("mlp_bias", false);
  }
}

void parse_heads(const Settings& settings, Config& config) {
  config.num_attention_heads = settings.size("num_attention_heads", kMaxHeads);
  const int64_t heads = config.num_attention_heads;
  // Where the key is absent, transformers takes a fixed number for the Qwen families, which is hardly ever
  // meant.
  if (config.family != "llama" && !settings.object().contains("num_key_value_heads")) {
    settings.refuse("num_key_value_heads", "an integer or null");
  }
  config.num_key_value_heads = settings.size("num_key_value_heads", kMaxHeads, heads);
  if (heads % config.num_key_value_heads != 0) {
    settings.refuse("num_key_value_heads", fmt::format("a divisor of num_attention_heads ({})", heads));
  }
  std::optional<int64_t> head_dim;
  if (config.hidden_size % heads == 0) head_dim = config.hidden_size / heads;
  // transformers takes 128 for a Qwen3 without head_dim, other readers the quotient.
  if (config.family == "qwen3" && head_dim != 128) head_dim.reset();
  config.head_dim = settings.size("head_dim", kMaxHeadDim, head_dim);
  if (config.head_dim % 2 != 0)
    settings.refuse("head_dim", fmt::format("an even number, not {}", config.head_dim));
}

}  // namespace

Config parse_config(std::string_view text, const std::string& where) {
  const json document = parse_strict_json(text, where);
  const Settings settings(document, where);
  Config config;
  parse_family(settings, config);
  config.vocab_size = settings.size("vocab_size", kMaxVocab);
  config.hidden_size = settings.size("hidden_size", kMaxHidden);
  config.intermediate_size = settings.size("intermediate_size", kMaxIntermediate);
  config.num_hidden_layers = settings.size("num_hidden_layers", kMaxLayers);
  parse_heads(settings, config);
  // The length a model was trained for limits nothing here; the fallbacks are those of the transformers
  // classes.
  const int64_t positions = config.family == "llama" ? 2048 : 32768;
  config.max_position_embeddings = settings.size("max_position_embeddings", kMaxPositions, positions);
  config.rms_norm_eps = settings.number("rms_norm_eps").value_or(config.rms_norm_eps);
  if (!(config.rms_norm_eps > 0.0)) settings.refuse("rms_norm_eps", "a number above 0");
  config.tie_word_embeddings = settings.flag("tie_word_embeddings", false);
  config.rope = parse_rope(settings, where);
  config.dtype =
      agreed(settings, "dtype", settings.text("dtype"), "torch_dtype", settings.text("torch_dtype"))
          .value_or(config.dtype);
  if (std::find(kDtypes.begin(), kDtypes.end(), config.dtype) == kDtypes.end()) {
    settings.refuse(settings.find("dtype") != nullptr ? "dtype" : "torch_dtype",
                    fmt::format("one of {}", fmt::join(kDtypes, ", ")));
  }
  refuse_unsupported(settings, config.num_hidden_layers);
  return config;
}

Config read_config(const std::filesystem::path& path) {
  return parse_config(read_text_file(path), path.string());
}

std::vector<ParameterShape> parameter_shapes(const Config& config) {
  const int64_t hidden = config.hidden_size;
  const int64_t mlp = config.intermediate_size;
  const int64_t queries = config.num_attention_heads * config.head_dim;
  const int64_t keys = config.num_key_value_heads * config.head_dim;
  std::vector<ParameterShape> shapes;
  const auto linear = [&](const std::string& name, int64_t out, int64_t in, bool bias) {
    shapes.push_back({name + ".weight", {out, in}});
    if (bias) shapes.push_back({name + ".bias", {out}});
  };
  const auto norm = [&](const std::string& name, int64_t size) {
    shapes.push_back({name + ".weight", {size}});
  };
  linear("model.embed_tokens", config.vocab_size, hidden, false);
  for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    const std::string at = fmt::format("model.layers.{}.", layer);
    norm(at + "input_layernorm", hidden);
    linear(at + "self_attn.q_proj", queries, hidden, config.qkv_bias);
    linear(at + "self_attn.k_proj", keys, hidden, config.qkv_bias);
    linear(at + "self_attn.v_proj", keys, hidden, config.qkv_bias);
    if (config.qk_norm) norm(at + "self_attn.q_norm", config.head_dim);
    if (config.qk_norm) norm(at + "self_attn.k_norm", config.head_dim);
    linear(at + "self_attn.o_proj", hidden, queries, config.o_bias);
    norm(at + "post_attention_layernorm", hidden);
    linear(at + "mlp.gate_proj", mlp, hidden, config.mlp_bias);
    linear(at + "mlp.up_proj", mlp, hidden, config.mlp_bias);
    linear(at + "mlp.down_proj", hidden, mlp, config.mlp_bias);
  }
  norm("model.norm", hidden);
  if (config.value_model) {
    linear("score", 1, hidden, false);
  } else if (!config.tie_word_embeddings) {
    linear("lm_head", config.vocab_size, hidden, false);
  }
  return shapes;
}

int64_t parameter_count(const Config& config) {
  int64_t count = 0;
  for (const ParameterShape& parameter : parameter_shapes(config)) {
    count += std::accumulate(parameter.shape.begin(), parameter.shape.end(), int64_t{1}, std::multiplies<>());
  }
  return count;
}

}  // namespace streambp
