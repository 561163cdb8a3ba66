// What config.json says beyond sizes and positions, family by family (transformers, configuration_*.py).
#include <algorithm>
#include <array>
#include <cmath>
#include <fmt/ranges.h>

#include "streambp/model/config_reader.h"
#include "streambp/model/quantization.h"

namespace streambp {
namespace {

using nlohmann::json;

// clang-format off
constexpr std::array<Family, 24> kFamilies = {{
  // name         positions  eps  tied  head_dim K absent  attention's bias          gemma  theta  pad_token_id
  {"deepseek_v3",     4096, 1e-6, false, 0,      false, Family::Bias::kByKey,    false, 1e4, -1, false, true},
  {"gemma",           8192, 1e-6, true,  256,    false, Family::Bias::kByKey,    true,  1e4, 0},
  {"gemma2",          8192, 1e-6, true,  256,    false, Family::Bias::kByKey,    true,  1e4, 0},
  {"gemma3_text",   131072, 1e-6, true,  256,    false, Family::Bias::kByKey,    true,  1e6, 0},
  {"gemma4_text",   131072, 1e-6, true,  256,    false, Family::Bias::kByKey,    true,  1e6, 0},
  {"glm4",       131072, 1.5625e-7, false, 128,  false, Family::Bias::kQkvByKey, false, 1e4, 151329},
  {"glm4_moe",      131072, 1e-5, false, 0,      false, Family::Bias::kQkvByKey, false, 1e4, -1},
  {"gpt_oss",       131072, 1e-5, false, 64,     false, Family::Bias::kByKey,    false, 1.5e5, -1},
  {"granite",         2048, 1e-6, false, 0,      true,  Family::Bias::kByKey,    false, 1e4, -1},
  {"llama",           2048, 1e-6, false, 0,      true,  Family::Bias::kByKey,    false, 1e4, -1},
  {"ministral3",    262144, 1e-5, false, 128,    false, Family::Bias::kNone,     false, 1e4, 11},
  {"mistral",       131072, 1e-6, false, 0,      false, Family::Bias::kNone,     false, 1e4, -1},
  {"mixtral",       131072, 1e-5, false, 0,      false, Family::Bias::kNone,     false, 1e6, -1},
  {"olmo2",           2048, 1e-5, false, 0,      true,  Family::Bias::kByKey,    false, 1e4, 1},
  {"olmo3",           2048, 1e-5, false, 0,      true,  Family::Bias::kByKey,    false, 5e5, 1},
  {"phi3",            4096, 1e-5, false, 0,      true,  Family::Bias::kNone,     false, 1e4, 32000},
  {"qwen2",          32768, 1e-6, false, 0,      false, Family::Bias::kQkv,      false, 1e4, -1},
  {"qwen2_moe",      32768, 1e-6, false, 0,      false, Family::Bias::kQkvByKey, false, 1e4, -1},
  {"qwen3",          32768, 1e-6, false, 128,    false, Family::Bias::kByKey,    false, 1e4, -1},
  {"qwen3_5_moe_text", 32768, 1e-6, false, 256,  false, Family::Bias::kByKey,    false, 1e4, -1, true},
  {"qwen3_5_text",   32768, 1e-6, false, 256,    false, Family::Bias::kByKey,    false, 1e4, -1, true},
  {"qwen3_moe",      32768, 1e-6, false, 0,      false, Family::Bias::kByKey,    false, 1e4, -1},
  {"qwen3_next",     32768, 1e-6, false, 256,    false, Family::Bias::kByKey,    false, 1e4, -1, true},
  {"smollm3",        32768, 1e-6, true,  0,      false, Family::Bias::kByKey,    false, 2e6, 128004},
}};
// clang-format on

// Settings that change the mathematics, or the training of it, and have one supported value in every family.
void refuse_unsupported(const ConfigReader& settings) {
  static const std::vector<std::pair<const char*, json>> kOnly = {
      {"attention_dropout", 0}, {"resid_pdrop", 0},        {"embd_pdrop", 0},       {"clip_qkv", nullptr},
      {"full_attn_mod", 1},     {"interpolate_factor", 1}, {"lm_head_bias", false}, {"is_causal", true},
  };
  parse_quantization(settings);  // which weights are quantised is the checkpoint's business
  for (const auto& [key, supported] : kOnly) settings.only(key, supported);
  // Gemma 4's "vision" is of an image's tokens alone.
  constexpr const char* kBothDirections = "use_bidirectional_attention";
  settings.only(kBothDirections, settings.text("model_type") == "gemma4_text" ? json("vision") : json(false));
  // A choice of keys by a second, small attention, whose indices no gradient reaches.
  for (const char* key : {"index_topk", "index_n_heads", "index_head_dim"}) {
    if (settings.find(key) != nullptr)
      settings.refuse(key, "none: sparse attention by an indexer (DeepSeek V3.2, GLM-5) is not supported");
  }
  // SmolLM3's published file holds a 2, which nothing reads.
  if (settings.text("model_type") != "smollm3") settings.only("pretraining_tp", 1);
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
    case Family::Bias::kQkvByKey:
      config.qkv_bias = settings.flag(config.family == "qwen2_moe" ? "qkv_bias" : "attention_bias",
                                      config.family != "glm4_moe");
      break;
    case Family::Bias::kByKey:
      config.qkv_bias = config.o_bias = settings.flag("attention_bias", config.family == "gpt_oss");
      break;
  }
  // What the key says that another family's class reads.
  settings.only(config.family == "qwen2_moe" ? "attention_bias" : "qkv_bias", config.qkv_bias);
  if (config.family == "llama" || config.family == "granite" || config.family == "smollm3") {
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

void parse_activation(const ConfigReader& settings, const Family& family, Config& config) {
  const json activation = family.gemma ? "gelu_pytorch_tanh" : "silu";
  // Gemma's first files say gelu and mean this one.
  const bool says_gelu = config.family == "gemma" && settings.text("hidden_act") == "gelu";
  if (!says_gelu) settings.only("hidden_act", activation);
  settings.only("hidden_activation", activation);
  if (family.gemma) config.hidden_act = Activation::kGeluTanh;
}

void parse_attention(const ConfigReader& settings, const Family& family, Config& config) {
  const std::string& name = config.family;
  config.qk_norm_full_width = name == "olmo2" || name == "olmo3";
  config.qk_norm = config.qk_norm_full_width || name.starts_with("qwen3") || name == "gemma3_text" ||
                   name == "gemma4_text" || (name == "glm4_moe" && settings.flag("use_qk_norm", false));
  config.fused_projections = name == "phi3";
  config.fused_gate_up = config.rope_interleaved = name == "glm4";
  config.attention_sinks = name == "gpt_oss";
  double scale_of = static_cast<double>(config.head_dim);
  if (name == "gemma2" || name == "gemma3_text") {
    scale_of = settings.positive("query_pre_attn_scalar", 256.0);
  } else {
    settings.only("query_pre_attn_scalar", nullptr);
  }
  config.attention_scale = 1.0 / std::sqrt(scale_of);
  if (family.latent) parse_latent(settings, config);
  if (name == "gemma2") {
    config.attn_logit_softcapping = softcap(settings, "attn_logit_softcapping", 50.0);
    config.final_logit_softcapping = softcap(settings, "final_logit_softcapping", 30.0);
  } else {
    settings.only("attn_logit_softcapping", nullptr);
    if (name == "gemma4_text" && settings.find("final_logit_softcapping") != nullptr) {
      config.final_logit_softcapping = softcap(settings, "final_logit_softcapping", 0.0);
    } else {
      settings.only("final_logit_softcapping", nullptr);
    }
  }
}

void parse_norms(const Family& family, Config& config) {
  config.norm_adds_one = (family.gemma && config.family != "gemma4_text") || family.recurrent;
  config.norm_after = config.family == "olmo2" || config.family == "olmo3";
  config.glm_norm_names = config.family == "glm4";
  config.sandwich_norms = config.glm_norm_names || (family.gemma && config.family != "gemma");
}

// Constant factors: Gemma's of the embedding, and Granite's.
void parse_multipliers(const ConfigReader& settings, const Family& family, Config& config) {
  if (family.gemma) {
    config.embedding_scale = std::sqrt(static_cast<double>(config.hidden_size));
    config.rounds_embedding_scale = true;
  }
  if (config.family == "granite") {
    config.embedding_scale = settings.positive("embedding_multiplier", 1.0);
    config.residual_multiplier = settings.positive("residual_multiplier", 1.0);
    config.logits_scaling = settings.positive("logits_scaling", 1.0);
    config.attention_scale = settings.positive("attention_multiplier", 1.0);
    return;
  }
  for (const char* key :
       {"embedding_multiplier", "residual_multiplier", "logits_scaling", "attention_multiplier"}) {
    settings.only(key, nullptr);
  }
}

// GPT-OSS's clamped gate.
void parse_clamps(const ConfigReader& settings, Config& config) {
  if (config.family == "gpt_oss") {
    config.swiglu_alpha = settings.positive("swiglu_alpha", 1.702);
    config.swiglu_limit = settings.positive("swiglu_limit", 7.0);
    return;
  }
  settings.only("swiglu_alpha", nullptr);
  settings.only("swiglu_limit", nullptr);
}

// SmolLM3's layers without rotary embedding: in no_rope_layers they are the zeros.
void parse_no_rope(const ConfigReader& settings, Config& config) {
  constexpr const char* kKey = "no_rope_layers";
  constexpr const char* kInterval = "no_rope_layer_interval";
  if (config.family != "smollm3") {
    settings.only(kKey, nullptr);
    settings.only(kInterval, nullptr);
    return;
  }
  const auto layers = static_cast<std::size_t>(config.num_hidden_layers);
  if (const json* const rotates = settings.find(kKey)) {
    const auto is_flag = [](const json& flag) { return flag == 0 || flag == 1; };
    if (!rotates->is_array() || rotates->size() < layers ||
        !std::all_of(rotates->begin(), rotates->end(), is_flag)) {
      settings.refuse(
          kKey, fmt::format("a list of {} numbers, 0 for a layer that does not rotate, else 1", layers));
    }
    for (std::size_t layer = 0; layer < layers; ++layer) config.no_rope.push_back((*rotates)[layer] == 0);
    return;
  }
  const auto interval = static_cast<std::size_t>(settings.size(kInterval, kMaxLayers, 4));
  for (std::size_t layer = 1; layer <= layers; ++layer) config.no_rope.push_back(layer % interval == 0);
}

}  // namespace

const Family& find_family(const ConfigReader& settings) {
  std::string name = settings.text("model_type").value_or("");
  if (name == "kimi_k2")
    name = "deepseek_v3";  // whose mathematics it has, and whose class its architectures name
  for (const Family& family : kFamilies) {
    if (name == family.name) return family;
  }
  std::vector<std::string> names = {"gemma3", "gemma4", "mistral3", "qwen3_5", "qwen3_5_moe"};
  for (const Family& family : kFamilies) names.emplace_back(family.name);
  std::sort(names.begin(), names.end());
  settings.refuse("model_type", fmt::format("one of {}", fmt::join(names, ", ")));
}

void parse_family(const ConfigReader& settings, const Family& family, Config& config) {
  refuse_unsupported(settings);
  parse_biases(settings, family, config);
  parse_activation(settings, family, config);
  parse_attention(settings, family, config);
  parse_norms(family, config);
  parse_multipliers(settings, family, config);
  parse_clamps(settings, config);
  parse_no_rope(settings, config);
  if (family.recurrent) {
    parse_recurrent(settings, config);
  } else {
    parse_windows(settings, family, config);
  }
  parse_gemma4(settings, config);
  parse_mixture(settings, config);
}

}  // namespace streambp
