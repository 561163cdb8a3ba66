// What config.json says of a layer's maps, norms and factors, as the family's class reads it (transformers,
// configuration_*.py).
#include <algorithm>
#include <cmath>
#include <map>
#include <string>

#include "streambp/model/config/family.h"
#include "streambp/model/config/read/config_reader.h"
#include "streambp/model/quantized/quantization.h"

namespace streambp {
namespace {

using nlohmann::json;

// Settings that change the mathematics, or the training of it, and have one supported value in every family.
void refuse_unsupported(const ConfigReader& settings, const Family& family) {
  static const std::vector<std::pair<const char*, json>> kOnly = {
      {"attention_dropout", 0}, {"residual_dropout", 0}, {"resid_pdrop", 0},        {"embd_pdrop", 0},
      {"clip_qkv", nullptr},    {"full_attn_mod", 1},    {"interpolate_factor", 1}, {"lm_head_bias", false},
      {"is_causal", true},      {"rotary_pct", 1},
  };
  parse_quantization(settings);  // which weights are quantised is the checkpoint's business
  for (const auto& [key, supported] : kOnly) settings.only(key, supported);
  for (const char* key : family.dropouts) {
    if (key != nullptr && settings.find(key) == nullptr)
      settings.refuse(key, "0 (transformers would take 0.1, and dropout is not supported)");
  }
  settings.only("use_bidirectional_attention",
                family.bidirectional != nullptr ? json(family.bidirectional) : json(false));
  // A choice of keys by a second, small attention, whose indices no gradient reaches.
  for (const char* key : {"index_topk", "index_n_heads", "index_head_dim"}) {
    if (family.indexers == Indexers::kNone && settings.find(key) != nullptr)
      settings.refuse(key, "none: of this model_type no class in transformers has indexers");
  }
  if (!family.pretraining_tp_unread) settings.only("pretraining_tp", 1);
}

void parse_biases(const ConfigReader& settings, const Family& family, Config& config) {
  const FamilyBiases& bias = family.bias;
  const char* const of_state_space = family.state_space ? family.state_space->in_bias : nullptr;
  const auto read = [&](const char* key, bool fallback) {
    return key == nullptr ? fallback : settings.flag(key, fallback);
  };
  config.qkv_bias = read(bias.qkv_key, bias.qkv);
  config.o_bias = read(bias.output_key, bias.output);
  config.mlp_bias = read(bias.mlp_key, false);
  // What the keys say that other families' classes read.
  const auto only = [&](const char* key, bool value) {
    for (const char* const own : {bias.qkv_key, bias.output_key, bias.mlp_key, of_state_space}) {
      if (own != nullptr && std::string_view(own) == key) return;
    }
    settings.only(key, value);
  };
  for (const char* key : {"attention_bias", "qkv_bias", "use_bias"}) only(key, config.qkv_bias);
  only("attention_out_bias", config.o_bias);
  only("mlp_bias", config.mlp_bias);
}

// A cap, which null switches off; one that the family's class does not read may not be there.
double softcap(const ConfigReader& settings, const char* key, const std::optional<double>& absent) {
  if (!absent) settings.only(key, nullptr);
  if (!absent || (settings.has(key) && settings.find(key) == nullptr)) return 0.0;
  return settings.find(key) == nullptr ? *absent : settings.positive(key, *absent);
}

// Whether MLPs have a gate and the activation that hidden_act names, which nothing else reads.
bool chooses_activation(const Family& family) {
  return family.activation == Activation::kSilu && !family.recurrent && !family.clamped_gate &&
         !family.muse && !family.step && !family.compressed && !family.hyper && !family.trained_positions;
}

// By transformers' names. Its gelu_new is the tanh's too.
void parse_chosen_activation(const ConfigReader& settings, Config& config) {
  static const std::map<std::string, Activation> kKnown = {
      {"silu", Activation::kSilu},         {"swish", Activation::kSilu},
      {"gelu", Activation::kGelu},         {"gelu_pytorch_tanh", Activation::kGeluTanh},
      {"gelu_new", Activation::kGeluTanh}, {"relu", Activation::kRelu}};
  constexpr const char* kKey = "hidden_act";
  const std::string name = settings.text(kKey).value_or("silu");
  const auto known = kKnown.find(name);
  if (known == kKnown.end()) settings.refuse(kKey, "silu, gelu, gelu_pytorch_tanh, gelu_new or relu");
  config.hidden_act = known->second;
  for (const char* key : {"mlp_hidden_act", "hidden_activation"}) settings.only(key, name);
}

void parse_activation(const ConfigReader& settings, const Family& family, Config& config) {
  if (chooses_activation(family)) return parse_chosen_activation(settings, config);
  const json activation = family.activation == Activation::kGeluTanh ? "gelu_pytorch_tanh"
                          : family.activation == Activation::kGelu   ? "gelu"
                          : family.activation == Activation::kRelu2  ? "relu2"
                                                                     : "silu";
  settings.only("mlp_hidden_act", activation);
  if (!family.gelu_means_tanh || settings.text("hidden_act") != "gelu")
    settings.only("hidden_act", activation);
  settings.only("hidden_activation", activation);
  config.hidden_act = family.activation;
}

void parse_attention(const ConfigReader& settings, const Family& family, Config& config) {
  config.qk_norm_full_width = family.qk_norm == QkNorm::kOfWholeProjections;
  const bool by_key = family.qk_norm == QkNorm::kByKey || family.qk_norm == QkNorm::kByKeyOfEach;
  config.qk_norm = by_key ? settings.flag("use_qk_norm", false) : family.qk_norm != QkNorm::kNone;
  config.qk_norm_by_head = config.qk_norm && family.qk_norm == QkNorm::kByKeyOfEach;
  if (family.qk_norm == QkNorm::kOfRotatedHeads) settings.only("use_qk_norm", true);
  if (family.qk_norm == QkNorm::kNone) settings.only("use_qk_norm", false);
  config.fused_projections = family.fused_projections;
  config.fused_gate_up = family.fused_gate_up;
  config.rope_interleaved = family.rope.interleaved;
  config.attention_sinks = family.attention_sinks;
  constexpr const char* kScalar = "query_pre_attn_scalar";
  auto scale_of = static_cast<double>(config.head_dim);
  if (family.query_pre_attn_scalar > 0.0) {
    scale_of = settings.positive(kScalar, family.query_pre_attn_scalar);
  } else if (family.step) {
    scale_of = settings.positive(kScalar, scale_of);
  } else {
    settings.only(kScalar, nullptr);
  }
  config.attention_scale = 1.0 / std::sqrt(scale_of);
  if (family.latent) parse_latent(settings, config);
  if (family.compressed) {
    parse_compressed(settings, config);
  } else if (family.indexers == Indexers::kOfKeyBlocks) {
    parse_key_blocks(settings, config);
  } else if (family.indexers != Indexers::kNone && !family.glm5_next) {
    parse_indexer(settings, family, config);
  }
  config.attn_logit_softcapping = softcap(settings, "attn_logit_softcapping", family.attn_softcapping);
  config.final_logit_softcapping = softcap(settings, "final_logit_softcapping", family.final_softcapping);
}

void parse_norms(const ConfigReader& settings, const Family& family, Config& config) {
  config.norm_adds_one = family.norm_adds_one;
  config.norm_centers = family.norm_centers;
  config.parallel = family.norms == NormLayout::kOneForBoth;
  settings.only("use_parallel_block", config.parallel);
  config.norm_after = family.norms == NormLayout::kAfter;
  config.glm_norm_names = family.norms == NormLayout::kAroundAsGlm;
  config.sandwich_norms = config.glm_norm_names || family.norms == NormLayout::kAround;
}

// Muse Glimmer's and Spark's norms, gate and factors.
void parse_muse(const ConfigReader& settings, const Family& family, Config& config) {
  if (!family.muse) return;
  const bool spark = family.muse_spark;
  config.plain_norms = config.output_gate_map = true;
  config.post_norm_eps = settings.positive("post_norm_eps", 1e-8);
  config.attention_scale *= settings.positive("qk_scale_factor", spark ? 5.4730064863875 : 3.87);
  config.logits_scaling =
      1.0 / settings.positive("output_multiplier", spark ? 0.1767766952966369 : 0.19611613513818404);
  if (!spark) return;
  config.residual_temperature = settings.positive("residual_gate_temperature", 0.3);
  // transformers' class has a base of its own where rope_parameters is absent, whatever stands outside, and
  // another where that lacks one.
  constexpr const char* kRope = "rope_parameters";
  for (const char* key : {"rope_theta", "rope_scaling"}) {
    if (settings.find(key) != nullptr) settings.refuse(key, fmt::format("{} instead of it", kRope));
  }
  if (settings.find(kRope) != nullptr) settings.inner(kRope).positive("rope_theta", 0.0);
}

// Constant factors: Gemma's of the embedding, Granite's, and Cohere's of the logits.
void parse_multipliers(const ConfigReader& settings, const Family& family, Config& config) {
  if (family.scales_embedding) {
    config.embedding_scale = std::sqrt(static_cast<double>(config.hidden_size));
    config.rounds_embedding_scale = true;
  }
  if (family.scales_logits) {
    config.logits_scaling = 1.0 / settings.positive("logit_scale", 0.0625);
  } else {
    settings.only("logit_scale", nullptr);
  }
  if (family.multipliers) {
    config.embedding_scale = settings.positive("embedding_multiplier", 1.0);
    config.residual_multiplier = settings.positive("residual_multiplier", 1.0);
    config.logits_scaling = settings.positive("logits_scaling", 1.0);
    config.attention_scale = settings.positive("attention_multiplier", 1.0);
    return;
  }
  const bool of_falcon = family.state_space && family.state_space->beside_attention;
  if (!of_falcon) settings.only("embedding_multiplier", nullptr);
  for (const char* key : {"residual_multiplier", "logits_scaling", "attention_multiplier"})
    settings.only(key, nullptr);
}

// DeepSeek V4's and GLM-5.3's streams.
void parse_mixed_streams(const ConfigReader& settings, HyperSettings& hyper) {
  constexpr int64_t kMostStreams = 64, kMostIterations = 1024;
  hyper.streams = settings.size("hc_mult", kMostStreams, 4);
  hyper.sinkhorn_iters = settings.size("hc_sinkhorn_iters", kMostIterations, 20);
  hyper.eps = settings.positive("hc_eps", 1e-6);
  settings.only("hc_magnitude", nullptr);
}

// Hunyuan 4's streams, and the gate of what attention gives; or those that are mixed.
void parse_hyper(const ConfigReader& settings, const Family& family, Config& config) {
  if (family.compressed || family.glm5_next) {
    parse_mixed_streams(settings, config.hyper);
    config.hyper.head_reads_mean = family.glm5_next;
    return;
  }
  if (!family.hyper) {
    for (const char* key : {"hc_mult", "hc_magnitude", "hc_eps"}) settings.only(key, nullptr);
    if (family.qwen4_exp) return;
    for (const char* key : {"hc_count", "hc_lowrank"}) settings.only(key, nullptr);
    return;
  }
  constexpr int64_t kMostStreams = 64;
  config.hyper.streams = settings.size("hc_mult", kMostStreams, 4);
  config.hyper.magnitude = settings.positive("hc_magnitude", 2.0);
  config.hyper.eps = settings.positive("hc_eps", 1e-6);
  config.output_gate_map = true;
}

// The clamped gate of GPT-OSS and MiniMax M3, or Hunyuan 4's clamps of what experts gate.
void parse_clamps(const ConfigReader& settings, const Family& family, Config& config) {
  if (family.hyper) {
    config.swiglu_limit = settings.positive("swiglu_limit", 10.0);
    settings.only("swiglu_alpha", nullptr);
    return;
  }
  if (family.compressed || family.glm5_next) {
    config.swiglu_limit = settings.positive("swiglu_limit", 10.0);
    config.limits_all_mlps = true;
    settings.only("swiglu_alpha", nullptr);
    return;
  }
  if (family.clamped_gate) {
    config.swiglu_alpha = settings.positive("swiglu_alpha", 1.702);
    config.swiglu_limit = settings.positive("swiglu_limit", 7.0);
    config.clamps_all_mlps = family.indexers == Indexers::kOfKeyBlocks;
    return;
  }
  settings.only("swiglu_alpha", nullptr);
  settings.only("swiglu_limit", nullptr);
}

// Muse Glimmer's: a base for each layer, of which transformers reads whether it is 0.
void parse_thetas(const ConfigReader& settings, const Family& family, Config& config) {
  constexpr const char* kKey = "layer_rope_theta";
  const int64_t layers = config.num_hidden_layers;
  const json* const thetas = settings.find(kKey);
  if (thetas == nullptr) {
    for (int64_t layer = 1; layer <= layers; ++layer)
      config.no_rope.push_back((layers - layer) % family.windows.period == 0);
    return;
  }
  const auto is_base = [](const json& theta) { return theta.is_number() && theta >= 0; };
  if (!thetas->is_array() || thetas->size() != static_cast<std::size_t>(layers) ||
      !std::all_of(thetas->begin(), thetas->end(), is_base))
    settings.refuse(kKey, fmt::format("a list of {} numbers of at least 0", layers));
  for (const json& theta : *thetas) config.no_rope.push_back(theta == 0);
}

// SmolLM3's layers without rotary embedding: in no_rope_layers they are the zeros.
void parse_no_rope(const ConfigReader& settings, const Family& family, Config& config) {
  constexpr const char* kKey = "no_rope_layers";
  constexpr const char* kInterval = "no_rope_layer_interval";
  const auto layers = static_cast<std::size_t>(config.num_hidden_layers);
  if (family.no_rope != NoRope::kByKeys) {
    settings.only(kKey, nullptr);
    settings.only(kInterval, nullptr);
    if (family.no_rope == NoRope::kAll) config.no_rope.assign(layers, true);
    if (family.no_rope == NoRope::kByThetas) return parse_thetas(settings, family, config);
    if (family.no_rope != NoRope::kByType) return;
    const std::string type = settings.text("position_embedding_type").value_or("nope");
    if (type != "rope" && type != "nope") settings.refuse("position_embedding_type", "rope, nope or null");
    config.no_rope.assign(layers, type == "nope");
    return;
  }
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

void parse_family(const ConfigReader& settings, const Family& family, Config& config) {
  refuse_unsupported(settings, family);
  parse_biases(settings, family, config);
  parse_activation(settings, family, config);
  parse_attention(settings, family, config);
  parse_norms(settings, family, config);
  parse_multipliers(settings, family, config);
  parse_muse(settings, family, config);
  parse_hyper(settings, family, config);
  parse_clamps(settings, family, config);
  parse_no_rope(settings, family, config);
  if (family.recurrent) {
    parse_recurrent(settings, family, config);
    if (family.qwen4_exp) parse_qwen4_exp(settings, config);
    if (family.glm5_next) parse_group_indexer(settings, family, config);
  } else {
    parse_windows(settings, family, config);
  }
  parse_gemma4(settings, family, config);
  if (family.step) parse_step(settings, config);
  parse_mixture(settings, family, config);
}

}  // namespace streambp
