#include "verify/diagnose/wrong_engine/config_changes.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <utility>

namespace streambp::verify {
namespace {

/// Whether layers with a window have heads of another size than the others: what is theirs fits no other.
bool has_two_sizes(const Config& config) {
  return config.gemma4.global_head_dim > 0;
}

/// Of rotary tables.
const std::vector<ConfigChange>& rope_changes() {
  static const std::vector<ConfigChange> kNamed{
      {"rope-theta-default", "rotary tables are made with a theta of 10,000 (rope_theta is ignored)",
       [](Config& c) { c.rope.theta = 1e4; }},
      {"rope-scaling-ignored", "the scaling of rotary tables is ignored (rope_scaling)",
       [](Config& c) {
         if (has_two_sizes(c)) return;
         const double theta = c.rope.theta;
         c.rope = RopeSettings{};
         c.rope.theta = theta;
       }},
      {"rope-frequencies-unscaled",
       "the frequencies of rotary tables (inv_freq) are made without rope_scaling (rope_parameters' yarn, "
       "llama3, ...), and "
       "their attention factor is kept",
       [](Config& c) {
         if (has_two_sizes(c)) return;
         const double theta = c.rope.theta, factor = c.rope.attention_factor;
         c.rope = RopeSettings{};
         c.rope.theta = theta;
         c.rope.attention_factor = factor;
       }},
      {"rope-pairs",
       "rotary pairs are others: neighbouring entries instead of the halves of a head, or the reverse",
       [](Config& c) {
         if (!has_two_sizes(c)) c.rope_interleaved = !c.rope_interleaved;
       }}};
  return kNamed;
}

const std::vector<ConfigChange>& named_changes() {
  static const std::vector<ConfigChange> kNamed{
      {"no-rope-ignored", "layers that should not rotate their heads do (no_rope_layers)",
       [](Config& c) { c.no_rope.clear(); }},
      {"query-scale-missing", "queries are not scaled by their positions (llama_4_scaling_beta)",
       [](Config& c) { c.query_scale_beta = 0.0; }},
      {"windows-shifted", "windows lie in the wrong layers: their pattern is shifted by one",
       [](Config& c) {
         if (!c.windows.empty() && !has_two_sizes(c))
           std::rotate(c.windows.begin(), c.windows.begin() + 1, c.windows.end());
       }},
      {"norm-eps-1e-5", "norms have an epsilon of 1e-5 (rms_norm_eps)",
       [](Config& c) { c.rms_norm_eps = 1e-5; }},
      {"norm-eps-1e-6", "norms have an epsilon of 1e-6 (rms_norm_eps)",
       [](Config& c) { c.rms_norm_eps = 1e-6; }},
      {"norm-plus-one", "norms multiply by their weight where they should by 1 + weight, or the reverse",
       [](Config& c) { c.norm_adds_one = !c.norm_adds_one; }},
      {"embedding-scale-missing", "embeddings are not scaled", [](Config& c) { c.embedding_scale = 1.0; }},
      {"residual-multiplier-missing", "what attention and MLP add is not scaled (residual_multiplier)",
       [](Config& c) { c.residual_multiplier = 1.0; }},
      {"logits-scaling-missing", "logits are not scaled (logits_scaling)",
       [](Config& c) { c.logits_scaling = 1.0; }},
      {"activation",
       "the MLP's activation is another (hidden_act): GELU where it should be SiLU, or the reverse",
       [](Config& c) {
         if (c.hidden_act == Activation::kRelu2) return;
         c.hidden_act = c.hidden_act == Activation::kSilu ? Activation::kGeluTanh : Activation::kSilu;
       }},
      {"gelu",
       "the MLP's activation is the exact GELU where it should be the tanh's, or the reverse (hidden_act)",
       [](Config& c) {
         if (c.hidden_act == Activation::kGelu || c.hidden_act == Activation::kGeluTanh)
           c.hidden_act = c.hidden_act == Activation::kGelu ? Activation::kGeluTanh : Activation::kGelu;
       }},
      {"rope-attention-factor-missing",
       "cosines and sines of rotary tables are not multiplied by attention_factor (mscale of YaRN, or "
       "LongRoPE's)",
       [](Config& c) { c.rope.attention_factor = 1.0; }},
      {"score-mscale-missing",
       "attention's scores are not multiplied by the square of YaRN's mscale (mscale_all_dim)",
       [](Config& c) {
         if (c.is_latent() && c.rope.factor > 1.0)
           c.attention_scale = 1.0 / std::sqrt(static_cast<double>(c.head_dim));
       }},
      {"router-normalisation",
       "the chosen experts' weights are made to sum to 1, or are not (norm_topk_prob)",
       [](Config& c) {
         if (c.mixture.num_experts > 0) c.mixture.norm_topk_prob = !c.mixture.norm_topk_prob;
       }},
      {"routed-scaling-missing", "what the experts give is not scaled (routed_scaling_factor)",
       [](Config& c) { c.mixture.routed_scaling_factor = 1.0; }},
      {"one-expert", "one expert a token is chosen (num_experts_per_tok)",
       [](Config& c) {
         if (c.mixture.num_experts > 0) c.mixture.num_experts_per_tok = 1;
       }},
      {"final-softcap-missing", "logits are not capped (final_logit_softcapping)",
       [](Config& c) { c.final_logit_softcapping = 0.0; }},
      {"local-rope-missing", "layers with a window turn by the other layers' rotary table", [](Config& c) {
         if (c.local_rope && !has_two_sizes(c)) c.local_rope = c.rope;
       }}};
  return kNamed;
}

/// Falcon-H1's factors.
const std::vector<ConfigChange>& multipliers() {
  static const std::vector<ConfigChange> kMultipliers{
      {"key-multiplier-missing", "keys are not scaled (key_multiplier is 1)",
       [](Config& c) { c.key_multiplier = c.query_multiplier; }},
      {"attention-multiplier-missing", "what attention gives is not scaled (attention_out_multiplier is 1)",
       [](Config& c) { c.attention_multiplier = 1.0; }},
      {"gate-multiplier-missing", "the MLP's gate is not scaled (the first of mlp_multipliers)",
       [](Config& c) { c.gate_multiplier = 1.0; }},
      {"down-multiplier-missing", "what the MLP gives is not scaled (the second of mlp_multipliers)",
       [](Config& c) { c.down_multiplier = 1.0; }}};
  return kMultipliers;
}

}  // namespace

const std::vector<ConfigChange>& config_changes() {
  static const std::vector<ConfigChange> kChanges = [] {
    std::vector<ConfigChange> all = rope_changes();
    all.insert(all.end(), named_changes().begin(), named_changes().end());
    all.insert(all.end(), multipliers().begin(), multipliers().end());
    for (ConfigChange& each : config_switches()) all.push_back(std::move(each));
    return all;
  }();
  return kChanges;
}

Config changed_config(Config config, const std::string& name) {
  for (const ConfigChange& each : config_changes()) {
    if (name != each.name) continue;
    each.change(config);
    return config;
  }
  throw std::logic_error("no such change of a config");
}

const std::vector<ConfigNumber>& config_numbers() {
  static const std::vector<ConfigNumber> kNumbers{
      {"embedding-scale", "what embeddings are multiplied by",
       [](Config& c) -> double& { return c.embedding_scale; }},
      {"attention-scale", "what attention's scores are multiplied by",
       [](Config& c) -> double& { return c.attention_scale; }},
      {"rope-theta", "rope_theta", [](Config& c) -> double& { return c.rope.theta; }},
      {"rope-factor", "the factor of rope_scaling", [](Config& c) -> double& { return c.rope.factor; }},
      {"rope-attention-factor", "the attention_factor of rope_scaling (mscale)",
       [](Config& c) -> double& { return c.rope.attention_factor; }},
      {"norm-eps", "rms_norm_eps", [](Config& c) -> double& { return c.rms_norm_eps; }},
      {"residual-multiplier", "residual_multiplier",
       [](Config& c) -> double& { return c.residual_multiplier; }},
      {"logits-scaling", "logits_scaling", [](Config& c) -> double& { return c.logits_scaling; }},
      {"attention-softcap", "attn_logit_softcapping",
       [](Config& c) -> double& { return c.attn_logit_softcapping; }},
      {"final-softcap", "final_logit_softcapping",
       [](Config& c) -> double& { return c.final_logit_softcapping; }},
      {"routed-scaling", "routed_scaling_factor",
       [](Config& c) -> double& { return c.mixture.routed_scaling_factor; }},
      {"gate-alpha", "swiglu_alpha", [](Config& c) -> double& { return c.swiglu_alpha; }}};
  return kNumbers;
}

const ConfigNumber& config_number(const std::string& name) {
  for (const ConfigNumber& each : config_numbers()) {
    if (name == each.name) return each;
  }
  throw std::logic_error("no such number of a config");
}

}  // namespace streambp::verify
