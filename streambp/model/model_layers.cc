// Parameters become layers: which maps and norms a layer has, over which parameters or parts of them. See
// model.h.
#include <cmath>
#include <fmt/format.h>
#include <utility>

#include "streambp/memory/meter.h"
#include "streambp/model/config/family.h"
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

std::vector<const Linear*> Model::add_fused_maps(const std::string& name, const std::vector<int64_t>& sizes,
                                                 const std::vector<double>& scales, bool bias) {
  const Parameter& whole = parameter(name + ".weight");
  std::vector<const Linear*> maps;
  int64_t first_row = 0;
  for (const int64_t rows : sizes) {
    Linear* const map = add_map(name, bias);
    map->weight = add_rows(whole, first_row, rows);
    if (bias) map->bias = add_rows(*map->bias, first_row, rows);
    map->first_row = std::exchange(first_row, first_row + rows);
    if (!scales.empty()) map->output_scale = scales[maps.size()];
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

GatedMlp Model::make_mlp(const std::string& name, bool of_expert) {
  const bool bias = config_.mlp_bias && !of_expert;
  if (!config_.has_gate()) {
    return {.down_proj = add_residual_map(name + ".down_proj", bias),
            .activation = config_.hidden_act,
            .gate_up_proj = add_map(name + ".up_proj", bias)};
  }
  const FamilyModules& modules = modules_of(config_);
  Linear *const gate = add_map(name + "." + modules.gate, bias), *const up =
                                                                     add_map(name + "." + modules.up, bias);
  gate->output_scale = config_.gate_multiplier;
  Linear* const down = add_residual_map(name + "." + modules.down, bias);
  down->output_scale *= config_.down_multiplier;
  return {gate, up, down, config_.hidden_act};
}

GatedMlp Model::make_fused_mlp(const std::string& name, int64_t width) {
  const FamilyModules& modules = modules_of(config_);
  const auto maps = add_fused_maps(name + "." + modules.gate_up, {width, width});
  return {maps[0], maps[1], add_residual_map(name + "." + modules.down, /*bias=*/false), config_.hidden_act};
}

void Model::clamp_all(DecoderLayer::Weights& weights) const {
  const auto clamp = [&](GatedMlp& mlp) {
    mlp.is_clamped = true;
    mlp.clamped = {config_.swiglu_alpha, config_.swiglu_limit};
  };
  for (GatedMlp& expert : weights.mixture.experts) clamp(expert);
  clamp(weights.mixture.shared_expert);
  clamp(weights.mlp);
}

Mixture Model::make_granite_mixture(const std::string& prefix) {
  const MixtureSettings& settings = config_.mixture;
  const std::string in = prefix + "block_sparse_moe.";
  Mixture mixture;
  mixture.router = add_map(in + "router.layer", /*bias=*/false);
  mixture.experts_per_token = settings.num_experts_per_tok;
  mixture.normalise = settings.norm_topk_prob;
  add_stacked_experts(in + "experts", in + "input_linear.weight", in + "output_linear.weight", mixture);
  if (settings.shared_expert_intermediate_size > 0)
    mixture.shared_expert =
        make_fused_mlp(prefix + modules_of(config_).mlp, settings.shared_expert_intermediate_size);
  return mixture;
}

Mixture Model::make_mixture(const std::string& name, int64_t index) {
  const MixtureSettings& settings = config_.mixture;
  const std::string experts = name + ".experts";
  Mixture mixture;
  Linear* const router = settings.biased_interleaved ? add_map(name + ".router", /*bias=*/true)
                                                     : add_map(name + ".gate", /*bias=*/false);
  router->output_scale = settings.router_factor;
  mixture.router = router;
  mixture.experts_per_token = settings.num_experts_per_tok;
  mixture.normalise = settings.norm_topk_prob;
  if (settings.stacked) {
    add_stacked_experts(experts, experts + ".gate_up_proj", experts + ".down_proj", mixture);
    if (!config_.clamps_all_mlps) {
      for (GatedMlp& expert : mixture.experts) expert.limit = config_.swiglu_limit;
    }
  }
  for (int64_t expert = 0; !settings.stacked && expert < settings.num_experts; ++expert) {
    if (!settings.biased_interleaved) {
      mixture.experts.push_back(make_mlp(fmt::format("{}.{}", experts, expert), /*of_expert=*/true));
      continue;
    }
    GatedMlp mlp;
    mlp.gate_up_proj = add_expert_map(experts, expert, "gate_up_proj");
    mlp.down_proj = add_expert_map(experts, expert, "down_proj");
    mlp.clamped = {config_.swiglu_alpha, config_.swiglu_limit};
    mixture.experts.push_back(mlp);
  }
  mixture.sigmoid = settings.sigmoid_scores;
  mixture.wide_logits = settings.wide_logits;
  mixture.sqrt_softplus = settings.sqrt_softplus_scores;
  if (settings.is_hashed(index)) {
    mixture.experts_of_token = &parameter(name + ".gate.tid2eid");
  } else if (settings.corrected) {
    mixture.correction = &parameter(name + "." + family_of(config_).experts.correction);
  }
  mixture.groups = settings.n_group;
  mixture.topk_groups = settings.topk_group;
  mixture.scale = settings.routed_scaling_factor;
  mixture.added_to_sum = settings.added_to_sum;
  mixture.least_sum = settings.least_sum;
  if (settings.moe_hidden_size > 0 && !settings.plain_latents) {
    mixture.output_norm = norm_of(experts + ".post_expert_norm");
    mixture.output_norm.eps = config_.post_norm_eps;
  }
  if (settings.shared_expert_intermediate_size == 0) return mixture;
  if (config_.fused_gate_up) {
    mixture.shared_expert =
        make_fused_mlp(name + ".shared_experts", settings.shared_expert_intermediate_size);
  } else if (settings.shared_expert_ungated) {
    mixture.shared_expert = make_mlp(name + ".shared_experts");
  } else {
    mixture.shared_expert = make_mlp(name + ".shared_expert");
    mixture.shared_expert_gate = add_map(name + ".shared_expert_gate", /*bias=*/false);
  }
  return mixture;
}

void Model::add_stacked_experts(const std::string& name, const std::string& gate_up, const std::string& down,
                                Mixture& mixture) {
  const auto map_of_expert = [&](int64_t expert, const std::string& whole, const char* part, int64_t first,
                                 int64_t rows) {
    Linear* const map = add_linear(fmt::format("{}.{}.{}", name, expert, part), whole);
    map->weight = add_part(*map->weight,
                           [=](const at::Tensor& x) { return x.select(0, expert).narrow(0, first, rows); });
    return map;
  };
  const int64_t width = config_.mixture.moe_intermediate_size;
  for (int64_t expert = 0; expert < config_.mixture.num_experts; ++expert) {
    Linear* const output = map_of_expert(expert, down, "down_proj", 0, config_.expert_size());
    output->output_scale = config_.residual_multiplier;
    mixture.experts.push_back({map_of_expert(expert, gate_up, "gate_proj", 0, width),
                               map_of_expert(expert, gate_up, "up_proj", width, width), output,
                               config_.hidden_act});
  }
}

void Model::make_mixture_next_to_mlp(const std::string& prefix, DecoderLayer::Weights& weights) {
  const MixtureSettings& settings = config_.mixture;
  Mixture& mixture = weights.mixture;
  Linear* const router = add_map(prefix + "router.proj", /*bias=*/false);
  router->output_scale = 1.0 / std::sqrt(static_cast<double>(config_.hidden_size));
  mixture.router = router;
  mixture.expert_scale = &parameter(prefix + "router.per_expert_scale");
  mixture.experts_per_token = settings.num_experts_per_tok;
  mixture.normalise = settings.norm_topk_prob;
  const std::string experts = prefix + "experts";
  add_stacked_experts(experts, experts + ".gate_up_proj", experts + ".down_proj", mixture);
  weights.router_norm = {&parameter(prefix + "router.scale"), config_.rms_norm_eps, false};
  weights.after_mlp_alone = norm_of(prefix + "post_feedforward_layernorm_1");
  weights.before_experts = norm_of(prefix + "pre_feedforward_layernorm_2");
  weights.after_experts = norm_of(prefix + "post_feedforward_layernorm_2");
}

PerLayerInput Model::make_per_layer_input(const std::string& prefix, int64_t index) {
  const int64_t size = config_.gemma4.hidden_size_per_layer_input;
  PerLayerInput input;
  Linear* const projection = add_map("model.per_layer_model_projection", /*bias=*/false);
  projection->weight = add_rows(*projection->weight, index * size, size);
  projection->first_row = index * size;
  projection->output_scale = 1.0 / std::sqrt(static_cast<double>(config_.hidden_size));
  input.model_projection = projection;
  input.projection_norm = norm_of("model.per_layer_projection_norm");
  input.table = add_part(parameter("model.embed_tokens_per_layer.weight"),
                         [=](const at::Tensor& x) { return x.narrow(1, index * size, size); });
  input.table_scale =
      at::scalar_tensor(std::sqrt(static_cast<double>(size)), placement_.dtype).item<double>();
  input.pad_token_id = config_.pad_token_id;
  input.gate = add_map(prefix + "per_layer_input_gate", /*bias=*/false);
  input.projection = add_map(prefix + "per_layer_projection", /*bias=*/false);
  input.norm = norm_of(prefix + "post_per_layer_input_norm");
  return input;
}

void Model::make_delta_rule(const std::string& name, DecoderLayer::Weights& weights) {
  DeltaRule& rule = weights.delta_rule;
  rule.settings = config_.delta_rule;
  if (rule.settings.channel_gates) return make_channel_rule(name, weights);
  if (rule.settings.convolution_alone) {
    const int64_t size = config_.hidden_size;
    const auto maps = add_fused_maps(name + ".in_proj", {size, size, size}, {}, rule.settings.in_bias);
    std::tie(rule.in_proj_b, rule.in_proj_z, rule.in_proj_qkv) = std::tie(maps[0], maps[1], maps[2]);
    rule.conv1d = &parameter(name + ".conv.weight");
    if (rule.settings.conv_bias) rule.conv_bias = &parameter(name + ".conv.bias");
    weights.o_proj = add_residual_map(name + ".out_proj", rule.settings.out_bias);
    return;
  }
  if (rule.settings.state_space) {
    const auto& [of_z, of_x, of_b, of_c, of_steps] = rule.settings.in_multipliers;
    const bool alike = of_x == of_b && of_x == of_c;
    const auto maps = add_fused_maps(
        name + ".in_proj", {rule.settings.values(), rule.settings.channels(), rule.settings.value_heads},
        {of_z, alike ? of_x : 1.0, of_steps}, rule.settings.in_bias);
    rule.scales_channels = !alike;
    std::tie(rule.in_proj_z, rule.in_proj_qkv, rule.in_proj_a) = std::tie(maps[0], maps[1], maps[2]);
    rule.skip = &parameter(name + ".D");
    if (rule.settings.conv_bias) rule.conv_bias = &parameter(name + ".conv1d.bias");
  } else if (rule.settings.fused_projections) {
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
  if (rule.settings.norm_before_gate) {
    const int64_t groups = rule.settings.key_heads, size = rule.settings.values() / groups;
    for (int64_t group = 0; group < groups; ++group)
      rule.norms_before_gate.push_back(
          {add_part(parameter(name + ".norm.weight"),
                    [=](const at::Tensor& x) { return x.narrow(0, group * size, size); }),
           config_.rms_norm_eps});
  } else if (rule.settings.norms_gated) {
    rule.norm = &parameter(name + ".norm.weight");
  }
  rule.norm_eps = rule.settings.norm_eps > 0.0 ? rule.settings.norm_eps : config_.rms_norm_eps;
  Linear* const out = add_residual_map(name + ".out_proj", rule.settings.out_bias);
  out->output_scale *= rule.settings.out_multiplier;
  (rule.settings.beside_attention ? weights.recurrent_out : weights.o_proj) = out;
}

void Model::make_channel_rule(const std::string& name, DecoderLayer::Weights& weights) {
  DeltaRule& rule = weights.delta_rule;
  const auto map = [&](const char* part) { return add_map(name + part, /*bias=*/false); };
  rule.q_proj = map(".q_proj");
  rule.k_proj = map(".k_proj");
  rule.v_proj = map(".v_proj");
  rule.in_proj_b = map(".b_proj");
  rule.in_proj_a = map(".forget_gate.f_a_proj");
  rule.f_b_proj = map(".forget_gate.f_b_proj");
  rule.in_proj_z = map(".g_a_proj");
  rule.g_b_proj = map(".g_b_proj");
  rule.conv1d = &parameter(name + ".q_conv1d.weight");
  rule.k_conv1d = &parameter(name + ".k_conv1d.weight");
  rule.v_conv1d = &parameter(name + ".v_conv1d.weight");
  rule.a_log = &parameter(name + ".forget_gate.A_log");
  rule.dt_bias = &parameter(name + ".forget_gate.dt_bias");
  rule.norm = &parameter(name + ".o_norm.weight");
  rule.norm_eps = config_.rms_norm_eps;
  weights.o_proj = add_residual_map(name + ".o_proj", /*bias=*/false);
}

RmsNorm Model::norm_of(const std::string& name) const {
  return {&parameter(name + ".weight"), config_.rms_norm_eps, config_.norm_adds_one, config_.norm_centers};
}

RmsNorm Model::plain_norm(int64_t size) {
  std::unique_ptr<Parameter>& ones = ones_[size];
  if (ones == nullptr) {
    const MemoryScope scope("weights");
    ones = std::make_unique<Parameter>();
    ones->value = at::ones({size}, at::TensorOptions().device(placement_.device).dtype(placement_.dtype));
  }
  return {ones.get(), config_.rms_norm_eps, false};
}

DecoderLayer Model::make_layer(int64_t index) {
  const std::string prefix = fmt::format("model.layers.{}.", index);
  const auto norm = [&](const std::string& name) {
    return name.empty() ? RmsNorm{} : norm_of(prefix + name);
  };
  DecoderLayer::Weights weights;
  const NormNames names = config_.norm_names(index);
  const FamilyModules& modules = modules_of(config_);
  weights.before_attention = norm(names.before_attention);
  weights.after_attention = norm(names.after_attention);
  weights.before_mlp = config_.parallel ? weights.before_attention : norm(names.before_mlp);
  weights.after_mlp = norm(names.after_mlp);
  if (config_.has_residual_gates()) {
    weights.after_attention = plain_norm(config_.hidden_size);
    weights.attention_residual = {&parameter(prefix + "post_attention_residual_gate.gate"),
                                  config_.residual_temperature};
    weights.mlp_residual = {&parameter(prefix + "post_feedforward_residual_gate.gate"),
                            config_.residual_temperature};
  }
  if (config_.post_norm_eps > 0.0)
    weights.after_attention.eps = weights.after_mlp.eps = config_.post_norm_eps;
  const bool mixes = config_.has_mixer(index);
  if (config_.runs_block(index)) {
    weights.block = make_shared_block(prefix, index, weights);
    make_delta_rule(prefix + "mamba_decoder." + modules.recurrence, weights);
    return {config_, index, std::move(weights)};
  }
  if (mixes && config_.is_recurrent(index)) make_delta_rule(prefix + modules.recurrence, weights);
  if (config_.attends(index) && config_.is_latent()) {
    make_latent(prefix + "self_attn", index, weights);
  } else if (config_.attends(index) && config_.is_compressed()) {
    make_compressed(prefix + "self_attn", index, weights);
  } else if (config_.attends(index)) {
    make_attention(prefix + modules.attention, index, weights);
  }
  const std::string mlp = prefix + modules.mlp;
  if (config_.is_sparse(index) && !config_.mixture.next_to_mlp) {
    weights.mixture = config_.mixture.granite_names ? make_granite_mixture(prefix) : make_mixture(mlp, index);
  } else if (config_.fused_projections || config_.fused_gate_up) {
    weights.mlp = make_fused_mlp(mlp, config_.intermediate_size);
  } else if (config_.has_mlp(index)) {
    weights.mlp = make_mlp(mlp);
    if (config_.is_sparse(index)) make_mixture_next_to_mlp(prefix, weights);
  }
  if (weights.mixture.output_norm.weight != nullptr) {
    weights.into_experts = add_map(mlp + ".pre_expert_proj", /*bias=*/false);
    weights.before_experts = norm_of(mlp + ".pre_expert_norm");
    weights.out_of_experts = add_map(mlp + ".post_expert_proj", /*bias=*/false);
  } else if (config_.mixture.plain_latents && config_.is_sparse(index)) {
    weights.into_experts = add_map(mlp + ".fc1_latent_proj", config_.mlp_bias);
    weights.out_of_experts = add_map(mlp + ".fc2_latent_proj", config_.mlp_bias);
  }
  if (config_.has_low_rank_streams()) {
    weights.attention_streams = stream_mixer(prefix + "attn_hyper_connection", /*gives=*/true);
    weights.mlp_streams = stream_mixer(prefix + "mlp_hyper_connection", /*gives=*/true);
    if (config_.ngrams.are_in(index)) weights.ngrams = make_ngrams(prefix + "ple", index);
  } else if (config_.has_streams()) {
    const std::string attention = prefix + "attn_hc.", feed = prefix + "ffn_hc.";
    weights.into_attention = stream_gates(attention, 0, /*magnitude=*/1.0, config_.hyper.eps);
    weights.out_of_attention = gates_of_given(attention);
    weights.into_mlp = stream_gates(feed, 0, /*magnitude=*/1.0, config_.hyper.eps);
    weights.out_of_mlp = gates_of_given(feed);
  }
  if (config_.has_per_layer_inputs()) weights.per_layer = make_per_layer_input(prefix, index);
  if (config_.layer_scalar) weights.layer_scalar = &parameter(prefix + "layer_scalar");
  const auto limit_activated = [&](GatedMlp& of, bool of_expert) {
    const double limit = config_.mlp_limit(index, of_expert);
    if (limit > 0.0) of.limit = limit, of.limits_activated = true;
  };
  for (GatedMlp& expert : weights.mixture.experts) limit_activated(expert, /*of_expert=*/true);
  limit_activated(weights.mlp, /*of_expert=*/false);
  limit_activated(weights.mixture.shared_expert, /*of_expert=*/false);
  if (config_.clamps_all_mlps) clamp_all(weights);
  if (config_.limits_all_mlps) {
    for (GatedMlp& expert : weights.mixture.experts) expert.limit = config_.swiglu_limit;
    weights.mixture.shared_expert.limit = weights.mlp.limit = config_.swiglu_limit;
  }
  return {config_, index, std::move(weights)};
}

}  // namespace streambp
