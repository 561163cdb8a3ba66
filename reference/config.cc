#include "reference/config.h"

#include <algorithm>
#include <cstddef>

#include "reference/require.h"

namespace streambp::reference {
namespace {

using Shapes = std::map<std::string, std::pair<Index, Index>>;

/// What some families multiply and divide by, and settings that go together.
void require_consistent(const ModelConfig& config) {
  require(config.residual_multiplier > 0.0 && config.logits_scaling > 0.0, "model",
          "expected a positive residual_multiplier and logits_scaling, got " +
              std::to_string(config.residual_multiplier) + " and " + std::to_string(config.logits_scaling));
  require(config.query_scale_beta == 0.0 || config.query_scale_original > 0.0, "model",
          "expected a positive query_scale_original, got " + std::to_string(config.query_scale_original));
  require(config.swiglu_alpha >= 0.0 && (config.swiglu_alpha == 0.0 || config.swiglu_limit > 0.0), "model",
          "expected a swiglu_alpha of at least 0 and with it a positive swiglu_limit, got " +
              std::to_string(config.swiglu_alpha) + " and " + std::to_string(config.swiglu_limit));
  require(!config.norm_after || !config.sandwich_norms, "model",
          "expected either norm_after or sandwich_norms, not both");
  require(!config.glm_norm_names || config.sandwich_norms, "model",
          "expected sandwich_norms where they have GLM's names");
  require(!config.qk_norm_full_width || config.qk_norm, "model",
          "expected qk_norm where it is of the full width");
  require(!config.attention_output_gate || !config.fused_projections, "model",
          "expected no fused projections of attention whose output has a gate");
}

void require_valid(const DeltaRuleSettings& rule) {
  require(rule.key_heads > 0 && rule.value_heads > 0 && rule.key_head_dim > 0 && rule.value_head_dim > 0 &&
              rule.conv_kernel > 0,
          "model", "expected positive sizes of the delta rule");
  require(rule.value_heads % rule.key_heads == 0, "model",
          "expected a number of value heads of the delta rule that is a multiple of its key heads, got " +
              std::to_string(rule.value_heads) + " and " + std::to_string(rule.key_heads));
}

void require_valid(const ModelConfig& config, const LatentAttentionSettings& latent) {
  require(latent.q_lora_rank >= 0 && latent.qk_nope_head_dim > 0 && latent.v_head_dim > 0, "model",
          "expected positive sizes of latent attention");
  require(latent.qk_rope_head_dim > 0 && latent.qk_rope_head_dim % 2 == 0, "model",
          "expected an even qk_rope_head_dim, got " + std::to_string(latent.qk_rope_head_dim));
  require(!config.qk_norm && !config.fused_projections && !config.attention_sinks &&
              !config.attention_output_gate && config.rotary_dim == 0 && config.no_rope.empty() &&
              config.query_scale_beta == 0.0,
          "model",
          "expected latent attention without qk_norm, fused projections, sinks, an output gate, rotary_dim, "
          "layers that do not rotate and a scale of the queries");
}

void require_valid(const MixtureSettings& mixture) {
  require(mixture.num_experts_per_tok > 0 && mixture.num_experts_per_tok <= mixture.num_experts, "model",
          "expected from 1 to " + std::to_string(mixture.num_experts) + " experts for a token, got " +
              std::to_string(mixture.num_experts_per_tok));
  require(mixture.moe_intermediate_size > 0, "model", "expected a positive size of the experts");
  require(mixture.shared_expert_intermediate_size >= 0, "model",
          "expected a size of the shared expert of at least 0, got " +
              std::to_string(mixture.shared_expert_intermediate_size));
  if (!mixture.sigmoid_scores) return;
  const int groups = mixture.n_group;
  require(!mixture.biased_interleaved, "model", "expected a softmax of the router that has a bias");
  require(
      groups > 0 && mixture.num_experts % groups == 0 && (groups == 1 || mixture.num_experts / groups > 1),
      "model",
      "expected n_group to divide " + std::to_string(mixture.num_experts) +
          " experts into groups of at least 2, got " + std::to_string(groups));
  require(mixture.topk_group > 0 && mixture.topk_group <= groups &&
              mixture.num_experts_per_tok <= mixture.num_experts / groups * mixture.topk_group,
          "model",
          "expected a topk_group of groups with at least " + std::to_string(mixture.num_experts_per_tok) +
              " experts, got " + std::to_string(mixture.topk_group));
  require(mixture.routed_scaling_factor > 0.0, "model",
          "expected a positive routed_scaling_factor, got " + std::to_string(mixture.routed_scaling_factor));
}

bool any(const std::vector<bool>& layers) {
  return std::find(layers.begin(), layers.end(), true) != layers.end();
}

/// That settings of each layer are there for each layer.
void require_of_layers(const ModelConfig& config) {
  const auto layers = static_cast<std::size_t>(config.num_hidden_layers);
  const auto require_size = [layers](std::size_t size, const std::string& what) {
    require(size == 0 || size == layers, "model",
            "expected to know of none or each of " + std::to_string(layers) + " layers " + what);
  };
  require_size(config.windows.size(), "its window");
  for (int window : config.windows) {
    require(window >= 0, "model", "expected windows of at least 0, got " + std::to_string(window));
  }
  require_size(config.no_rope.size(), "whether it rotates");
  require_size(config.linear_attention.size(), "whether it is linear");
  if (any(config.linear_attention)) require_valid(config.delta_rule);
}

void require_valid(const ModelConfig& config) {
  require(config.vocab_size > 0 && config.hidden_size > 0 && config.intermediate_size >= 0 &&
              config.num_hidden_layers >= 0 && config.num_attention_heads > 0 &&
              config.num_key_value_heads > 0,
          "model", "expected positive sizes");
  require(config.num_attention_heads % config.num_key_value_heads == 0, "model",
          "expected a number of query heads that is a multiple of the key/value heads");
  require(config.is_latent() || (config.head_dim > 0 && config.head_dim % 2 == 0), "model",
          "expected an even head_dim, got " + std::to_string(config.head_dim));
  require(config.rotary_dim >= 0 && config.rotary_dim % 2 == 0 && config.rotary_dim <= config.head_dim,
          "model",
          "expected an even rotary_dim up to " + std::to_string(config.head_dim) + ", got " +
              std::to_string(config.rotary_dim));
  const auto layers = static_cast<std::size_t>(config.num_hidden_layers);
  require_of_layers(config);
  require_consistent(config);
  if (config.is_latent()) require_valid(config, config.latent);
  const MixtureSettings& mixture = config.mixture;
  require(mixture.num_experts >= 0, "model", "expected at least no experts");
  if (mixture.num_experts == 0) return;
  require(mixture.sparse.size() == layers, "model",
          "expected to know of each of " + std::to_string(layers) + " layers whether it is sparse");
  require_valid(mixture);
}

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

  void trained_rows(const std::string& module) {
    const auto found = config_.trained_rows.find(module);
    if (found == config_.trained_rows.end()) return;
    for (int row : found->second) {
      require(row >= 0 && row < config_.vocab_size, "model",
              "expected trained rows from 0 to " + std::to_string(config_.vocab_size - 1) + ", got " +
                  std::to_string(row));
    }
    const auto count = static_cast<Index>(found->second.size());
    shapes_[module + ".token_adapter.trainable_tokens_delta"] = {count, config_.hidden_size};
    ++trained_;
  }

  void row(const std::string& module, Index size) { shapes_[module + ".weight"] = {1, size}; }
  void norm(const std::string& prefix, const std::string& name) {
    if (!name.empty()) row(prefix + name, config_.hidden_size);
  }
  void embedding(const std::string& module) {
    shapes_[module + ".weight"] = {config_.vocab_size, config_.hidden_size};
    adapter(module, config_.hidden_size, config_.vocab_size);
    trained_rows(module);
  }

  void attention(const std::string& module) {
    const Index hidden = config_.hidden_size;
    const Index queries = Index{config_.num_attention_heads} * config_.head_dim;
    const Index keys = Index{config_.num_key_value_heads} * config_.head_dim;
    if (config_.fused_projections) {
      linear(module + "qkv_proj", queries + 2 * keys, hidden, config_.qkv_bias);
    } else {
      linear(module + "q_proj", config_.attention_output_gate ? 2 * queries : queries, hidden,
             config_.qkv_bias);
      linear(module + "k_proj", keys, hidden, config_.qkv_bias);
      linear(module + "v_proj", keys, hidden, config_.qkv_bias);
    }
    linear(module + "o_proj", hidden, queries, config_.o_bias);
    if (config_.attention_sinks) shapes_[module + "sinks"] = {1, config_.num_attention_heads};
    if (!config_.qk_norm) return;
    row(module + "q_norm", config_.qk_norm_full_width ? queries : config_.head_dim);
    row(module + "k_norm", config_.qk_norm_full_width ? keys : config_.head_dim);
  }

  void latent_attention(const std::string& module) {
    const Index hidden = config_.hidden_size, heads = config_.num_attention_heads;
    const LatentAttentionSettings& latent = config_.latent;
    const Index queries = heads * (latent.qk_nope_head_dim + latent.qk_rope_head_dim);
    if (latent.q_lora_rank > 0) {
      linear(module + "q_a_proj", latent.q_lora_rank, hidden, config_.qkv_bias);
      row(module + "q_a_layernorm", latent.q_lora_rank);
      linear(module + "q_b_proj", queries, latent.q_lora_rank);
    } else {
      linear(module + "q_proj", queries, hidden);
    }
    const Index rank = latent.kv_lora_rank;
    linear(module + "kv_a_proj_with_mqa", rank + latent.qk_rope_head_dim, hidden, config_.qkv_bias);
    row(module + "kv_a_layernorm", rank);
    linear(module + "kv_b_proj", heads * (latent.qk_nope_head_dim + latent.v_head_dim), rank);
    linear(module + "o_proj", hidden, heads * latent.v_head_dim, config_.o_bias);
  }

  void delta_rule(const std::string& module) {
    const Index hidden = config_.hidden_size;
    const DeltaRuleSettings& rule = config_.delta_rule;
    const Index heads = rule.value_heads, values = heads * rule.value_head_dim;
    const Index mixed = Index{2} * rule.key_heads * rule.key_head_dim + values;
    if (rule.fused_projections) {
      linear(module + "in_proj_qkvz", mixed + values, hidden);
      linear(module + "in_proj_ba", 2 * heads, hidden);
    } else {
      linear(module + "in_proj_qkv", mixed, hidden);
      linear(module + "in_proj_z", values, hidden);
      linear(module + "in_proj_b", heads, hidden);
      linear(module + "in_proj_a", heads, hidden);
    }
    shapes_[module + "conv1d.weight"] = {mixed, rule.conv_kernel};
    shapes_[module + "A_log"] = {1, heads};
    shapes_[module + "dt_bias"] = {1, heads};
    row(module + "norm", rule.value_head_dim);
    linear(module + "out_proj", hidden, values);
  }

  void mlp(const std::string& module) {
    const Index hidden = config_.hidden_size;
    const Index width = config_.intermediate_size;
    require(width > 0, "model", "expected a positive intermediate_size of a dense layer");
    if (config_.fused_projections || config_.fused_gate_up) {
      linear(module + "gate_up_proj", 2 * width, hidden, config_.mlp_bias);
    } else {
      linear(module + "gate_proj", width, hidden, config_.mlp_bias);
      linear(module + "up_proj", width, hidden, config_.mlp_bias);
    }
    linear(module + "down_proj", hidden, width, config_.mlp_bias);
  }

  void experts(const std::string& module) {
    const Index hidden = config_.hidden_size;
    const Index width = config_.mixture.moe_intermediate_size;
    const int count = config_.mixture.num_experts;
    adapter(module + "experts.gate_up_proj", 2 * width, hidden, count);
    adapter(module + "experts.down_proj", hidden, width, count);
    if (config_.mixture.biased_interleaved) {
      linear(module + "router", count, hidden, true);
      shapes_[module + "experts.gate_up_proj"] = {count * hidden, 2 * width};
      shapes_[module + "experts.gate_up_proj_bias"] = {count, 2 * width};
      shapes_[module + "experts.down_proj"] = {count * width, hidden};
      shapes_[module + "experts.down_proj_bias"] = {count, hidden};
    } else {
      linear(module + "gate", count, hidden);
      for (int j = 0; j < count; ++j) expert(module + "experts." + std::to_string(j) + ".", width);
    }
    if (config_.mixture.sigmoid_scores) shapes_[module + "gate.e_score_correction_bias"] = {1, count};
    const int shared = config_.mixture.shared_expert_intermediate_size;
    if (shared > 0 && !config_.mixture.shared_expert_ungated) {
      expert(module + "shared_expert.", shared);
      linear(module + "shared_expert_gate", 1, hidden);
    } else if (shared > 0) {
      expert(module + "shared_experts.", shared);
    }
  }

  void expert(const std::string& module, Index width) {
    linear(module + "gate_proj", width, config_.hidden_size);
    linear(module + "up_proj", width, config_.hidden_size);
    linear(module + "down_proj", config_.hidden_size, width);
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

}  // namespace

std::string layer_prefix(int layer) {
  return "model.layers." + std::to_string(layer) + ".";
}

LayerNorms layer_norms(const ModelConfig& config) {
  if (config.glm_norm_names) {
    return {"input_layernorm", "post_self_attn_layernorm", "post_attention_layernorm", "post_mlp_layernorm"};
  }
  if (config.sandwich_norms) {
    return {"input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm",
            "post_feedforward_layernorm"};
  }
  if (config.norm_after) return {"", "post_attention_layernorm", "", "post_feedforward_layernorm"};
  return {"input_layernorm", "", "post_attention_layernorm", ""};
}

Shapes parameter_shapes(const ModelConfig& config) {
  require_valid(config);
  Collector collect(config);
  const LayerNorms norms = layer_norms(config);
  collect.embedding("model.embed_tokens");
  for (int layer = 0; layer < config.num_hidden_layers; ++layer) {
    const std::string prefix = layer_prefix(layer);
    for (const std::string& name :
         {norms.before_attention, norms.after_attention, norms.before_mlp, norms.after_mlp}) {
      collect.norm(prefix, name);
    }
    if (config.is_linear(layer)) {
      collect.delta_rule(prefix + "linear_attn.");
    } else if (config.is_latent()) {
      collect.latent_attention(prefix + "self_attn.");
    } else {
      collect.attention(prefix + "self_attn.");
    }
    if (config.is_sparse(layer)) {
      collect.experts(prefix + "mlp.");
    } else {
      collect.mlp(prefix + "mlp.");
    }
  }
  collect.row("model.norm", config.hidden_size);
  if (config.has_lm_head && config.tie_word_embeddings) {
    collect.adapter("lm_head", config.vocab_size, config.hidden_size);
  } else if (config.has_lm_head) {
    collect.linear("lm_head", config.vocab_size, config.hidden_size);
    collect.trained_rows("lm_head");
  }
  if (config.has_value_head) collect.row("value_head", config.hidden_size);
  require(collect.adapters() == config.adapters.size(), "model",
          "expected adapters of linear layers and the embedding only, " +
              std::to_string(config.adapters.size() - collect.adapters()) + " belong to other modules");
  require(collect.trained() == config.trained_rows.size(), "model",
          "expected trained rows of the embedding, and of a head of its own");
  return std::move(collect).shapes();
}

}  // namespace streambp::reference
