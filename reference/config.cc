#include "reference/config.h"

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
}

void require_valid(const ModelConfig& config) {
  require(config.vocab_size > 0 && config.hidden_size > 0 && config.intermediate_size > 0 &&
              config.num_hidden_layers >= 0 && config.num_attention_heads > 0 &&
              config.num_key_value_heads > 0,
          "model", "expected positive sizes");
  require(config.num_attention_heads % config.num_key_value_heads == 0, "model",
          "expected a number of query heads that is a multiple of the key/value heads");
  require(config.head_dim > 0 && config.head_dim % 2 == 0, "model",
          "expected an even head_dim, got " + std::to_string(config.head_dim));
  require(config.rotary_dim >= 0 && config.rotary_dim % 2 == 0 && config.rotary_dim <= config.head_dim,
          "model",
          "expected an even rotary_dim up to " + std::to_string(config.head_dim) + ", got " +
              std::to_string(config.rotary_dim));
  const auto layers = static_cast<std::size_t>(config.num_hidden_layers);
  require(config.windows.empty() || config.windows.size() == layers, "model",
          "expected a window for each of " + std::to_string(layers) + " layers or none");
  for (int window : config.windows) {
    require(window >= 0, "model", "expected windows of at least 0, got " + std::to_string(window));
  }
  require(config.no_rope.empty() || config.no_rope.size() == layers, "model",
          "expected to know of none or each of " + std::to_string(layers) + " layers whether it rotates");
  require_consistent(config);
  const MixtureSettings& mixture = config.mixture;
  require(mixture.num_experts >= 0, "model", "expected at least no experts");
  if (mixture.num_experts == 0) return;
  require(mixture.sparse.size() == layers, "model",
          "expected to know of each of " + std::to_string(layers) + " layers whether it is sparse");
  require(mixture.num_experts_per_tok > 0 && mixture.num_experts_per_tok <= mixture.num_experts, "model",
          "expected from 1 to " + std::to_string(mixture.num_experts) + " experts for a token, got " +
              std::to_string(mixture.num_experts_per_tok));
  require(mixture.moe_intermediate_size > 0, "model", "expected a positive size of the experts");
  require(mixture.shared_expert_intermediate_size >= 0, "model",
          "expected a size of the shared expert of at least 0, got " +
              std::to_string(mixture.shared_expert_intermediate_size));
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
      linear(module + "q_proj", queries, hidden, config_.qkv_bias);
      linear(module + "k_proj", keys, hidden, config_.qkv_bias);
      linear(module + "v_proj", keys, hidden, config_.qkv_bias);
    }
    linear(module + "o_proj", hidden, queries, config_.o_bias);
    if (config_.attention_sinks) shapes_[module + "sinks"] = {1, config_.num_attention_heads};
    if (!config_.qk_norm) return;
    row(module + "q_norm", config_.qk_norm_full_width ? queries : config_.head_dim);
    row(module + "k_norm", config_.qk_norm_full_width ? keys : config_.head_dim);
  }

  void mlp(const std::string& module) {
    const Index hidden = config_.hidden_size;
    const Index width = config_.intermediate_size;
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
    if (config_.mixture.shared_expert_intermediate_size == 0) return;
    expert(module + "shared_expert.", config_.mixture.shared_expert_intermediate_size);
    linear(module + "shared_expert_gate", 1, hidden);
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
    collect.attention(prefix + "self_attn.");
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
