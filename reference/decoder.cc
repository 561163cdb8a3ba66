#include "reference/decoder.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numbers>

#include "reference/ops.h"
#include "reference/require.h"

namespace streambp::reference {
namespace {

std::string layer_prefix(int layer) {
  return "model.layers." + std::to_string(layer) + ".";
}

const Var& parameter(const Parameters& parameters, const std::string& name) {
  const auto found = parameters.find(name);
  require(found != parameters.end(), "model", "expected a parameter " + name);
  return found->second;
}

/// A linear layer, with its bias and its adapter where the model has them.
Var project(const ModelConfig& config, const Parameters& parameters, const std::string& module, bool has_bias,
            const Var& x) {
  const Var& weight = parameter(parameters, module + ".weight");
  const Var y = has_bias ? linear(x, weight, parameter(parameters, module + ".bias")) : linear(x, weight);
  const auto adapter = config.adapters.find(module);
  if (adapter == config.adapters.end()) return y;
  const Var low = linear(x, parameter(parameters, module + ".lora_A.weight"));
  return add(y, scale(linear(low, parameter(parameters, module + ".lora_B.weight")), adapter->second.scale));
}

Var attention_block(const ModelConfig& config, const Parameters& parameters, const std::string& module,
                    const Var& x, const std::vector<double>& positions) {
  Var q = project(config, parameters, module + "q_proj", config.qkv_bias, x);
  Var k = project(config, parameters, module + "k_proj", config.qkv_bias, x);
  const Var v = project(config, parameters, module + "v_proj", config.qkv_bias, x);
  if (config.qk_norm) {
    q = rms_norm(q, parameter(parameters, module + "q_norm.weight"), config.rms_norm_eps);
    k = rms_norm(k, parameter(parameters, module + "k_norm.weight"), config.rms_norm_eps);
  }
  const std::vector<double> frequencies = rope_inverse_frequencies(config);
  AttentionOptions options;
  options.query_heads = config.num_attention_heads;
  options.key_value_heads = config.num_key_value_heads;
  options.scale = 1.0 / std::sqrt(static_cast<double>(config.head_dim));
  const Var mixed =
      causal_attention(rope(q, positions, frequencies), rope(k, positions, frequencies), v, options);
  return project(config, parameters, module + "o_proj", config.o_bias, mixed);
}

Var mlp_block(const ModelConfig& config, const Parameters& parameters, const std::string& module,
              const Var& x) {
  const Var gate = silu(project(config, parameters, module + "gate_proj", config.mlp_bias, x));
  const Var up = project(config, parameters, module + "up_proj", config.mlp_bias, x);
  return project(config, parameters, module + "down_proj", config.mlp_bias, mul(gate, up));
}

}  // namespace

std::map<std::string, std::pair<Index, Index>> parameter_shapes(const ModelConfig& config) {
  require(config.vocab_size > 0 && config.hidden_size > 0 && config.intermediate_size > 0 &&
              config.num_hidden_layers >= 0 && config.num_attention_heads > 0 &&
              config.num_key_value_heads > 0,
          "model", "expected positive sizes");
  require(config.num_attention_heads % config.num_key_value_heads == 0, "model",
          "expected a number of query heads that is a multiple of the "
          "key/value heads");
  require(config.head_dim > 0 && config.head_dim % 2 == 0, "model",
          "expected an even head_dim, got " + std::to_string(config.head_dim));
  const Index hidden = config.hidden_size;
  const Index mlp = config.intermediate_size;
  const Index queries = Index{config.num_attention_heads} * config.head_dim;
  const Index keys = Index{config.num_key_value_heads} * config.head_dim;

  std::map<std::string, std::pair<Index, Index>> shapes;
  std::size_t adapters = 0;
  const auto linear_layer = [&](const std::string& module, Index out, Index in, bool has_bias) {
    shapes[module + ".weight"] = {out, in};
    if (has_bias) shapes[module + ".bias"] = {1, out};
    const auto adapter = config.adapters.find(module);
    if (adapter == config.adapters.end()) return;
    const int rank = adapter->second.rank;
    require(rank > 0, "model", "expected a positive rank of the adapter of " + module);
    shapes[module + ".lora_A.weight"] = {rank, in};
    shapes[module + ".lora_B.weight"] = {out, rank};
    ++adapters;
  };
  const auto norm = [&shapes](const std::string& module, Index size) {
    shapes[module + ".weight"] = {1, size};
  };

  shapes["model.embed_tokens.weight"] = {config.vocab_size, hidden};
  for (int layer = 0; layer < config.num_hidden_layers; ++layer) {
    const std::string prefix = layer_prefix(layer);
    norm(prefix + "input_layernorm", hidden);
    linear_layer(prefix + "self_attn.q_proj", queries, hidden, config.qkv_bias);
    linear_layer(prefix + "self_attn.k_proj", keys, hidden, config.qkv_bias);
    linear_layer(prefix + "self_attn.v_proj", keys, hidden, config.qkv_bias);
    linear_layer(prefix + "self_attn.o_proj", hidden, queries, config.o_bias);
    if (config.qk_norm) {
      norm(prefix + "self_attn.q_norm", config.head_dim);
      norm(prefix + "self_attn.k_norm", config.head_dim);
    }
    norm(prefix + "post_attention_layernorm", hidden);
    linear_layer(prefix + "mlp.gate_proj", mlp, hidden, config.mlp_bias);
    linear_layer(prefix + "mlp.up_proj", mlp, hidden, config.mlp_bias);
    linear_layer(prefix + "mlp.down_proj", hidden, mlp, config.mlp_bias);
  }
  norm("model.norm", hidden);
  if (config.has_lm_head && !config.tie_word_embeddings) {
    linear_layer("lm_head", config.vocab_size, hidden, false);
  }
  if (config.has_value_head) shapes["value_head.weight"] = {1, hidden};
  require(adapters == config.adapters.size(), "model",
          "expected adapters of linear layers of the model only, " +
              std::to_string(config.adapters.size() - adapters) + " belong to other modules");
  return shapes;
}

std::vector<double> rope_inverse_frequencies(const ModelConfig& config) {
  std::vector<double> frequencies;
  for (int i = 0; i < config.head_dim / 2; ++i) {
    const double f = std::pow(config.rope_theta, -2.0 * i / config.head_dim);
    const double slowed = f / config.rope_factor;
    if (config.rope_type == RopeType::kDefault) {
      frequencies.push_back(f);
    } else if (config.rope_type == RopeType::kLinear) {
      frequencies.push_back(slowed);
    } else {
      // How many turns the pair makes over the context of pre-training. Few turns: a slow pair, whose larger
      // angles the model has not seen, is slowed down; many turns: a fast pair stays; between them, s goes
      // from 0 to 1.
      const double turns = config.rope_original_max_position_embeddings * f / (2.0 * std::numbers::pi);
      const double low = config.rope_low_freq_factor;
      const double high = config.rope_high_freq_factor;
      const double s = std::clamp((turns - low) / (high - low), 0.0, 1.0);
      frequencies.push_back((1.0 - s) * slowed + s * f);
    }
  }
  return frequencies;
}

Var hidden_states(const ModelConfig& config, const Parameters& parameters, const std::vector<int>& tokens,
                  const std::vector<double>& positions) {
  Var h = gather_rows(parameter(parameters, "model.embed_tokens.weight"), tokens);
  const auto norm = [&config, &parameters](const std::string& module, const Var& x) {
    return rms_norm(x, parameter(parameters, module + ".weight"), config.rms_norm_eps);
  };
  for (int layer = 0; layer < config.num_hidden_layers; ++layer) {
    const std::string prefix = layer_prefix(layer);
    h = add(h, attention_block(config, parameters, prefix + "self_attn.", norm(prefix + "input_layernorm", h),
                               positions));
    h = add(h, mlp_block(config, parameters, prefix + "mlp.", norm(prefix + "post_attention_layernorm", h)));
  }
  return norm("model.norm", h);
}

Var logits(const ModelConfig& config, const Parameters& parameters, const Var& hidden) {
  require(config.has_lm_head, "model", "expected an LM head to compute log-probabilities with");
  if (config.tie_word_embeddings) return linear(hidden, parameter(parameters, "model.embed_tokens.weight"));
  return project(config, parameters, "lm_head", false, hidden);
}

Var values(const ModelConfig& config, const Parameters& parameters, const Var& hidden) {
  require(config.has_value_head, "model", "expected a value head to compute values with");
  return linear(hidden, parameter(parameters, "value_head.weight"));
}

}  // namespace streambp::reference
