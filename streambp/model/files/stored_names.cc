#include "streambp/model/files/stored_names.h"

#include <array>
#include <fmt/format.h>
#include <string_view>
#include <utility>
#include <vector>

#include "streambp/model/config/family.h"

namespace streambp {
namespace {

// What Mixtral's and MiniMax M2's files call the modules of a layer's mixture, and what they are here.
constexpr std::array<std::pair<std::string_view, std::string_view>, 6> kBlockSparseMoe = {
    {{".block_sparse_moe.experts.", ".mlp.experts."},
     {".block_sparse_moe.e_score_correction_bias", ".mlp.gate.e_score_correction_bias"},
     {".block_sparse_moe.gate.", ".mlp.gate."},
     {".w1.", ".gate_proj."},
     {".w3.", ".up_proj."},
     {".w2.", ".down_proj."}}};

// The same of Kimi Linear's, and what transformers 5.24 holds in a module of its own. It writes dense MLPs
// under block_sparse_moe too. Of experts alone w1, w3 and w2 are meant.
constexpr std::array<std::pair<std::string_view, std::string_view>, 5> kKimiModules = {
    {{".block_sparse_moe.", ".mlp."},
     {".self_attn.f_a_proj.", ".self_attn.forget_gate.f_a_proj."},
     {".self_attn.f_b_proj.", ".self_attn.forget_gate.f_b_proj."},
     {".self_attn.dt_bias", ".self_attn.forget_gate.dt_bias"},
     {".self_attn.A_log", ".self_attn.forget_gate.A_log"}}};
constexpr std::array<std::pair<std::string_view, std::string_view>, 3> kKimiExperts = {
    {{".w1.", ".gate_proj."}, {".w3.", ".up_proj."}, {".w2.", ".down_proj."}}};
constexpr std::string_view kMlpExperts = ".mlp.experts.";

// What GLM-5.3's files call what transformers holds in modules of its own.
constexpr std::array<std::pair<std::string_view, std::string_view>, 6> kGlm5NextModules = {
    {{".self_attn.f_a_proj.", ".self_attn.forget_gate.f_a_proj."},
     {".self_attn.f_b_proj.", ".self_attn.forget_gate.f_b_proj."},
     {".self_attn.dt_bias", ".self_attn.forget_gate.dt_bias"},
     {".self_attn.A_log", ".self_attn.forget_gate.A_log"},
     {".hc_attn_", ".attn_hc."},
     {".hc_ffn_", ".ffn_hc."}}};

// What Hunyuan 4's files call what transformers holds in modules of its own. It writes an MLP's gate as
// linear_gate too, and reads both.
constexpr std::array<std::pair<std::string_view, std::string_view>, 6> kHunyuanModules = {
    {{".hc_pre.hc_attn_layer.hc_", ".attn_hc."},
     {".hc_pre.hc_mlp_layer.hc_", ".ffn_hc."},
     {".hc_pre.hc_head.hc_head_", ".hc_head.hc_"},
     {".learnable_sink_param", ".sinks"},
     {".self_attn.linear_gate.", ".self_attn.gate_proj."},
     {".linear_gate.", ".gate_proj."}}};

// What transformers 5 calls the modules of a Granite's mixture, and what files do.
constexpr std::array<std::pair<std::string_view, std::string_view>, 3> kGraniteModules = {
    {{".block_sparse_moe.experts.gate_up_proj", ".block_sparse_moe.input_linear.weight"},
     {".block_sparse_moe.experts.down_proj", ".block_sparse_moe.output_linear.weight"},
     {".block_sparse_moe.router.weight", ".block_sparse_moe.router.layer.weight"}}};

// What Step 3.7's files do.
constexpr std::array<std::pair<std::string_view, std::string_view>, 3> kStepModules = {
    {{".moe.gate.", ".mlp.gate."},
     {".moe.router_bias", ".mlp.gate.e_score_correction_bias"},
     {".share_expert.", ".mlp.shared_experts."}}};

// What LFM3's files call the map of its gates.
constexpr std::pair<std::string_view, std::string_view> kLfm3Gate = {".self_attn.gate_proj.",
                                                                     ".self_attn.g_proj."};

// What DeepSeek V4's files call modules, in the order in which names are replaced: those of indexers, which
// have a compressor there and here are a part of one, before the others.
constexpr std::array<std::pair<std::string_view, std::string_view>, 20> kDeepseekV4Modules = {
    {{".attn.indexer.weights_proj.", ".self_attn.compressor.indexer.scorer.weights_proj."},
     {".attn.indexer.wq_b.", ".self_attn.compressor.indexer.q_b_proj."},
     {".attn.indexer.compressor.", ".self_attn.compressor.indexer."},
     {".attn.", ".self_attn."},
     {".ffn.", ".mlp."},
     {".attn_norm.", ".input_layernorm."},
     {".ffn_norm.", ".post_attention_layernorm."},
     {".hc_attn_", ".attn_hc."},
     {".hc_ffn_", ".ffn_hc."},
     {".attn_sink", ".sinks"},
     {".ape", ".position_bias"},
     {".wq_a.", ".q_a_proj."},
     {".wq_b.", ".q_b_proj."},
     {".wkv.", ".kv_proj."},
     {".wgate.", ".gate_proj."},
     {".wo_a.", ".o_a_proj."},
     {".wo_b.", ".o_b_proj."},
     {".q_norm.", ".q_a_norm."},
     {".norm.", ".kv_norm."},
     {".gate.bias", ".gate.e_score_correction_bias"}}};
// Of experts.
constexpr std::array<std::pair<std::string_view, std::string_view>, 3> kDeepseekV4Experts = {
    {{".w1.", ".gate_proj."}, {".w3.", ".up_proj."}, {".w2.", ".down_proj."}}};
// Outside of layers: as transformers writes it, and as published.
constexpr std::array<std::pair<std::string_view, std::string_view>, 5> kDeepseekV4Outside = {
    {{"embed.weight", "model.embed_tokens.weight"},
     {"head.weight", "lm_head.weight"},
     {"hc_head_", "model.hc_head.hc_"},
     {"layers.", "model.layers."},
     {"norm.weight", "model.norm.weight"}}};

// What Mistral Large 4's files call modules, in the order in which names are replaced. Of a text model alone
// transformers writes, and reads, all but those that whole models have in their towers too.
constexpr std::array<std::pair<std::string_view, std::string_view>, 14> kMistralLarge4Modules = {
    {{".attention.", ".self_attn."},
     {".wq.", ".q_proj."},
     {".wkv_a_with_mqa.", ".kv_a_proj_with_mqa."},
     {".wkv_b.", ".kv_b_proj."},
     {".wo.", ".o_proj."},
     {".attention_norm.", ".input_layernorm."},
     {".ffn_norm.", ".post_attention_layernorm."},
     {".kv_a_norm.", ".kv_a_layernorm."},
     {".ssmax_scaling.s", ".softmax_scaling.scale"},
     {".ssmax_scaling.b", ".softmax_scaling.bias"},
     {".shared_experts.", ".mlp.shared_experts."},
     {".experts.", ".mlp.experts."},
     {".gate.", ".mlp.gate."},
     {".feed_forward.", ".mlp."}}};
constexpr std::string_view kOfTowersToo = ".wo.";
// Of MLPs; of a text model alone, of experts.
constexpr std::array<std::pair<std::string_view, std::string_view>, 3> kMistralLarge4Mlps = {
    {{".w1.", ".gate_proj."}, {".w3.", ".up_proj."}, {".w2.", ".down_proj."}}};
// Outside of layers.
constexpr std::array<std::pair<std::string_view, std::string_view>, 5> kMistralLarge4Outside = {
    {{"tok_embeddings.", "model.embed_tokens."},
     {"lerope.alpha", kTrainedFrequencies},
     {"layers.", "model.layers."},
     {"norm.", "model.norm."},
     {"output.", "lm_head."}}};

// What MiniMax M3's published files call modules that hold what they do here; the others are in pieces.h.
constexpr std::array<std::pair<std::string_view, std::string_view>, 7> kMiniMaxM3Modules = {
    {{".block_sparse_moe.e_score_correction_bias", ".mlp.gate.e_score_correction_bias"},
     {".block_sparse_moe.gate.", ".mlp.gate."},
     {".block_sparse_moe.shared_experts.", ".mlp.shared_experts."},
     {".self_attn.index_q_proj.", ".self_attn.indexer.q_proj."},
     {".self_attn.index_k_proj.", ".self_attn.indexer.k_proj."},
     {".self_attn.index_q_norm.", ".self_attn.indexer.q_norm."},
     {".self_attn.index_k_norm.", ".self_attn.indexer.k_norm."}}};

// What Nemotron-H's files call what is outside of layers.
constexpr std::array<std::pair<std::string_view, std::string_view>, 4> kBackbone = {
    {{"backbone.embeddings.", "model.embed_tokens."},
     {"backbone.norm_f.", "model.norm."},
     {"backbone.", "model."},
     {"model.norm_f.", "model.norm."}}};  // of the class, whose names adapters have

/// The names outside layers that files of the family have and those here, in pairs.
std::vector<std::pair<std::string, std::string>> outside_layers(const Config& config) {
  const FamilyModules& modules = modules_of(config);
  if (modules.backbone) return {kBackbone.begin(), kBackbone.end()};
  if (modules.last_norm == std::string_view("norm")) return {};
  return {std::pair{fmt::format("model.{}.", modules.last_norm), std::string("model.norm.")}};
}

std::string with_replaced(std::string name, std::string_view from, std::string_view to) {
  if (const auto at = name.find(from); at != std::string::npos) name.replace(at, from.size(), to);
  return name;
}

// DeepSeek V4's.
std::string deepseek_v4_stored(std::string name) {
  if (name.starts_with("lm_head.")) return name.substr(3);
  if (!name.starts_with("model.layers.")) return name;
  if (name.find(".mlp.") != std::string::npos) {
    for (const auto& [stored, ours] : kDeepseekV4Experts) name = with_replaced(std::move(name), ours, stored);
  }
  for (const auto& [stored, ours] : kDeepseekV4Modules) name = with_replaced(std::move(name), ours, stored);
  return name;
}

std::string deepseek_v4_parameter(std::string name) {
  for (const auto& [stored, ours] : kDeepseekV4Outside) {
    if (name.starts_with(stored)) {
      name.replace(0, stored.size(), ours);
      break;
    }
  }
  if (!name.starts_with("model.layers.")) return name;
  const bool of_experts = name.find(".ffn.") != std::string::npos;
  if (of_experts) {
    for (const auto& [stored, ours] : kDeepseekV4Experts) name = with_replaced(std::move(name), stored, ours);
  }
  for (const auto& [stored, ours] : kDeepseekV4Modules) name = with_replaced(std::move(name), stored, ours);
  // Scales of a matrix in FP8 or FP4, and not those of the streams in transformers' words.
  constexpr std::string_view kScales = ".scale";
  if (name.ends_with(kScales) && !name.ends_with("_hc.scale"))
    name = name.substr(0, name.size() - kScales.size()) + ".weight_scale_inv";
  return name;
}

// Mistral Large 4's, of a text model alone, as which it is written.
std::string mistral_large4_stored(std::string name) {
  if (name.find(kMlpExperts) != std::string::npos) {
    for (const auto& [stored, ours] : kMistralLarge4Mlps) name = with_replaced(std::move(name), ours, stored);
  }
  for (const auto& [stored, ours] : kMistralLarge4Modules) {
    if (stored != kOfTowersToo) name = with_replaced(std::move(name), ours, stored);
  }
  return name;
}

std::string mistral_large4_parameter(std::string name) {
  for (const auto& [stored, ours] : kMistralLarge4Outside) {
    if (!name.starts_with(stored)) continue;
    name.replace(0, stored.size(), ours);
    break;
  }
  if (!name.starts_with("model.layers.")) return name;
  const bool is_ours = name.find(".mlp.") != std::string::npos;
  for (const auto& [stored, ours] : kMistralLarge4Modules) {
    if (!is_ours || ours.find(".mlp.") == std::string_view::npos)
      name = with_replaced(std::move(name), stored, ours);
    if (!is_ours && ours.find(".mlp.") != std::string_view::npos && name.find(".mlp.") != std::string::npos)
      break;
  }
  if (name.find(".mlp.") == std::string::npos) return name;
  for (const auto& [stored, ours] : kMistralLarge4Mlps) name = with_replaced(std::move(name), stored, ours);
  return name;
}

// Of a name below model.layers.N, whether that layer has experts.
bool is_in_sparse_layer(const std::string& name, const Config& config) {
  for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    if (name.starts_with(fmt::format("model.layers.{}.", layer))) return config.is_sparse(layer);
  }
  return false;
}

}  // namespace

std::string stored_name(const Config& config, const std::string& parameter) {
  std::string name = parameter;
  for (const auto& [stored, ours] : outside_layers(config))
    name = with_replaced(std::move(name), ours, stored);
  if (config.is_compressed()) return deepseek_v4_stored(std::move(name));
  if (config.latent.trained_positions) return mistral_large4_stored(std::move(name));
  if (family_of(config).glm5_next) {
    for (const auto& [stored, ours] : kGlm5NextModules) name = with_replaced(std::move(name), ours, stored);
    return name;
  }
  if (config.has_low_rank_streams()) return name;
  if (family_of(config).lfm3) return with_replaced(std::move(name), kLfm3Gate.second, kLfm3Gate.first);
  if (config.has_streams()) {
    for (const auto& [stored, ours] : kHunyuanModules) name = with_replaced(std::move(name), ours, stored);
    return name;
  }
  if (config.mixture.kimi_names) {
    if (name.find(kMlpExperts) != std::string::npos) {
      for (const auto& [stored, ours] : kKimiExperts) name = with_replaced(std::move(name), ours, stored);
    }
    name = with_replaced(std::move(name), ".self_attn.forget_gate.", ".self_attn.");
    return is_in_sparse_layer(name, config) ? with_replaced(std::move(name), ".mlp.", ".block_sparse_moe.")
                                            : name;
  }
  if (!config.mixture.block_sparse_moe_names || name.find(".mlp.") == std::string::npos) return name;
  for (const auto& [stored, ours] : kBlockSparseMoe) name = with_replaced(std::move(name), ours, stored);
  return name;
}

std::string last_norm_of_class(const Config& config) {
  const FamilyModules& modules = modules_of(config);
  return std::string("model.") + (modules.backbone ? "norm_f" : modules.last_norm);
}

std::string parameter_name(const Config& config, const std::string& stored) {
  if (config.is_compressed()) return deepseek_v4_parameter(stored);
  if (config.latent.trained_positions) return mistral_large4_parameter(stored);
  std::string name = stored;
  for (const auto& [theirs, ours] : outside_layers(config))
    name = with_replaced(std::move(name), theirs, ours);
  if (config.mixture.granite_names) {
    for (const auto& [theirs, ours] : kGraniteModules) name = with_replaced(std::move(name), theirs, ours);
  }
  if (config.clamps_all_mlps) {
    for (const auto& [theirs, ours] : kMiniMaxM3Modules) name = with_replaced(std::move(name), theirs, ours);
    return name;
  }
  if (family_of(config).lfm3) return with_replaced(std::move(name), kLfm3Gate.first, kLfm3Gate.second);
  if (family_of(config).step) {
    for (const auto& [theirs, ours] : kStepModules) name = with_replaced(std::move(name), theirs, ours);
  }
  if (family_of(config).glm5_next) {
    for (const auto& [theirs, ours] : kGlm5NextModules) name = with_replaced(std::move(name), theirs, ours);
    return name;
  }
  if (config.has_low_rank_streams()) return name;
  if (config.has_streams()) {
    for (const auto& [theirs, ours] : kHunyuanModules) name = with_replaced(std::move(name), theirs, ours);
    return name;
  }
  if (config.mixture.kimi_names) {
    for (const auto& [theirs, ours] : kKimiModules) name = with_replaced(std::move(name), theirs, ours);
    if (name.find(kMlpExperts) == std::string::npos) return name;
    for (const auto& [theirs, ours] : kKimiExperts) name = with_replaced(std::move(name), theirs, ours);
    return name;
  }
  if (!config.mixture.block_sparse_moe_names) return name;
  for (const auto& [theirs, ours] : kBlockSparseMoe) name = with_replaced(std::move(name), theirs, ours);
  return name;
}

}  // namespace streambp
