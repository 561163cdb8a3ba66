// How parameter_shapes.cc collects the shapes of a model's parameters.
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <utility>

#include "reference/config.h"
#include "reference/require.h"

namespace streambp::STREAMBP_REFERENCE {

using Shapes = std::map<std::string, std::pair<Index, Index>>;

/// Collects shapes module by module, and counts the adapters that have found theirs.
class Collector {
 public:
  explicit Collector(const ModelConfig& config) : config_(config) {}

  void linear(const std::string& module, Index out, Index in, bool has_bias = false) {
    shapes_[module + ".weight"] = {out, in};
    if (has_bias) shapes_[module + ".bias"] = {1, out};
    adapter(module, out, in);
  }

  void adapter(const std::string& module, Index out, Index in, int experts = 1) {
    const auto found = config_.adapters.find(module);
    if (found == config_.adapters.end()) return;
    const int ranks = found->second.rank * experts;
    require(ranks > 0, "model", "expected a positive rank of the adapter of " + module);
    shapes_[module + ".lora_A.weight"] = {ranks, in};
    shapes_[module + ".lora_B.weight"] = {out, ranks};
    if (found->second.has_bias) shapes_[module + ".lora_B.bias"] = {1, out};
    ++adapters_;
  }

  /// Of a table or a head with one row for every token.
  void trained_rows(const std::string& module, Index rows, Index size) {
    const auto found = config_.trained_rows.find(module);
    if (found == config_.trained_rows.end()) return;
    for (int row : found->second) {
      require(row >= 0 && row < rows, "model",
              "expected trained rows from 0 to " + std::to_string(rows - 1) + ", got " + std::to_string(row));
    }
    const auto count = static_cast<Index>(found->second.size());
    shapes_[module + ".token_adapter.trainable_tokens_delta"] = {count, size};
    ++trained_;
  }

  void row(const std::string& module, Index size) { shapes_[module + ".weight"] = {1, size}; }
  void norm(const std::string& prefix, const std::string& name) {
    if (!name.empty()) row(prefix + name, config_.hidden_size);
  }
  void embedding(const std::string& module, Index rows, Index size) {
    shapes_[module + ".weight"] = {rows, size};
    adapter(module, size, rows);
    trained_rows(module, rows, size);
  }

  void attention(const std::string& module, int layer) {
    const Index hidden = config_.hidden_size;
    const Index queries = Index{config_.query_heads_of(layer)} * config_.head_dim_of(layer);
    const Index keys = Index{config_.key_value_heads_of(layer)} * config_.head_dim_of(layer);
    const bool has_keys = !config_.shares_keys(layer);
    if (config_.fused_projections) {
      linear(module + "qkv_proj", queries + 2 * keys, hidden, config_.qkv_bias);
    } else {
      linear(module + "q_proj", config_.attention_output_gate ? 2 * queries : queries, hidden,
             config_.qkv_bias);
      if (has_keys) linear(module + "k_proj", keys, hidden, config_.qkv_bias);
      if (has_keys && !config_.values_are_keys(layer))
        linear(module + "v_proj", keys, hidden, config_.qkv_bias);
    }
    linear(module + config_.modules.out, hidden, queries, config_.o_bias);
    if (config_.output_gate_map) linear(module + "gate_proj", queries, hidden);
    if (config_.gates_heads) linear(module + "g_proj", config_.query_heads_of(layer), hidden);
    if (config_.attention_sinks) shapes_[module + "sinks"] = {1, config_.num_attention_heads};
    if (config_.picks_key_blocks(layer)) key_block_indexer(module + "indexer.");
    if (config_.indexer.of_means) indexer_of_means(module + "indexer.");
    if (!config_.qk_norm) return;
    const bool is_wide = config_.qk_norm_full_width;
    const bool is_after = config_.norms_rotated_heads;
    const auto norm_of = [&](const std::string& name, Index width) {
      const Index size = config_.head_dim_of(layer);
      if (config_.qk_norm_by_head)
        shapes_[module + name + ".weight"] = {width / size, size};
      else
        row(module + name, is_wide ? width : size);
    };
    norm_of(is_after ? "query_layernorm" : config_.modules.q_norm, queries);
    if (has_keys) norm_of(is_after ? "key_layernorm" : config_.modules.k_norm, keys);
  }

  void shared_block(int layer);

  void indexer(const std::string& module);

  /// MiniMax M3's.
  void key_block_indexer(const std::string& module);

  /// Qwen4-Exp's, with its maps of streams and its embeddings of n-grams.
  void indexer_of_means(const std::string& module);
  void low_rank_streams(const std::string& names, bool gives);
  void ngrams(const std::string& names, int layer);

  void latent_attention(const std::string& module, int layer);

  void numbers(const std::string& name, Index count) { shapes_[name] = {1, count}; }

  /// Of keys of `size` entries.
  void compressor(const std::string& module, int layer, Index size);

  void compressed_attention(const std::string& module, int layer);

  void delta_rule(const std::string& module) {
    const Index hidden = config_.hidden_size;
    if (config_.delta_rule.convolution_alone) {
      linear(module + "in_proj", 3 * hidden, hidden, config_.delta_rule.in_bias);
      shapes_[module + "conv.weight"] = {hidden, config_.delta_rule.conv_kernel};
      if (config_.delta_rule.conv_bias) shapes_[module + "conv.bias"] = {1, hidden};
      return linear(module + "out_proj", hidden, hidden, config_.delta_rule.out_bias);
    }
    if (config_.delta_rule.channel_gates) return channel_gated_rule(module);
    const DeltaRuleSettings& rule = config_.delta_rule;
    const Index heads = rule.value_heads, values = heads * rule.value_head_dim;
    const Index mixed = Index{2} * rule.key_heads * rule.key_head_dim + values;
    if (rule.state_space) {
      linear(module + "in_proj", values + mixed + heads, hidden, rule.in_bias);
      shapes_[module + "D"] = {1, heads};
    } else if (rule.fused_projections) {
      linear(module + "in_proj_qkvz", mixed + values, hidden);
      linear(module + "in_proj_ba", 2 * heads, hidden);
    } else {
      linear(module + "in_proj_qkv", mixed, hidden);
      linear(module + "in_proj_z", values, hidden);
      linear(module + "in_proj_b", heads, hidden);
      linear(module + "in_proj_a", heads, hidden);
    }
    shapes_[module + "conv1d.weight"] = {mixed, rule.conv_kernel};
    if (rule.conv_bias) shapes_[module + "conv1d.bias"] = {1, mixed};
    shapes_[module + "A_log"] = {1, heads};
    shapes_[module + "dt_bias"] = {1, heads};
    if (rule.norms_gated)
      row(module + "norm", rule.state_space ? static_cast<int>(values) : rule.value_head_dim);
    linear(module + "out_proj", hidden, values, rule.out_bias);
  }

  void channel_gated_rule(const std::string& module) {
    const DeltaRuleSettings& rule = config_.delta_rule;
    const Index hidden = config_.hidden_size, heads = rule.value_heads;
    const Index keys = heads * rule.key_head_dim, values = heads * rule.value_head_dim;
    linear(module + "q_proj", keys, hidden);
    linear(module + "k_proj", keys, hidden);
    linear(module + "v_proj", values, hidden);
    shapes_[module + "q_conv1d.weight"] = shapes_[module + "k_conv1d.weight"] = {keys, rule.conv_kernel};
    shapes_[module + "v_conv1d.weight"] = {values, rule.conv_kernel};
    linear(module + "forget_gate.f_a_proj", rule.key_head_dim, hidden);
    linear(module + "forget_gate.f_b_proj", keys, rule.key_head_dim);
    linear(module + "g_a_proj", rule.value_head_dim, hidden);
    linear(module + "g_b_proj", values, rule.value_head_dim);
    linear(module + "b_proj", heads, hidden);
    shapes_[module + "forget_gate.A_log"] =
        rule.rates_in_row ? std::pair<Index, Index>{1, heads} : std::pair<Index, Index>{heads, 1};
    shapes_[module + "forget_gate.dt_bias"] = {1, keys};
    row(module + "o_norm", rule.value_head_dim);
    linear(module + "o_proj", hidden, values);
  }

  void mlp(const std::string& module, int layer) {
    const Index hidden = config_.hidden_size;
    const Index width = config_.mlp_width(layer);
    require(width > 0, "model", "expected a positive intermediate_size of a dense layer");
    if (config_.fused_projections || config_.fused_gate_up) {
      linear(module + config_.modules.gate_up, 2 * width, hidden, config_.mlp_bias);
    } else {
      const bool is_gated = config_.hidden_act != Activation::kRelu2;
      if (is_gated) linear(module + config_.modules.gate, width, hidden, config_.mlp_bias);
      linear(module + config_.modules.up, width, hidden, config_.mlp_bias);
    }
    linear(module + config_.modules.down, hidden, width, config_.mlp_bias);
  }

  void experts(const std::string& module, int layer) {
    const Index hidden = config_.hidden_size;
    const Index narrow = config_.mixture.moe_hidden_size, read = narrow > 0 ? narrow : hidden;
    const Index width = config_.mixture.moe_intermediate_size;
    const int count = config_.mixture.num_experts;
    adapter(module + "experts.gate_up_proj", 2 * width, read, count);
    adapter(module + "experts.down_proj", read, width, count);
    if (config_.mixture.plain_latents) {
      linear(module + "fc1_latent_proj", narrow, hidden, config_.mlp_bias);
      linear(module + "fc2_latent_proj", hidden, narrow, config_.mlp_bias);
    } else if (narrow > 0) {
      linear(module + "pre_expert_proj", narrow, hidden);
      row(module + "pre_expert_norm", narrow);
      row(module + "experts.post_expert_norm", narrow);
      linear(module + "post_expert_proj", hidden, narrow);
    }
    if (config_.mixture.biased_interleaved) {
      linear(module + "router", count, hidden, true);
      shapes_[module + "experts.gate_up_proj"] = {count * hidden, 2 * width};
      shapes_[module + "experts.gate_up_proj_bias"] = {count, 2 * width};
      shapes_[module + "experts.down_proj"] = {count * width, hidden};
      shapes_[module + "experts.down_proj_bias"] = {count, hidden};
    } else if (config_.mixture.stacked) {
      linear(module + "gate", count, hidden);
      shapes_[module + "experts.gate_up_proj"] = {count * 2 * width, read};
      shapes_[module + "experts.down_proj"] = {count * read, width};
    } else {
      linear(module + "gate", count, hidden);
      for (int j = 0; j < count; ++j) expert(module + "experts." + std::to_string(j) + ".", width, read);
    }
    if (config_.is_hashed(layer)) {
      shapes_[module + "gate.tid2eid"] = {config_.vocab_size, config_.mixture.num_experts_per_tok};
    } else if (config_.mixture.corrected) {
      shapes_[module + config_.mixture.correction] = {1, count};
    }
    const int shared = config_.mixture.shared_expert_intermediate_size;
    if (shared > 0 && !config_.mixture.shared_expert_ungated) {
      expert(module + "shared_expert.", shared, hidden);
      linear(module + "shared_expert_gate", 1, hidden);
    } else if (shared > 0 && config_.clamps_all_mlps) {
      linear(module + "shared_experts.gate_up_proj", 2 * Index{shared}, hidden);
      linear(module + "shared_experts.down_proj", hidden, shared);
    } else if (shared > 0) {
      expert(module + "shared_experts.", shared, hidden, config_.mlp_bias);
    }
  }

  /// Granite's, of "model.layers.0.".
  void granite_experts(const std::string& prefix, int layer) {
    const Index hidden = config_.hidden_size;
    const Index width = config_.mixture.moe_intermediate_size;
    const int count = config_.mixture.num_experts;
    const std::string in = prefix + "block_sparse_moe.";
    linear(in + "router.layer", count, hidden);
    shapes_[in + "input_linear.weight"] = {count * 2 * width, hidden};
    shapes_[in + "output_linear.weight"] = {count * hidden, width};
    adapter(in + "experts.gate_up_proj", 2 * width, hidden, count);
    adapter(in + "experts.down_proj", hidden, width, count);
    if (config_.mixture.shared_expert_intermediate_size > 0) mlp(prefix + config_.modules.mlp + ".", layer);
  }

  /// Gemma 4's, of "model.layers.0.".
  void experts_added_to_mlp(const std::string& prefix) {
    const Index hidden = config_.hidden_size;
    const Index width = config_.mixture.moe_intermediate_size;
    const int count = config_.mixture.num_experts;
    for (const char* name :
         {"post_feedforward_layernorm_1", "pre_feedforward_layernorm_2", "post_feedforward_layernorm_2"}) {
      norm(prefix, name);
    }
    linear(prefix + "router.proj", count, hidden);
    shapes_[prefix + "router.scale"] = {1, hidden};
    shapes_[prefix + "router.per_expert_scale"] = {1, count};
    shapes_[prefix + "experts.gate_up_proj"] = {count * 2 * width, hidden};
    shapes_[prefix + "experts.down_proj"] = {count * hidden, width};
    adapter(prefix + "experts.gate_up_proj", 2 * width, hidden, count);
    adapter(prefix + "experts.down_proj", hidden, width, count);
  }

  /// Gemma 4's, of the model and of each of its layers.
  void per_layer_inputs() {
    const Index size = config_.gemma4.hidden_size_per_layer_input;
    const Index hidden = config_.hidden_size;
    if (size == 0) return;
    const Index all = config_.num_hidden_layers * size;
    embedding("model.embed_tokens_per_layer", config_.gemma4.vocab_size_per_layer_input, all);
    linear("model.per_layer_model_projection", all, hidden);
    row("model.per_layer_projection_norm", size);
    for (int layer = 0; layer < config_.num_hidden_layers; ++layer) {
      const std::string prefix = layer_prefix(layer);
      linear(prefix + "per_layer_input_gate", size, hidden);
      linear(prefix + "per_layer_projection", hidden, size);
      norm(prefix, "post_per_layer_input_norm");
    }
  }

  /// Of `scales` weights of every stream; names end in "fn", "base" and "scale".
  void stream_weights(const std::string& names, int scales) {
    const bool is_mixed = scales > 1 && config_.hyper.sinkhorn_iters > 0;
    const Index streams = config_.hyper.streams;
    const Index weights = scales * streams + (is_mixed ? streams * streams : 0);
    shapes_[names + "fn"] = {weights, Index{config_.hyper.streams} * config_.hidden_size};
    shapes_[names + "base"] = {1, weights};
    shapes_[names + "scale"] = {1, scales + (is_mixed ? 1 : 0)};
  }

  void scalar(const std::string& name) { shapes_[name] = {1, 1}; }

  void expert(const std::string& module, Index width, Index read, bool has_bias = false) {
    const ModuleNames& modules = config_.modules;
    if (config_.hidden_act != Activation::kRelu2) linear(module + modules.gate, width, read, has_bias);
    linear(module + modules.up, width, read, has_bias);
    linear(module + modules.down, read, width, has_bias);
  }

  std::size_t adapters() const { return adapters_; }
  std::size_t trained() const { return trained_; }
  Shapes shapes() && { return std::move(shapes_); }

 private:
  const ModelConfig& config_;
  Shapes shapes_;
  std::size_t adapters_ = 0;
  std::size_t trained_ = 0;
};

}  // namespace streambp::STREAMBP_REFERENCE
