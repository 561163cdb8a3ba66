// What config.json says beyond sizes and positions, family by family (transformers, configuration_*.py).
#include <algorithm>
#include <array>
#include <cmath>
#include <fmt/ranges.h>

#include "streambp/model/config_reader.h"

namespace streambp {
namespace {

using nlohmann::json;

// clang-format off
constexpr std::array<Family, 8> kFamilies = {{
  // name         positions  eps  tied  head_dim K absent  attention's bias       gemma
  {"gemma2",          8192, 1e-6, true,  256,    false, Family::Bias::kByKey, true},
  {"gemma3_text",   131072, 1e-6, true,  256,    false, Family::Bias::kByKey, true},
  {"llama",           2048, 1e-6, false, 0,      true,  Family::Bias::kByKey, false},
  {"mistral",       131072, 1e-6, false, 0,      false, Family::Bias::kNone,  false},
  {"phi3",            4096, 1e-5, false, 0,      true,  Family::Bias::kNone,  false},
  {"qwen2",          32768, 1e-6, false, 0,      false, Family::Bias::kQkv,   false},
  {"qwen3",          32768, 1e-6, false, 128,    false, Family::Bias::kByKey, false},
  {"qwen3_moe",      32768, 1e-6, false, 0,      false, Family::Bias::kByKey, false},
}};
// clang-format on

// Settings that change the mathematics, or the training of it, and have one supported value in every family.
void refuse_unsupported(const ConfigReader& settings) {
  static const std::vector<std::pair<const char*, json>> kOnly = {
      {"attention_dropout", 0}, {"resid_pdrop", 0},
      {"embd_pdrop", 0},        {"pretraining_tp", 1},
      {"full_attn_mod", 1},     {"interpolate_factor", 1},
      {"lm_head_bias", false},  {"quantization_config", nullptr},
      {"is_causal", true},      {"use_bidirectional_attention", false},
  };
  for (const auto& [key, supported] : kOnly) settings.only(key, supported);
}

void parse_biases(const ConfigReader& settings, const Family& family, Config& config) {
  switch (family.bias) {
    case Family::Bias::kNone:
      settings.only("attention_bias", false);
      break;
    case Family::Bias::kQkv:
      settings.only("attention_bias", true);
      config.qkv_bias = true;
      break;
    case Family::Bias::kByKey:
      config.qkv_bias = config.o_bias = settings.flag("attention_bias", false);
      break;
  }
  if (config.family == "llama") {
    config.mlp_bias = settings.flag("mlp_bias", false);
  } else {
    settings.only("mlp_bias", false);
  }
}

// A cap of gemma2, which null switches off.
double softcap(const ConfigReader& settings, const char* key, double fallback) {
  if (settings.has(key) && settings.find(key) == nullptr) return 0.0;
  return settings.positive(key, fallback);
}

void parse_attention_and_norms(const ConfigReader& settings, const Family& family, Config& config) {
  const json activation = family.gemma ? "gelu_pytorch_tanh" : "silu";
  settings.only("hidden_act", activation);
  settings.only("hidden_activation", activation);
  config.qk_norm = config.family == "qwen3" || config.family == "qwen3_moe" || config.family == "gemma3_text";
  config.fused_projections = config.family == "phi3";
  double scale_of = static_cast<double>(config.head_dim);
  if (family.gemma) {
    config.hidden_act = Activation::kGeluTanh;
    config.sandwich_norms = true;
    config.norm_adds_one = true;
    config.embedding_scale = std::sqrt(static_cast<double>(config.hidden_size));
    scale_of = settings.positive("query_pre_attn_scalar", 256.0);
  } else {
    settings.only("query_pre_attn_scalar", nullptr);
  }
  config.attention_scale = 1.0 / std::sqrt(scale_of);
  if (config.family == "gemma2") {
    config.attn_logit_softcapping = softcap(settings, "attn_logit_softcapping", 50.0);
    config.final_logit_softcapping = softcap(settings, "final_logit_softcapping", 30.0);
  } else {
    settings.only("attn_logit_softcapping", nullptr);
    settings.only("final_logit_softcapping", nullptr);
  }
}

// Which layers have a window, and whether the file says so in words of its own: if so, layer_types may only
// repeat it; if not, layer_types decides where it is there.
struct LocalLayers {
  std::vector<bool> local;
  bool stated = true;
};

LocalLayers gemma_layers(const ConfigReader& settings, const Config& config) {
  LocalLayers layers;
  int64_t pattern = 2;
  if (config.family == "gemma2") {
    settings.only("sliding_window_pattern", 2);
    layers.stated = settings.find("sliding_window_pattern") != nullptr;
  } else {
    // transformers 5 also writes the pattern's default as _sliding_window_pattern, and does not read it.
    pattern = settings.size("sliding_window_pattern", kMaxLayers, 6);
    layers.stated = settings.find("sliding_window_pattern") != nullptr;
  }
  for (int64_t layer = 1; layer <= config.num_hidden_layers; ++layer) {
    layers.local.push_back(layer % pattern != 0);
  }
  return layers;
}

// qwen2, qwen3, qwen3_moe: published files carry a window that is switched off.
LocalLayers qwen_layers(const ConfigReader& settings, const Config& config) {
  const auto count = static_cast<std::size_t>(config.num_hidden_layers);
  if (!settings.flag("use_sliding_window", false)) {
    if (settings.find("sliding_window") != nullptr && settings.find("use_sliding_window") == nullptr) {
      settings.refuse("sliding_window", "null, or use_sliding_window with it");
    }
    return {std::vector<bool>(count, false)};
  }
  if (config.family == "qwen3_moe") {
    settings.only("max_window_layers", 0);
    return {std::vector<bool>(count, true)};
  }
  const json* const from = settings.find("max_window_layers");
  if (from == nullptr && settings.find("layer_types") != nullptr) {
    return {std::vector<bool>(count, false), false};
  }
  if (from == nullptr || !from->is_number_unsigned()) {
    settings.refuse("max_window_layers", "an integer: the first layer that has the window");
  }
  LocalLayers layers;
  for (uint64_t layer = 0; layer < count; ++layer) layers.local.push_back(layer >= from->get<uint64_t>());
  return layers;
}

LocalLayers local_layers(const ConfigReader& settings, const Family& family, const Config& config) {
  if (family.gemma) return gemma_layers(settings, config);
  if (config.family.starts_with("qwen")) return qwen_layers(settings, config);
  const auto count = static_cast<std::size_t>(config.num_hidden_layers);
  if (config.family == "llama") {
    if (settings.find("sliding_window") != nullptr && settings.find("use_sliding_window") == nullptr) {
      settings.refuse("sliding_window", "null, or use_sliding_window: false with it");
    }
    return {std::vector<bool>(count, false)};
  }
  if (config.family == "mistral" && !settings.has("sliding_window")) {
    settings.refuse("sliding_window", "an integer, or null for none (transformers would take 4096)");
  }
  return {std::vector<bool>(count, settings.find("sliding_window") != nullptr)};
}

// layer_types as which layers have a window.
std::vector<bool> parse_layer_types(const ConfigReader& settings, const json& types, int64_t layers) {
  bool good = types.is_array() && types.size() == static_cast<std::size_t>(layers);
  std::vector<bool> local;
  for (std::size_t i = 0; good && i < types.size(); ++i) {
    good = types[i] == "full_attention" || types[i] == "sliding_attention";
    local.push_back(types[i] == "sliding_attention");
  }
  if (!good) {
    settings.refuse("layer_types",
                    fmt::format("full_attention or sliding_attention for each of the {} layers", layers));
  }
  return local;
}

void parse_windows(const ConfigReader& settings, const Family& family, Config& config) {
  LocalLayers layers = local_layers(settings, family, config);
  if (const json* const types = settings.find("layer_types")) {
    std::vector<bool> local = parse_layer_types(settings, *types, config.num_hidden_layers);
    if (layers.stated && local != layers.local) {
      settings.refuse("layer_types", "the windows that the file states elsewhere");
    }
    layers.local = std::move(local);
  }
  const bool any = std::find(layers.local.begin(), layers.local.end(), true) != layers.local.end();
  // Families without this switch don't read it; it may be there if it says what is so.
  if (!config.family.starts_with("qwen") && settings.find("use_sliding_window") != nullptr) {
    settings.only("use_sliding_window", any);
  }
  std::optional<int64_t> fallback;
  if (family.gemma && !settings.has("sliding_window")) fallback = 4096;
  const int64_t window = any ? settings.size("sliding_window", kMaxPositions, fallback) : 0;
  for (const bool local : layers.local) config.windows.push_back(local ? window : 0);
}

std::vector<bool> sparse_layers(const ConfigReader& settings, int64_t layers) {
  const int64_t step = settings.size("decoder_sparse_step", kMaxLayers, 1);
  std::vector<bool> sparse;
  for (int64_t layer = 1; layer <= layers; ++layer) sparse.push_back(layer % step == 0);
  const json* const dense = settings.find("mlp_only_layers");
  if (dense == nullptr) return sparse;
  const auto is_layer = [&](const json& value) {
    return value.is_number_unsigned() && value.get<uint64_t>() < static_cast<uint64_t>(layers);
  };
  if (!dense->is_array() || !std::all_of(dense->begin(), dense->end(), is_layer)) {
    settings.refuse("mlp_only_layers", fmt::format("a list of layers from 0 to {}", layers - 1));
  }
  for (const json& layer : *dense) sparse[layer.get<std::size_t>()] = false;
  return sparse;
}

void parse_mixture(const ConfigReader& settings, Config& config) {
  const int64_t layers = config.num_hidden_layers;
  MixtureSettings& mixture = config.mixture;
  if (config.family != "qwen3_moe") {
    for (const char* key : {"num_experts", "num_local_experts", "num_experts_per_tok"}) {
      settings.only(key, nullptr);
    }
    mixture.sparse.assign(static_cast<std::size_t>(layers), false);
    return;
  }
  settings.only("shared_expert_intermediate_size", nullptr);
  // transformers 5 may write num_local_experts.
  const int64_t limit = kMaxExpertsOfAllLayers / layers;
  const auto experts = agreed(settings, "num_experts", settings.optional_size("num_experts", limit),
                              "num_local_experts", settings.optional_size("num_local_experts", limit));
  mixture.num_experts = experts ? *experts : settings.size("num_experts", limit);
  mixture.num_experts_per_tok = settings.size("num_experts_per_tok", mixture.num_experts);
  mixture.moe_intermediate_size =
      settings.size("moe_intermediate_size", kMaxIntermediate / mixture.num_experts);
  mixture.norm_topk_prob = settings.flag("norm_topk_prob", false);
  const double coefficient = settings.number("router_aux_loss_coef").value_or(0.001);
  if (!(coefficient >= 0.0)) settings.refuse("router_aux_loss_coef", "a number of at least 0");
  mixture.router_aux_loss_coef = coefficient;
  mixture.output_router_logits = settings.flag("output_router_logits", false);
  mixture.sparse = sparse_layers(settings, layers);
}

}  // namespace

const Family& find_family(const ConfigReader& settings) {
  const std::string name = settings.text("model_type").value_or("");
  for (const Family& family : kFamilies) {
    if (name == family.name) return family;
  }
  std::vector<std::string> names = {"gemma3"};
  for (const Family& family : kFamilies) names.emplace_back(family.name);
  std::sort(names.begin(), names.end());
  settings.refuse("model_type", fmt::format("one of {}", fmt::join(names, ", ")));
}

void parse_family(const ConfigReader& settings, const Family& family, Config& config) {
  refuse_unsupported(settings);
  parse_biases(settings, family, config);
  parse_attention_and_norms(settings, family, config);
  parse_windows(settings, family, config);
  parse_mixture(settings, config);
}

}  // namespace streambp
