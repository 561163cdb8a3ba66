#include "reference/config.h"

#include <cstddef>

#include "reference/require.h"

namespace streambp::reference {
namespace {

using Shapes = std::map<std::string, std::pair<Index, Index>>;

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
  const MixtureSettings& mixture = config.mixture;
  require(mixture.num_experts >= 0, "model", "expected at least no experts");
  if (mixture.num_experts == 0) return;
  require(mixture.sparse.size() == layers, "model",
          "expected to know of each of " + std::to_string(layers) + " layers whether it is sparse");
  require(mixture.num_experts_per_tok > 0 && mixture.num_experts_per_tok <= mixture.num_experts, "model",
          "expected from 1 to " + std::to_string(mixture.num_experts) + " experts for a token, got " +
              std::to_string(mixture.num_experts_per_tok));
  require(mixture.moe_intermediate_size > 0, "model", "expected a positive size of the experts");
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
    if (!config_.qk_norm) return;
    row(module + "q_norm", config_.head_dim);
    row(module + "k_norm", config_.head_dim);
  }

  void mlp(const std::string& module) {
    const Index hidden = config_.hidden_size;
    const Index width = config_.intermediate_size;
    if (config_.fused_projections) {
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
    linear(module + "gate", config_.mixture.num_experts, hidden);
    adapter(module + "experts.gate_up_proj", 2 * width, hidden, config_.mixture.num_experts);
    adapter(module + "experts.down_proj", hidden, width, config_.mixture.num_experts);
    for (int j = 0; j < config_.mixture.num_experts; ++j) {
      const std::string expert = module + "experts." + std::to_string(j) + ".";
      linear(expert + "gate_proj", width, hidden);
      linear(expert + "up_proj", width, hidden);
      linear(expert + "down_proj", hidden, width);
    }
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

Shapes parameter_shapes(const ModelConfig& config) {
  require_valid(config);
  Collector collect(config);
  collect.embedding("model.embed_tokens");
  for (int layer = 0; layer < config.num_hidden_layers; ++layer) {
    const std::string prefix = layer_prefix(layer);
    collect.row(prefix + "input_layernorm", config.hidden_size);
    collect.row(prefix + "post_attention_layernorm", config.hidden_size);
    if (config.sandwich_norms) {
      collect.row(prefix + "pre_feedforward_layernorm", config.hidden_size);
      collect.row(prefix + "post_feedforward_layernorm", config.hidden_size);
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
