#include "reference/model.h"

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

/// A linear layer, with its bias where the model has one.
Var project(const Parameters& parameters, const std::string& module, bool has_bias, const Var& x) {
  const Var& weight = parameter(parameters, module + ".weight");
  return has_bias ? linear(x, weight, parameter(parameters, module + ".bias")) : linear(x, weight);
}

Var attention_block(const ModelConfig& config, const Parameters& parameters, const std::string& module,
                    const Var& x, const std::vector<double>& positions) {
  Var q = project(parameters, module + "q_proj", config.qkv_bias, x);
  Var k = project(parameters, module + "k_proj", config.qkv_bias, x);
  const Var v = project(parameters, module + "v_proj", config.qkv_bias, x);
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
  return project(parameters, module + "o_proj", config.o_bias, mixed);
}

Var mlp_block(const ModelConfig& config, const Parameters& parameters, const std::string& module,
              const Var& x) {
  const Var gate = silu(project(parameters, module + "gate_proj", config.mlp_bias, x));
  const Var up = project(parameters, module + "up_proj", config.mlp_bias, x);
  return project(parameters, module + "down_proj", config.mlp_bias, mul(gate, up));
}

void require_valid(const ModelConfig& config, const Sequence& sequence) {
  require(sequence.positions.size() == sequence.tokens.size() &&
              sequence.targets.size() == sequence.tokens.size(),
          "sequence",
          "expected one position and one target for each of " + std::to_string(sequence.tokens.size()) +
              " tokens, got " + std::to_string(sequence.positions.size()) + " and " +
              std::to_string(sequence.targets.size()));
  const auto in_vocabulary = [&config](int token) { return token >= 0 && token < config.vocab_size; };
  const std::string range = "from 0 to " + std::to_string(config.vocab_size - 1);
  for (int token : sequence.tokens) {
    require(in_vocabulary(token), "sequence", "expected tokens " + range + ", got " + std::to_string(token));
  }
  for (int target : sequence.targets) {
    require(
        target == kNoTarget || in_vocabulary(target), "sequence",
        "expected targets " + range + " or " + std::to_string(kNoTarget) + ", got " + std::to_string(target));
  }
}

void require_valid(const ModelConfig& config, const Weights& weights) {
  const auto shapes = parameter_shapes(config);
  for (const auto& [name, shape] : shapes) {
    const auto found = weights.find(name);
    require(found != weights.end(), "weights", "expected a parameter " + name);
    require_shape("weights", name, found->second, shape.first, shape.second);
  }
  for (const auto& [name, weight] : weights) {
    require(shapes.contains(name), "weights", "expected only parameters of the model, got " + name);
  }
}

}  // namespace

std::map<std::string, std::pair<Index, Index>> parameter_shapes(const ModelConfig& config) {
  require(config.vocab_size > 0 && config.hidden_size > 0 && config.intermediate_size > 0 &&
              config.num_hidden_layers >= 0 && config.num_attention_heads > 0 &&
              config.num_key_value_heads > 0,
          "model", "expected positive sizes");
  require(config.num_attention_heads % config.num_key_value_heads == 0, "model",
          "expected a number of query heads that is a multiple of the key/value heads");
  require(config.head_dim > 0 && config.head_dim % 2 == 0, "model",
          "expected an even head_dim, got " + std::to_string(config.head_dim));
  const Index hidden = config.hidden_size;
  const Index mlp = config.intermediate_size;
  const Index queries = Index{config.num_attention_heads} * config.head_dim;
  const Index keys = Index{config.num_key_value_heads} * config.head_dim;

  std::map<std::string, std::pair<Index, Index>> shapes;
  const auto linear_layer = [&shapes](const std::string& module, Index out, Index in, bool has_bias) {
    shapes[module + ".weight"] = {out, in};
    if (has_bias) shapes[module + ".bias"] = {1, out};
  };
  const auto norm = [&shapes](const std::string& module, Index size) {
    shapes[module + ".weight"] = {1, size};
  };

  linear_layer("model.embed_tokens", config.vocab_size, hidden, false);
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
  if (!config.tie_word_embeddings) linear_layer("lm_head", config.vocab_size, hidden, false);
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

Var hidden_states(const ModelConfig& config, const Parameters& parameters, const Sequence& sequence) {
  Var h = gather_rows(parameter(parameters, "model.embed_tokens.weight"), sequence.tokens);
  const auto norm = [&config, &parameters](const std::string& module, const Var& x) {
    return rms_norm(x, parameter(parameters, module + ".weight"), config.rms_norm_eps);
  };
  for (int layer = 0; layer < config.num_hidden_layers; ++layer) {
    const std::string prefix = layer_prefix(layer);
    h = add(h, attention_block(config, parameters, prefix + "self_attn.", norm(prefix + "input_layernorm", h),
                               sequence.positions));
    h = add(h, mlp_block(config, parameters, prefix + "mlp.", norm(prefix + "post_attention_layernorm", h)));
  }
  return norm("model.norm", h);
}

Var log_probabilities(Tape& tape, const ModelConfig& config, const Parameters& parameters,
                      const std::vector<Sequence>& sequences) {
  const Var& head =
      parameter(parameters, config.tie_word_embeddings ? "model.embed_tokens.weight" : "lm_head.weight");
  std::vector<Var> parts;
  for (const Sequence& sequence : sequences) {
    require_valid(config, sequence);
    std::vector<int> scored;
    std::vector<int> targets;
    for (std::size_t t = 0; t < sequence.targets.size(); ++t) {
      if (sequence.targets[t] == kNoTarget) continue;
      scored.push_back(static_cast<int>(t));
      targets.push_back(sequence.targets[t]);
    }
    if (scored.empty()) continue;
    const Var hidden = gather_rows(hidden_states(config, parameters, sequence), scored);
    parts.push_back(token_log_probabilities(linear(hidden, head), targets));
  }
  return parts.empty() ? tape.leaf(Matrix(0, 1)) : concat_rows(parts);
}

Result evaluate(const ModelConfig& config, const Weights& weights, const std::vector<Sequence>& sequences,
                const Objective& objective) {
  require_valid(config, weights);
  Tape tape;
  Parameters parameters;
  for (const auto& [name, weight] : weights) parameters.emplace(name, tape.leaf(weight));
  const Var scores = log_probabilities(tape, config, parameters, sequences);

  Result result;
  Index next = 0;
  for (const Sequence& sequence : sequences) {
    for (int target : sequence.targets) {
      result.log_probabilities.push_back(target == kNoTarget ? 0.0 : scores.value()(next++, 0));
    }
  }
  if (scores.rows() == 0) {
    for (const auto& [name, weight] : weights)
      result.gradients[name] = Matrix::Zero(weight.rows(), weight.cols());
    return result;
  }
  const Var loss = objective(tape, scores);
  require_shape("evaluate", "the loss", loss.value(), 1, 1);
  tape.backward(loss, Matrix::Ones(1, 1));
  result.loss = loss.value()(0, 0);
  for (const auto& [name, leaf] : parameters) result.gradients[name] = leaf.gradient();
  return result;
}

}  // namespace streambp::reference
