// Gemma 4 in config.json (transformers, configuration_gemma4.py).
#include <algorithm>
#include <map>
#include <string>

#include "streambp/model/config/family.h"
#include "streambp/model/config/read/config_reader.h"

namespace streambp {
namespace {

using nlohmann::json;

constexpr const char* kPerLayerConfig = "per_layer_config";

// What per_layer_config says of one layer: transformers 5 writes it instead of the keys of the layers that
// see all tokens.
struct LayerHeads {
  int64_t head_dim, key_value_heads;

  bool operator==(const LayerHeads&) const = default;
};

LayerHeads heads_of(const ConfigReader& layer, const Config& config) {
  for (const auto& [key, value] : layer.object().items()) {
    if (key != "head_dim" && key != "num_key_value_heads" && !value.is_null())
      layer.refuse(key, "head_dim and num_key_value_heads only");
  }
  return {layer.size("head_dim", kMaxHeadDim, config.head_dim),
          layer.size("num_key_value_heads", kMaxHeads, config.num_key_value_heads)};
}

// The keys of per_layer_config by their layers. transformers pads them with zeros to one length.
std::map<int64_t, std::string> layer_keys(const ConfigReader& layers, const Config& config) {
  std::map<int64_t, std::string> keys;
  for (const auto& [key, value] : layers.object().items()) {
    const bool is_number =
        !key.empty() && key.size() < 6 && key.find_first_not_of("0123456789") == std::string::npos;
    if (!is_number || std::stoll(key) >= config.num_hidden_layers)
      layers.refuse(key, fmt::format("numbers of layers, 0 to {}", config.num_hidden_layers - 1));
    const auto [at, is_new] = keys.emplace(std::stoll(key), key);
    if (!is_new) layers.refuse(key, fmt::format("one key for the layer, not {} too", at->second));
  }
  return keys;
}

LayerHeads parse_per_layer_config(const ConfigReader& settings, const Config& config) {
  const LayerHeads of_model{config.head_dim, config.num_key_value_heads};
  if (settings.find(kPerLayerConfig) == nullptr) return of_model;  // null: no layer differs
  const ConfigReader layers = settings.inner(kPerLayerConfig);
  const std::map<int64_t, std::string> keys = layer_keys(layers, config);
  std::optional<LayerHeads> global;
  for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    const auto stated = keys.find(layer);
    const std::string key = stated == keys.end() ? std::to_string(layer) : stated->second;
    const LayerHeads heads = stated == keys.end() ? of_model : heads_of(layers.inner(key.c_str()), config);
    if (config.has_window(layer)) {
      if (heads != of_model) layers.refuse(key, "the model's sizes in layers with a window");
    } else if (global.value_or(heads) != heads) {
      layers.refuse(key, "the same sizes in all layers without a window");
    } else {
      global = heads;
    }
  }
  return *global;
}

void parse_global_heads(const ConfigReader& settings, Config& config) {
  Gemma4Settings& gemma4 = config.gemma4;
  constexpr const char *kHeadDim = "global_head_dim", *kHeads = "num_global_key_value_heads";
  constexpr int64_t kHeadDimOfClass = 512;
  LayerHeads heads{};
  if (settings.has(kPerLayerConfig)) {
    heads = parse_per_layer_config(settings, config);
    settings.only(kHeadDim, heads.head_dim);
    if (gemma4.attention_k_eq_v) settings.only(kHeads, heads.key_value_heads);
  } else {
    heads.head_dim = settings.size(kHeadDim, kMaxHeadDim, kHeadDimOfClass);
    // transformers reads the key only where values are keys.
    const auto stated = settings.optional_size(kHeads, kMaxHeads);
    heads.key_value_heads = stated && gemma4.attention_k_eq_v ? *stated : config.num_key_value_heads;
  }
  if (heads.head_dim % 2 != 0) settings.refuse(kHeadDim, "an even number");
  if (config.num_attention_heads % heads.key_value_heads != 0)
    settings.refuse(kHeads, fmt::format("a divisor of num_attention_heads ({})", config.num_attention_heads));
  gemma4.global_head_dim = heads.head_dim;
  gemma4.num_global_key_value_heads = heads.key_value_heads;
}

void parse_sharing(const ConfigReader& settings, Config& config) {
  constexpr const char* kKey = "num_kv_shared_layers";
  const int64_t layers = config.num_hidden_layers;
  const int64_t shared = settings.size_from_zero(kKey, layers - 1, 0);
  for (int64_t layer = layers - shared; layer < layers; ++layer) {
    const auto below = config.windows.begin() + (layers - shared);
    const bool has_producer = std::any_of(config.windows.begin(), below, [&](int64_t window) {
      return window == config.windows[static_cast<size_t>(layer)];
    });
    if (!has_producer)
      settings.refuse(kKey,
                      fmt::format("fewer: layer {} has no layer of its kind below to share with", layer));
  }
  config.gemma4.num_kv_shared_layers = shared;
  config.gemma4.use_double_wide_mlp = settings.flag("use_double_wide_mlp", false);
}

}  // namespace

void parse_gemma4(const ConfigReader& settings, const Family& family, Config& config) {
  if (!family.gemma4) {
    for (const char* key : {"global_head_dim", "num_global_key_value_heads", "num_kv_shared_layers",
                            "hidden_size_per_layer_input"})
      settings.only(key, nullptr);
    if (!family.step) settings.only(kPerLayerConfig, nullptr);
    settings.only("attention_k_eq_v", false);
    settings.only("use_double_wide_mlp", false);
    settings.only("enable_moe_block", false);
    return;
  }
  Gemma4Settings& gemma4 = config.gemma4;
  gemma4.attention_k_eq_v = settings.flag("attention_k_eq_v", false);
  parse_global_heads(settings, config);
  parse_sharing(settings, config);
  config.norms_values = config.layer_scalar = true;
  config.attention_scale = 1.0;
  constexpr const char* kPerLayer = "hidden_size_per_layer_input";
  if (settings.has(kPerLayer) && settings.find(kPerLayer) == nullptr)
    settings.refuse(kPerLayer, "an integer, 0 for none");
  gemma4.hidden_size_per_layer_input = settings.size_from_zero(kPerLayer, kMaxHidden, 256);
  if (!config.has_per_layer_inputs()) return;
  constexpr const char* kVocab = "vocab_size_per_layer_input";
  gemma4.vocab_size_per_layer_input = settings.size(kVocab, kMaxVocab, 262144);
  if (gemma4.vocab_size_per_layer_input < config.vocab_size)
    settings.refuse(kVocab, fmt::format("at least vocab_size ({}): every token is looked up there too",
                                        config.vocab_size));
}

}  // namespace streambp
