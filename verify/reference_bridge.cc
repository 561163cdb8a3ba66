#include "verify/reference_bridge.h"

#include <algorithm>
#include <limits>
#include <stdexcept>
#include <string_view>
#include <utility>

#include "streambp/model/config/family.h"
#include "streambp/model/lora/peft_name.h"
#include "streambp/model/scored.h"
#include "verify/reference_experts.h"

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
  same.n_group = static_cast<int>(mixture.n_group);
  same.topk_group = static_cast<int>(mixture.topk_group);
  same.routed_scaling_factor = mixture.routed_scaling_factor;
  same.added_to_mlp = mixture.next_to_mlp;
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
  same.convolution_alone = rule.convolution_alone;
  same.conv_bias = rule.conv_bias;
  same.time_step_low = rule.time_step_low;
  same.time_step_high = rule.time_step_high;
  same.norms_gated = rule.norms_gated;
  same.norm_before_gate = rule.norm_before_gate;
  same.beside_attention = rule.beside_attention;
  if (rule.beside_attention)
    same.in_multipliers.assign(rule.in_multipliers.begin(), rule.in_multipliers.end());
  same.out_multiplier = rule.out_multiplier;
  same.norm_eps = rule.norm_eps;
  return same;
}

reference::LatentAttentionSettings reference_latent(const LatentAttentionSettings& latent) {
  reference::LatentAttentionSettings same;
  same.q_lora_rank = static_cast<int>(latent.q_lora_rank);
  same.kv_lora_rank = static_cast<int>(latent.kv_lora_rank);
  same.qk_nope_head_dim = static_cast<int>(latent.qk_nope_head_dim);
  same.qk_rope_head_dim = static_cast<int>(latent.qk_rope_head_dim);
  same.v_head_dim = static_cast<int>(latent.v_head_dim);
  return same;  // mscale_all_dim 0: attention_scale has that factor
}

reference::IndexerSettings reference_indexer(const IndexerSettings& indexer) {
  return {.topk = static_cast<int>(std::min<int64_t>(indexer.topk, std::numeric_limits<int>::max())),
          .heads = static_cast<int>(indexer.heads),
          .head_dim = static_cast<int>(indexer.head_dim),
          .interleaved = indexer.interleaved,
          .shared = indexer.shared,
          .rotates_last = indexer.rotates_last,
          .norm_eps = indexer.norm_eps};
}

reference::ModuleNames reference_modules(const FamilyModules& modules) {
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
          .before_mlp = modules.before_mlp};
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
                                   std::pair(Activation::kRelu2, reference::Activation::kRelu2)}) {
    if (ours == activation) return same;
  }
  throw std::invalid_argument("reference: no such activation");
}

reference::SharedBlockSettings reference_blocks(const SharedBlockSettings& blocks) {
  return {blocks.layers, static_cast<int>(blocks.count), static_cast<int>(blocks.adapter_rank),
          blocks.attention_adapters};
}

/// Of several matrices one under another.
reference::Matrix matrix_of(const at::Tensor& tensor) {
  const at::Tensor wide = tensor.to(at::kCPU, at::kDouble).contiguous();
  const int64_t rows = wide.numel() / wide.size(-1);
  return Eigen::Map<const reference::Matrix>(wide.const_data_ptr<double>(), rows, wide.numel() / rows);
}

std::vector<int64_t> integers(const at::Tensor& tensor) {
  const at::Tensor data = tensor.to(at::kCPU, at::kLong).contiguous();
  return {data.const_data_ptr<int64_t>(), data.const_data_ptr<int64_t>() + data.numel()};
}

/// The reference drops PEFT's prefix, and calls a critic's head what it calls any value head.
std::string reference_name(std::string name) {
  constexpr std::string_view kPeft = kPeftPrefix, kBase = ".base_layer.bias";
  if (name.starts_with(kPeft)) name.erase(0, kPeft.size());
  if (name.ends_with(kBase)) name = name.substr(0, name.size() - kBase.size()) + ".bias";
  return name == "score.weight" ? "value_head.weight" : name;
}

/// The reference's name of an adapter's module.
std::string reference_module(const LoraTarget& target) {
  if (target.kind == LoraTargetKind::kGateUpExperts) return target.module + ".gate_up_proj";
  if (target.kind == LoraTargetKind::kDownExperts) return target.module + ".down_proj";
  return target.module;
}

/// Adapters, rows that are trained apart, and heads that no longer are the embedding.
void add_adapters(const Model& model, const LoraConfig& lora, ReferenceModel& same) {
  for (const LoraTarget& target : lora_targets(model.config(), lora)) {
    const std::string module = reference_module(target);
    same.config.adapters[module] = {static_cast<int>(target.rank), target.scale, lora.lora_bias};
    same.names[target.a] = module + ".lora_A.weight";
    same.names[target.b] = module + ".lora_B.weight";
  }
  const LoraExtras extras = lora_extras(model.config(), lora);
  for (const auto& [name, tokens] : extras.rows)
    same.config.trained_rows[name.substr(0, name.rfind('.'))] = {tokens.begin(), tokens.end()};
  if (!model.config().tie_word_embeddings) return;
  const bool is_split = std::any_of(extras.saved.begin(), extras.saved.end(), [](const std::string& name) {
    return name == "model.embed_tokens.weight" || name == "lm_head.weight";
  });
  if (!is_split) return;
  same.config.tie_word_embeddings = false;
  same.weights["lm_head.weight"] = matrix_of(model.head().weight->value);
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
  same.hyper = {static_cast<int>(config.hyper.streams), config.hyper.magnitude, config.hyper.eps};
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
  if (config.is_latent()) {  // which has neither of the two in the reference
    same.latent = reference_latent(config.latent);
    same.indexer = reference_indexer(config.indexer);
    same.head_dim = static_cast<int>(config.latent.qk_rope_head_dim);
    same.rotary_dim = 0;
  }
  if (config.gemma4.global_head_dim > 0) {
    same.gemma4 = reference_gemma4(config);
    same.rotary_dim = 0;  // of whole heads, of either size
  }
  same.mixture = reference_mixture(config.mixture);
  same.mixture.correction = family_of(config).experts.correction;
  if (config.pad_token_id) same.pad_token_id = static_cast<int>(*config.pad_token_id);
  return same;
}

ReferenceModel reference_model(const Model& model, const LoraConfig* lora) {
  ReferenceModel same{reference_config(model.config()), {}, {}};
  same.config.has_value_head = model.has_value_head();
  if (lora != nullptr) add_adapters(model, *lora, same);
  for (const auto& parameter : model.parameters()) {
    const std::string& name =
        same.names.emplace(parameter->name, reference_name(parameter->name)).first->second;
    // What is trained stands for the base's own, which is there too.
    if (is_peft_name(parameter->name)) {
      same.weights[name] = matrix_of(parameter->value);
    } else {
      same.weights.emplace(name, matrix_of(parameter->value));
    }
  }
  return same;
}

namespace {

/// Where the sequences of a batch begin, its end last. Of packed rows that is worked out anew from the
/// indices and positions of their tokens: in each row a document ends where the next position is not the one
/// after.
std::vector<int64_t> sequence_bounds(const Batch& batch) {
  if (!batch.packed) return batch.offsets;
  const std::vector<int64_t> indices = integers(batch.padded_indices);
  const std::vector<int64_t> positions = integers(batch.positions);
  std::vector<int64_t> bounds = {0};
  for (std::size_t t = 1; t < indices.size(); ++t) {
    const bool same_row = indices[t] == indices[t - 1] + 1 && indices[t] % batch.padded_columns != 0;
    if (!same_row || positions[t] - positions[t - 1] != 1) bounds.push_back(static_cast<int64_t>(t));
  }
  bounds.push_back(static_cast<int64_t>(indices.size()));
  return bounds;
}

}  // namespace

std::vector<reference::Sequence> reference_sequences(const Batch& batch, const Config& config) {
  const std::vector<int64_t> tokens = integers(batch.tokens);
  const std::vector<int64_t> positions = integers(batch.positions);
  const std::vector<int64_t> targets = integers(batch.targets);
  const at::Tensor value_mask = batch.value_mask;
  std::vector<reference::Sequence> sequences;
  const std::vector<int64_t> bounds = sequence_bounds(batch);
  for (std::size_t i = 0; i + 1 < bounds.size(); ++i) {
    const auto begin = static_cast<std::size_t>(bounds[i]);
    const auto end = static_cast<std::size_t>(bounds[i + 1]);
    reference::Sequence sequence;
    for (std::size_t t = begin; t < end; ++t) {
      sequence.tokens.push_back(static_cast<int>(tokens[t]));
      sequence.positions.push_back(static_cast<double>(positions[t]));
      sequence.targets.push_back(targets[t] == kNoTarget ? reference::kNoTarget
                                                         : static_cast<int>(targets[t]));
      if (value_mask.defined()) {
        sequence.valued.push_back(value_mask[static_cast<int64_t>(t)].item<bool>());
      }
    }
    sequence.padding = {static_cast<double>(rope_length(batch)) - 1.0};
    if (batch.router_indices.defined())
      sequence.experts = given_experts(
          batch.router_indices.slice(0, static_cast<int64_t>(begin), static_cast<int64_t>(end)), config);
    sequences.push_back(std::move(sequence));
  }
  return sequences;
}

reference::Matrix reference_logits(const Model& model, const Batch& batch) {
  const ReferenceModel same = reference_model(model);
  reference::Tape tape;
  reference::Parameters parameters;
  for (const auto& [name, weight] : same.weights) parameters.emplace(name, tape.leaf(weight));
  reference::Matrix all(batch.size(), same.config.vocab_size);
  int64_t begin = 0;
  const std::vector<reference::Sequence> sequences = reference_sequences(batch, model.config());
  const double length = reference::batch_length(sequences);
  for (const reference::Sequence& sequence : sequences) {
    if (sequence.tokens.empty()) continue;
    const reference::HiddenStates hidden =
        reference::hidden_states(same.config, parameters, sequence.tokens, sequence.positions, length);
    const reference::Var logits = reference::logits(same.config, parameters, hidden.states);
    all.middleRows(begin, logits.rows()) = logits.value();
    begin += logits.rows();
  }
  return all(integers(scored_indices(batch)), Eigen::all);
}

Tensors tensors_of(const reference::Weights& gradients, const Model& model,
                   const std::map<std::string, std::string>& names) {
  Tensors tensors;
  for (const auto& parameter : model.parameters()) {
    if (!parameter->trainable()) continue;
    const auto found = gradients.find(names.at(parameter->name));
    if (found == gradients.end()) throw std::invalid_argument("reference: no gradient of " + parameter->name);
    const reference::Matrix& matrix = found->second;
    at::Tensor tensor = at::empty(parameter->value.sizes(), at::kDouble);
    if (tensor.numel() != matrix.size()) {
      throw std::invalid_argument("reference: another size of the gradient of " + parameter->name);
    }
    std::copy_n(matrix.data(), matrix.size(), tensor.mutable_data_ptr<double>());
    tensors.emplace(parameter->name, std::move(tensor));
  }
  return tensors;
}

}  // namespace streambp::verify
