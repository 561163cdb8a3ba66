#include "verify/reference_config.h"

#include <algorithm>
#include <limits>
#include <stdexcept>
#include <utility>

#include "streambp/model/config/family.h"

namespace streambp::verify {
namespace {

reference::RopeType reference_rope_type(RopeType type) {
  for (const auto& [ours, same] : {std::pair(RopeType::kDefault, reference::RopeType::kDefault),
                                   std::pair(RopeType::kLinear, reference::RopeType::kLinear),
                                   std::pair(RopeType::kDynamic, reference::RopeType::kDynamic),
                                   std::pair(RopeType::kLlama3, reference::RopeType::kLlama3),
                                   std::pair(RopeType::kYarn, reference::RopeType::kYarn),
                                   std::pair(RopeType::kLongrope, reference::RopeType::kLongrope),
                                   std::pair(RopeType::kProportional, reference::RopeType::kProportional)}) {
    if (ours == type) return same;
  }
  throw std::invalid_argument("reference: no such rope type");
}

reference::RopeSettings reference_rope(const RopeSettings& rope) {
  reference::RopeSettings same;
  same.type = reference_rope_type(rope.type);
  same.theta = rope.theta;
  same.factor = rope.factor;
  same.low_freq_factor = rope.low_freq_factor;
  same.high_freq_factor = rope.high_freq_factor;
  same.original_max_position_embeddings = static_cast<double>(rope.original_max_position_embeddings);
  same.beta_fast = rope.beta_fast;
  same.beta_slow = rope.beta_slow;
  same.truncate = rope.truncate;
  same.attention_factor = rope.attention_factor;
  same.partial_rotary_factor = rope.proportion;
  same.short_factor = rope.short_factor;
  same.long_factor = rope.long_factor;
  return same;
}

reference::MixtureSettings reference_mixture(const MixtureSettings& mixture) {
  reference::MixtureSettings same;
  same.num_experts = static_cast<int>(mixture.num_experts);
  same.num_experts_per_tok = static_cast<int>(mixture.num_experts_per_tok);
  same.moe_intermediate_size = static_cast<int>(mixture.moe_intermediate_size);
  same.norm_topk_prob = mixture.norm_topk_prob;
  same.router_aux_loss_coef = mixture.router_aux_loss_coef;
  same.output_router_logits = mixture.output_router_logits;
  same.sparse = mixture.sparse;
  same.shared_expert_intermediate_size = static_cast<int>(mixture.shared_expert_intermediate_size);
  same.biased_interleaved = mixture.biased_interleaved;
  same.shared_expert_ungated = mixture.shared_expert_ungated;
  same.sigmoid_scores = mixture.sigmoid_scores;
  same.corrected = mixture.corrected;
  same.added_to_sum = mixture.added_to_sum;
  same.least_sum = mixture.least_sum;
  same.granite_names = mixture.granite_names;
  same.stacked = mixture.stacked;
  same.sqrt_softplus_scores = mixture.sqrt_softplus_scores;
  same.balanced_by_softmax = mixture.balanced_by_softmax;
  same.hashed = mixture.hashed;
  same.n_group = static_cast<int>(mixture.n_group);
  same.topk_group = static_cast<int>(mixture.topk_group);
  same.routed_scaling_factor = mixture.routed_scaling_factor;
  same.added_to_mlp = mixture.next_to_mlp;
  same.moe_hidden_size = static_cast<int>(mixture.moe_hidden_size);
  same.plain_latents = mixture.plain_latents;
  same.router_factor = mixture.router_factor;
  return same;
}

reference::DeltaRuleSettings reference_delta_rule(const DeltaRuleSettings& rule) {
  reference::DeltaRuleSettings same;
  same.key_heads = static_cast<int>(rule.key_heads);
  same.value_heads = static_cast<int>(rule.value_heads);
  same.key_head_dim = static_cast<int>(rule.key_head_dim);
  same.value_head_dim = static_cast<int>(rule.value_head_dim);
  same.conv_kernel = static_cast<int>(rule.conv_kernel);
  same.fused_projections = rule.fused_projections;
  same.state_space = rule.state_space;
  same.channel_gates = rule.channel_gates;
  same.rates_in_row = rule.rates_in_row;
  same.decay_bound = rule.decay_bound;
  same.convolution_alone = rule.convolution_alone;
  same.conv_bias = rule.conv_bias;
  same.in_bias = rule.in_bias;
  same.out_bias = rule.out_bias;
  same.time_step_low = rule.time_step_low;
  same.time_step_high = rule.time_step_high;
  same.norms_gated = rule.norms_gated;
  same.norm_before_gate = rule.norm_before_gate;
  same.beside_attention = rule.beside_attention;
  if (rule.beside_attention)
    same.in_multipliers.assign(rule.in_multipliers.begin(), rule.in_multipliers.end());
  same.out_multiplier = rule.out_multiplier;
  same.norm_eps = rule.norm_eps;
  same.logistic_gate = rule.logistic_gate;
  return same;
}

reference::LatentAttentionSettings reference_latent(const LatentAttentionSettings& latent) {
  reference::LatentAttentionSettings same;
  same.q_lora_rank = static_cast<int>(latent.q_lora_rank);
  same.kv_lora_rank = static_cast<int>(latent.kv_lora_rank);
  same.qk_nope_head_dim = static_cast<int>(latent.qk_nope_head_dim);
  same.qk_rope_head_dim = static_cast<int>(latent.qk_rope_head_dim);
  same.v_head_dim = static_cast<int>(latent.v_head_dim);
  same.norm_eps = latent.norm_eps;
  same.trained_positions = latent.trained_positions;
  for (const int64_t source : latent.sources) same.sources.push_back(static_cast<int>(source));
  return same;  // mscale_all_dim 0: attention_scale has that factor
}

reference::IndexerSettings reference_indexer(const IndexerSettings& indexer) {
  return {.topk = static_cast<int>(std::min<int64_t>(indexer.topk, std::numeric_limits<int>::max())),
          .heads = static_cast<int>(indexer.heads),
          .head_dim = static_cast<int>(indexer.head_dim),
          .interleaved = indexer.interleaved,
          .shared = indexer.shared,
          .rotates_last = indexer.rotates_last,
          .norm_eps = indexer.norm_eps,
          .reads_hidden = indexer.reads_hidden,
          .block = static_cast<int>(std::min<int64_t>(indexer.block, std::numeric_limits<int>::max())),
          .local_blocks = static_cast<int>(indexer.local_blocks),
          .layers = indexer.layers,
          .group = static_cast<int>(std::min<int64_t>(indexer.group, std::numeric_limits<int>::max())),
          .of_means = indexer.of_means};
}

reference::CompressedSettings reference_compressed(const CompressedSettings& compressed) {
  reference::CompressedSettings same;
  same.q_lora_rank = static_cast<int>(compressed.q_lora_rank);
  same.window = static_cast<int>(compressed.window);
  for (const int64_t rate : compressed.rates) same.rates.push_back(static_cast<int>(rate));
  same.overlaps = compressed.overlaps;
  same.o_groups = static_cast<int>(compressed.o_groups);
  same.o_lora_rank = static_cast<int>(compressed.o_lora_rank);
  return same;
}

reference::ModuleNames reference_modules(const FamilyModules& modules) {
  const auto or_none = [](const char* name) { return std::string(name == nullptr ? "" : name); };
  return {.recurrence = modules.recurrence,
          .mlp = modules.mlp,
          .gate_up = modules.gate_up,
          .down = modules.down,
          .attention = modules.attention,
          .out = modules.out,
          .q_norm = modules.q_norm,
          .k_norm = modules.k_norm,
          .gate = modules.gate,
          .up = modules.up,
          .before_attention = modules.before_attention,
          .before_mlp = modules.before_mlp,
          .after_attention = or_none(modules.after_attention),
          .after_mlp = or_none(modules.after_mlp)};
}

reference::Gemma4Settings reference_gemma4(const Config& config) {
  const Gemma4Settings& gemma4 = config.gemma4;
  reference::Gemma4Settings same;
  same.global_head_dim = static_cast<int>(gemma4.global_head_dim);
  same.num_global_key_value_heads = static_cast<int>(gemma4.num_global_key_value_heads);
  same.attention_k_eq_v = gemma4.attention_k_eq_v;
  same.value_norm = config.norms_values;
  same.num_kv_shared_layers = static_cast<int>(gemma4.num_kv_shared_layers);
  same.use_double_wide_mlp = gemma4.use_double_wide_mlp;
  same.hidden_size_per_layer_input = static_cast<int>(gemma4.hidden_size_per_layer_input);
  same.vocab_size_per_layer_input = static_cast<int>(gemma4.vocab_size_per_layer_input);
  same.layer_scalar = config.layer_scalar;
  return same;
}

reference::Activation reference_activation(Activation activation) {
  for (const auto& [ours, same] : {std::pair(Activation::kSilu, reference::Activation::kSilu),
                                   std::pair(Activation::kGeluTanh, reference::Activation::kGeluTanh),
                                   std::pair(Activation::kGelu, reference::Activation::kGelu),
                                   std::pair(Activation::kRelu, reference::Activation::kRelu),
                                   std::pair(Activation::kRelu2, reference::Activation::kRelu2)}) {
    if (ours == activation) return same;
  }
  throw std::invalid_argument("reference: no such activation");
}

reference::SharedBlockSettings reference_blocks(const SharedBlockSettings& blocks) {
  return {blocks.layers, static_cast<int>(blocks.count), static_cast<int>(blocks.adapter_rank),
          blocks.attention_adapters};
}

reference::NgramSettings reference_ngrams(const NgramSettings& ngrams) {
  reference::NgramSettings same;
  for (const int64_t module : ngrams.modules) same.modules.push_back(static_cast<int>(module));
  same.size = static_cast<int>(ngrams.size);
  same.heads_per_ngram = static_cast<int>(ngrams.heads_per_ngram);
  same.embed_dim = static_cast<int>(ngrams.embed_dim);
  same.conv_kernel = static_cast<int>(ngrams.conv_kernel);
  same.vocab_base = static_cast<int>(std::min<int64_t>(ngrams.vocab_base, std::numeric_limits<int>::max()));
  same.divisor = static_cast<int>(std::min<int64_t>(ngrams.divisor, std::numeric_limits<int>::max()));
  same.seed = ngrams.seed;
  same.boundary = static_cast<int>(ngrams.boundary);
  return same;
}

/// What some kinds of attention, and several residual streams, have of their own.
void set_kinds_of_attention(const Config& config, reference::ModelConfig& same) {
  same.hyper = {.streams = static_cast<int>(config.hyper.streams),
                .magnitude = config.hyper.magnitude,
                .eps = config.hyper.eps,
                .head_reads_mean = config.hyper.head_reads_mean,
                .sinkhorn_iters = static_cast<int>(config.hyper.sinkhorn_iters),
                .lowrank = static_cast<int>(config.hyper.lowrank)};
  same.ngrams = reference_ngrams(config.ngrams);
  same.limits_all_mlps = config.limits_all_mlps;
  same.clamps_all_mlps = config.clamps_all_mlps;
  if (config.picks_key_blocks() || config.indexer.of_means) same.indexer = reference_indexer(config.indexer);
  if (config.is_latent()) {  // which has neither of the two in the reference
    same.latent = reference_latent(config.latent);
    same.indexer = reference_indexer(config.indexer);
    same.head_dim = static_cast<int>(config.latent.qk_rope_head_dim);
    same.rotary_dim = 0;
  }
  if (config.is_compressed()) {
    same.compressed = reference_compressed(config.compressed);
    same.indexer = reference_indexer(config.indexer);
  }
  if (config.gemma4.global_head_dim > 0) {
    same.gemma4 = reference_gemma4(config);
    same.rotary_dim = 0;  // of whole heads, of either size
  }
}

}  // namespace

reference::ModelConfig reference_config(const Config& config) {
  reference::ModelConfig same;
  same.vocab_size = static_cast<int>(config.vocab_size);
  same.hidden_size = static_cast<int>(config.hidden_size);
  same.intermediate_size = static_cast<int>(config.intermediate_size);
  same.num_hidden_layers = static_cast<int>(config.num_hidden_layers);
  same.num_attention_heads = static_cast<int>(config.num_attention_heads);
  same.num_key_value_heads = static_cast<int>(config.num_key_value_heads);
  same.head_dim = static_cast<int>(config.head_dim);
  same.rotary_dim = static_cast<int>(config.rotary_dim);
  same.rms_norm_eps = config.rms_norm_eps;
  same.qkv_bias = config.qkv_bias;
  same.o_bias = config.o_bias;
  same.mlp_bias = config.mlp_bias;
  same.qk_norm = config.qk_norm;
  same.tie_word_embeddings = config.tie_word_embeddings;
  same.has_lm_head = !config.value_model;
  same.qk_norm_full_width = config.qk_norm_full_width;
  same.qk_norm_by_head = config.qk_norm_by_head;
  same.norms_rotated_heads = norms_rotated_heads(config);
  same.fused_projections = config.fused_projections;
  same.fused_gate_up = config.fused_gate_up;
  same.sandwich_norms = config.sandwich_norms;
  same.glm_norm_names = config.glm_norm_names;
  same.norm_after = config.norm_after;
  same.norm_adds_one = config.norm_adds_one;
  same.norm_centers = config.norm_centers;
  same.plain_norms = config.plain_norms;
  same.post_norm_eps = config.post_norm_eps;
  same.residual_temperature = config.residual_temperature;
  same.output_gate_map = config.output_gate_map;
  same.gates_heads = config.gates_heads;
  same.window_attention_heads = static_cast<int>(config.window_attention_heads);
  same.window_rotary_dim = static_cast<int>(config.window_rotary_dim);
  same.expert_limits = config.expert_limits;
  same.mlp_limits = config.mlp_limits;
  same.parallel = config.parallel;
  same.embedding_scale = config.embedding_scale;
  same.residual_multiplier = config.residual_multiplier;
  same.logits_scaling = config.logits_scaling;
  same.query_multiplier = config.query_multiplier;
  same.key_multiplier = config.key_multiplier;
  same.attention_multiplier = config.attention_multiplier;
  same.gate_multiplier = config.gate_multiplier;
  same.down_multiplier = config.down_multiplier;
  same.attention_scale = config.attention_scale;
  same.attn_logit_softcapping = config.attn_logit_softcapping;
  same.final_logit_softcapping = config.final_logit_softcapping;
  same.hidden_act = reference_activation(config.hidden_act);
  same.swiglu_alpha = config.swiglu_alpha;
  same.swiglu_limit = config.swiglu_limit;
  same.attention_sinks = config.attention_sinks;
  same.shared_blocks = reference_blocks(config.shared_blocks);
  same.rope = reference_rope(config.rope);
  if (config.local_rope) same.local_rope = reference_rope(*config.local_rope);
  same.rope_interleaved = config.rope_interleaved;
  same.no_rope = config.no_rope;
  same.query_scale_beta = config.query_scale_beta;
  same.query_scale_original = static_cast<double>(config.query_scale_original);
  for (const int64_t window : config.windows) same.windows.push_back(static_cast<int>(window));
  same.linear_attention = config.linear_attention;
  same.attention_output_gate = config.attention_output_gate;
  same.delta_rule = reference_delta_rule(config.delta_rule);
  same.modules = reference_modules(modules_of(config));
  same.no_mixer = config.no_mixer;
  same.no_mlp = config.no_mlp;
  set_kinds_of_attention(config, same);
  same.mixture = reference_mixture(config.mixture);
  same.mixture.correction = family_of(config).experts.correction;
  if (config.pad_token_id) same.pad_token_id = static_cast<int>(*config.pad_token_id);
  return same;
}

}  // namespace streambp::verify
