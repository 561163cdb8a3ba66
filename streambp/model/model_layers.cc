// Parameters become layers: which maps and norms a layer has, over which parameters or parts of them. See
// model.h.
#include <fmt/format.h>
#include <utility>

#include "streambp/model/model.h"

namespace streambp {

Linear* Model::add_linear(const std::string& name, const std::string& weight, const std::string& bias) {
  auto map = std::make_unique<Linear>();
  map->name = name;
  map->weight = &parameter(weight);
  if (!bias.empty()) map->bias = &parameter(bias);
  return maps_.emplace_back(std::move(map)).get();
}

Linear* Model::add_map(const std::string& name, bool bias) {
  return add_linear(name, name + ".weight", bias ? name + ".bias" : "");
}

Linear* Model::add_residual_map(const std::string& name, bool bias) {
  Linear* const map = add_map(name, bias);
  map->output_scale = config_.residual_multiplier;
  return map;
}

std::vector<const Linear*> Model::add_fused_maps(const std::string& name, const std::vector<int64_t>& sizes) {
  const Parameter& whole = parameter(name + ".weight");
  std::vector<const Linear*> maps;
  int64_t first_row = 0;
  for (const int64_t rows : sizes) {
    Linear* const map = add_map(name, /*bias=*/false);
    map->weight = add_rows(whole, first_row, rows);
    map->first_row = std::exchange(first_row, first_row + rows);
    maps.push_back(map);
  }
  return maps;
}

Linear* Model::add_expert_map(const std::string& experts, int64_t expert, const std::string& part) {
  const std::string whole = experts + "." + part;
  Linear* const map = add_linear(fmt::format("{}.{}.{}", experts, expert, part), whole, whole + "_bias");
  map->weight = add_part(*map->weight, [=](const at::Tensor& x) { return x.select(0, expert).t(); });
  map->bias = add_part(*map->bias, [=](const at::Tensor& x) { return x.select(0, expert); });
  return map;
}

GatedMlp Model::make_mlp(const std::string& name) {
  const bool bias = config_.mlp_bias;
  return {add_map(name + ".gate_proj", bias), add_map(name + ".up_proj", bias),
          add_residual_map(name + ".down_proj", bias), config_.hidden_act};
}

Mixture Model::make_mixture(const std::string& name) {
  const MixtureSettings& settings = config_.mixture;
  const std::string experts = name + ".experts";
  Mixture mixture;
  mixture.router = settings.biased_interleaved ? add_map(name + ".router", /*bias=*/true)
                                               : add_map(name + ".gate", /*bias=*/false);
  mixture.experts_per_token = settings.num_experts_per_tok;
  mixture.normalise = settings.norm_topk_prob;
  for (int64_t expert = 0; expert < settings.num_experts; ++expert) {
    if (!settings.biased_interleaved) {
      mixture.experts.push_back(make_mlp(fmt::format("{}.{}", experts, expert)));
      continue;
    }
    GatedMlp mlp;
    mlp.gate_up_proj = add_expert_map(experts, expert, "gate_up_proj");
    mlp.down_proj = add_expert_map(experts, expert, "down_proj");
    mlp.clamped = {config_.swiglu_alpha, config_.swiglu_limit};
    mixture.experts.push_back(mlp);
  }
  if (settings.sigmoid_scores) {
    mixture.correction = &parameter(name + ".gate.e_score_correction_bias");
    mixture.groups = settings.n_group;
    mixture.topk_groups = settings.topk_group;
    mixture.scale = settings.routed_scaling_factor;
  }
  if (settings.shared_expert_ungated) {
    mixture.shared_expert = make_mlp(name + ".shared_experts");
  } else if (settings.shared_expert_intermediate_size > 0) {
    mixture.shared_expert = make_mlp(name + ".shared_expert");
    mixture.shared_expert_gate = add_map(name + ".shared_expert_gate", /*bias=*/false);
  }
  return mixture;
}

void Model::make_attention(const std::string& name, DecoderLayer::Weights& weights) {
  if (config_.fused_projections) {
    const int64_t keys = config_.num_key_value_heads * config_.head_dim;
    const auto qkv =
        add_fused_maps(name + ".qkv_proj", {config_.num_attention_heads * config_.head_dim, keys, keys});
    std::tie(weights.q_proj, weights.k_proj, weights.v_proj) = std::tie(qkv[0], qkv[1], qkv[2]);
  } else {
    weights.q_proj = add_map(name + ".q_proj", config_.qkv_bias);
    weights.k_proj = add_map(name + ".k_proj", config_.qkv_bias);
    weights.v_proj = add_map(name + ".v_proj", config_.qkv_bias);
  }
  weights.o_proj = add_residual_map(name + ".o_proj", config_.o_bias);
  if (config_.qk_norm) {
    weights.q_norm = norm_of(name + ".q_norm");
    weights.k_norm = norm_of(name + ".k_norm");
  }
  if (config_.attention_sinks) weights.sinks = &parameter(name + ".sinks");
}

void Model::make_delta_rule(const std::string& name, DecoderLayer::Weights& weights) {
  DeltaRule& rule = weights.delta_rule;
  rule.settings = config_.delta_rule;
  if (rule.settings.fused_projections) {
    rule.in_proj_qkvz = add_map(name + ".in_proj_qkvz", /*bias=*/false);
    rule.in_proj_ba = add_map(name + ".in_proj_ba", /*bias=*/false);
  } else {
    rule.in_proj_qkv = add_map(name + ".in_proj_qkv", /*bias=*/false);
    rule.in_proj_z = add_map(name + ".in_proj_z", /*bias=*/false);
    rule.in_proj_b = add_map(name + ".in_proj_b", /*bias=*/false);
    rule.in_proj_a = add_map(name + ".in_proj_a", /*bias=*/false);
  }
  rule.conv1d = &parameter(name + ".conv1d.weight");
  rule.a_log = &parameter(name + ".A_log");
  rule.dt_bias = &parameter(name + ".dt_bias");
  rule.norm = &parameter(name + ".norm.weight");
  rule.norm_eps = config_.rms_norm_eps;
  weights.o_proj = add_residual_map(name + ".out_proj", /*bias=*/false);
}

void Model::make_latent(const std::string& name, DecoderLayer::Weights& weights) {
  constexpr double kEps = 1e-6;  // of its own norms in transformers, whatever rms_norm_eps says
  const LatentAttentionSettings& settings = config_.latent;
  LatentAttention& latent = weights.latent;
  const auto norm = [&](const char* part) { return RmsNorm{&parameter(name + part), kEps, false}; };
  if (settings.q_lora_rank > 0) {
    latent.q_a_proj = add_map(name + ".q_a_proj", config_.qkv_bias);
    latent.q_a_norm = norm(".q_a_layernorm.weight");
    latent.q_proj = add_map(name + ".q_b_proj", /*bias=*/false);
  } else {
    latent.q_proj = add_map(name + ".q_proj", /*bias=*/false);
  }
  latent.kv_a_proj = add_map(name + ".kv_a_proj_with_mqa", config_.qkv_bias);
  latent.kv_a_norm = norm(".kv_a_layernorm.weight");
  latent.kv_b_proj = add_map(name + ".kv_b_proj", /*bias=*/false);
  latent.interleaved = config_.rope_interleaved;
  latent.heads = {latent.kv_b_proj, config_.num_attention_heads, settings.qk_nope_head_dim,
                  settings.qk_rope_head_dim, settings.v_head_dim};
  weights.o_proj = add_residual_map(name + ".o_proj", config_.o_bias);
}

RmsNorm Model::norm_of(const std::string& name) const {
  return {&parameter(name + ".weight"), config_.rms_norm_eps, config_.norm_adds_one};
}

DecoderLayer Model::make_layer(int64_t index) {
  const std::string prefix = fmt::format("model.layers.{}.", index);
  const auto norm = [&](const std::string& name) {
    return name.empty() ? RmsNorm{} : norm_of(prefix + name);
  };
  DecoderLayer::Weights weights;
  const NormNames names = config_.norm_names();
  weights.before_attention = norm(names.before_attention);
  weights.after_attention = norm(names.after_attention);
  weights.before_mlp = norm(names.before_mlp);
  weights.after_mlp = norm(names.after_mlp);
  if (config_.is_recurrent(index)) {
    make_delta_rule(prefix + "linear_attn", weights);
  } else if (config_.is_latent()) {
    make_latent(prefix + "self_attn", weights);
  } else {
    make_attention(prefix + "self_attn", weights);
  }
  const std::string mlp = prefix + "mlp";
  if (config_.is_sparse(index)) {
    weights.mixture = make_mixture(mlp);
  } else if (config_.fused_projections || config_.fused_gate_up) {
    const auto maps =
        add_fused_maps(mlp + ".gate_up_proj", {config_.intermediate_size, config_.intermediate_size});
    weights.mlp = {maps[0], maps[1], add_residual_map(mlp + ".down_proj", /*bias=*/false),
                   config_.hidden_act};
  } else {
    weights.mlp = make_mlp(mlp);
  }
  return {config_, index, std::move(weights)};
}

}  // namespace streambp
