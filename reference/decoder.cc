#include "reference/decoder.h"

#include <cmath>
#include <numeric>

#include "reference/mixture.h"
#include "reference/ops.h"
#include "reference/require.h"

namespace streambp::reference {
namespace {

/// The layers of one model over one sequence.
class Decoder {
 public:
  Decoder(const ModelConfig& config, const Parameters& parameters)
      : config_(config), parameters_(parameters) {}

  const Var& parameter(const std::string& name) const {
    const auto found = parameters_.find(name);
    require(found != parameters_.end(), "model", "expected a parameter " + name);
    return found->second;
  }

  /// The weight of a module, with the rows that are trained apart put in.
  Var weight_of(const std::string& module) const {
    const Var& weight = parameter(module + ".weight");
    const auto trained = config_.trained_rows.find(module);
    if (trained == config_.trained_rows.end()) return weight;
    std::vector<int> rows(static_cast<std::size_t>(weight.rows()));
    std::iota(rows.begin(), rows.end(), 0);
    int next = static_cast<int>(weight.rows());
    for (int row : trained->second) rows[static_cast<std::size_t>(row)] = next++;
    return gather_rows(concat_rows({weight, parameter(module + ".token_adapter.trainable_tokens_delta")}),
                       rows);
  }

  /// A linear layer, with its bias and its adapter where the model has them.
  Var project(const std::string& module, bool has_bias, const Var& x) const {
    const Var weight = weight_of(module);
    const Var y = has_bias ? linear(x, weight, parameter(module + ".bias")) : linear(x, weight);
    return add_adapter(module, x, y);
  }

  Var add_adapter(const std::string& module, const Var& x, const Var& y) const {
    const auto adapter = config_.adapters.find(module);
    if (adapter == config_.adapters.end()) return y;
    const Var low = linear(x, parameter(module + ".lora_A.weight"));
    const Var& b = parameter(module + ".lora_B.weight");
    const Var delta =
        adapter->second.has_bias ? linear(low, b, parameter(module + ".lora_B.bias")) : linear(low, b);
    return add(y, scale(delta, adapter->second.scale));
  }

  /// The embedding's rows, [tokens, hidden_size].
  Var embed(const std::vector<int>& tokens) const {
    const std::string module = "model.embed_tokens";
    const Var h = embedding(weight_of(module), tokens, config_.pad_token_id);
    const auto adapter = config_.adapters.find(module);
    if (adapter == config_.adapters.end()) return h;
    // PEFT looks its rows up as nn.Embedding does: the padding token's has no gradient.
    const Var low = embedding(transpose(parameter(module + ".lora_A.weight")), tokens, config_.pad_token_id);
    return add(h, scale(linear(low, parameter(module + ".lora_B.weight")), adapter->second.scale));
  }

  /// What the head makes of hidden states.
  Var head(const Var& hidden) const {
    if (!config_.tie_word_embeddings) return project("lm_head", false, hidden);
    return add_adapter("lm_head", hidden, linear(hidden, weight_of("model.embed_tokens")));
  }

  Var norm(const std::string& module, const Var& x) const {
    const Var& weight = parameter(module + ".weight");
    return rms_norm(x, config_.norm_adds_one ? offset(weight, 1.0) : weight, config_.rms_norm_eps);
  }

  Var attention(const std::string& module, int layer, const Var& x, const std::vector<double>& positions,
                double length) const {
    const Index queries = Index{config_.num_attention_heads} * config_.head_dim;
    const Index keys = Index{config_.num_key_value_heads} * config_.head_dim;
    Var q, k, v;
    if (config_.fused_projections) {
      const Var qkv = project(module + "qkv_proj", config_.qkv_bias, x);
      q = slice_columns(qkv, 0, queries);
      k = slice_columns(qkv, queries, keys);
      v = slice_columns(qkv, queries + keys, keys);
    } else {
      q = project(module + "q_proj", config_.qkv_bias, x);
      k = project(module + "k_proj", config_.qkv_bias, x);
      v = project(module + "v_proj", config_.qkv_bias, x);
    }
    if (config_.qk_norm) {
      q = norm(module + "q_norm", q);
      k = norm(module + "k_norm", k);
    }
    if (config_.rotates(layer)) {
      const RopeOptions turn = rotation(layer, length);
      q = rope(q, positions, turn);
      k = rope(k, positions, turn);
    }
    if (config_.query_scale_beta != 0.0) q = scale_rows(q, query_factors(positions));

    AttentionOptions options;
    options.query_heads = config_.num_attention_heads;
    options.key_value_heads = config_.num_key_value_heads;
    options.scale = config_.attention_scale > 0.0 ? config_.attention_scale
                                                  : 1.0 / std::sqrt(static_cast<double>(config_.head_dim));
    options.window = config_.window(layer);
    options.softcap = config_.attn_logit_softcapping;
    const Var mixed = config_.attention_sinks
                          ? causal_attention(q, k, v, parameter(module + "sinks"), options)
                          : causal_attention(q, k, v, options);
    return project(module + "o_proj", config_.o_bias, mixed);
  }

  RopeOptions rotation(int layer, double length) const {
    const bool is_local = config_.window(layer) > 0 && config_.local_rope.has_value();
    const RopeSettings& settings = is_local ? *config_.local_rope : config_.rope;
    RopeOptions turn;
    turn.inverse_frequencies = rope_inverse_frequencies(settings, config_.rotary_entries(), length);
    turn.head_dim = config_.head_dim;
    turn.attention_factor = settings.attention_factor;
    turn.interleaved = config_.rope_interleaved;
    return turn;
  }

  /// By how much the queries far behind the context of pre-training count more.
  std::vector<double> query_factors(const std::vector<double>& positions) const {
    std::vector<double> factors;
    for (double position : positions) {
      const double contexts = std::floor(position / config_.query_scale_original);
      factors.push_back(1.0 + config_.query_scale_beta * std::log1p(contexts));
    }
    return factors;
  }

  Var mlp(const std::string& module, const Var& x) const {
    if (!config_.fused_projections && !config_.fused_gate_up) return gated(module, config_.mlp_bias, x);
    const Var both = project(module + "gate_up_proj", config_.mlp_bias, x);
    const Index width = config_.intermediate_size;
    const Var gate = slice_columns(both, 0, width);
    const Var up = slice_columns(both, width, width);
    return project(module + "down_proj", config_.mlp_bias, mul(activation(gate), up));
  }

  Var router(const std::string& module, const Var& x) const {
    const bool is_biased = config_.mixture.biased_interleaved;
    return exp(log_softmax(project(module + (is_biased ? "router" : "gate"), is_biased, x)));
  }

  Var experts(const std::string& module, const Var& x, const Var& p) const {
    const std::string all = module + "experts.";
    const Var y = mixture_of_experts(config_.mixture, x, p, [&](int e, const Var& rows) {
      return config_.mixture.biased_interleaved ? interleaved_expert(all, e, rows) : expert(all, e, rows);
    });
    if (config_.mixture.shared_expert_intermediate_size == 0) return y;
    const Var share = exp(log_sigmoid(project(module + "shared_expert_gate", false, x)));
    return add(y, scale_rows(gated(module + "shared_expert.", false, x), share));
  }

 private:
  Var expert(const std::string& experts, int e, const Var& x) const {
    const std::string module = experts + std::to_string(e) + ".";
    const Index width = config_.mixture.moe_intermediate_size;
    Var gate = project(module + "gate_proj", false, x);
    Var up = project(module + "up_proj", false, x);
    if (config_.adapters.contains(experts + "gate_up_proj")) {
      const Var both = expert_delta(experts + "gate_up_proj", e, x);
      gate = add(gate, slice_columns(both, 0, width));
      up = add(up, slice_columns(both, width, width));
    }
    const Var inner = expert_activation(gate, up);
    const Var y = project(module + "down_proj", false, inner);
    if (!config_.adapters.contains(experts + "down_proj")) return y;
    return add(y, expert_delta(experts + "down_proj", e, inner));
  }

  Var interleaved_expert(const std::string& experts, int e, const Var& x) const {
    const Index width = config_.mixture.moe_intermediate_size;
    const Var both = transpose(interleaved_linear(experts + "gate_up_proj", e, x));
    std::vector<int> gate(static_cast<std::size_t>(width)), up(gate.size());
    for (std::size_t j = 0; j < gate.size(); ++j) gate[j] = static_cast<int>(2 * j), up[j] = gate[j] + 1;
    const Var inner = expert_activation(transpose(gather_rows(both, gate)), transpose(gather_rows(both, up)));
    return interleaved_linear(experts + "down_proj", e, inner);
  }

  /// x W_e + b_e with expert e's rows of the matrices of all experts, and its adapter.
  Var interleaved_linear(const std::string& module, int e, const Var& x) const {
    std::vector<int> rows(static_cast<std::size_t>(x.cols()));
    std::iota(rows.begin(), rows.end(), e * static_cast<int>(x.cols()));
    const Var bias = gather_rows(parameter(module + "_bias"), {e});
    const Var y = linear(x, transpose(gather_rows(parameter(module), rows)), bias);
    return config_.adapters.contains(module) ? add(y, expert_delta(module, e, x)) : y;
  }

  Var expert_activation(const Var& gate, const Var& up) const {
    if (config_.swiglu_alpha == 0.0) return mul(activation(gate), up);
    return clamped_swiglu(gate, up, config_.swiglu_alpha, config_.swiglu_limit);
  }

  /// What expert e's part of an adapter of all experts adds; see LoraAdapter.
  Var expert_delta(const std::string& module, int e, const Var& x) const {
    const LoraAdapter& adapter = config_.adapters.at(module);
    std::vector<int> rows, columns;
    for (int j = 0; j < adapter.rank; ++j) {
      rows.push_back(e * adapter.rank + j);
      columns.push_back(j * config_.mixture.num_experts + e);
    }
    const Var a = gather_rows(parameter(module + ".lora_A.weight"), rows);
    const Var b = transpose(gather_rows(transpose(parameter(module + ".lora_B.weight")), columns));
    return scale(linear(linear(x, a), b), adapter.scale);
  }

  Var activation(const Var& x) const {
    return config_.hidden_act == Activation::kSilu ? silu(x) : gelu_tanh(x);
  }

  Var gated(const std::string& module, bool has_bias, const Var& x) const {
    const Var gate = activation(project(module + "gate_proj", has_bias, x));
    const Var up = project(module + "up_proj", has_bias, x);
    return project(module + "down_proj", has_bias, mul(gate, up));
  }

  const ModelConfig& config_;
  const Parameters& parameters_;
};

}  // namespace

HiddenStates hidden_states(const ModelConfig& config, const Parameters& parameters,
                           const std::vector<int>& tokens, const std::vector<double>& positions,
                           double length) {
  const Decoder decoder(config, parameters);
  HiddenStates result;
  Var h = scale(decoder.embed(tokens), config.embedding_scale);
  const LayerNorms norms = layer_norms(config);
  for (int layer = 0; layer < config.num_hidden_layers; ++layer) {
    const std::string prefix = layer_prefix(layer);
    const std::string mlp = prefix + "mlp.";
    const auto norm = [&](const std::string& name, const Var& x) {
      return name.empty() ? x : decoder.norm(prefix + name, x);
    };
    const auto add_to_stream = [&](const Var& x) {
      h = add(h, config.residual_multiplier == 1.0 ? x : scale(x, config.residual_multiplier));
    };
    const Var attended =
        decoder.attention(prefix + "self_attn.", layer, norm(norms.before_attention, h), positions, length);
    add_to_stream(norm(norms.after_attention, attended));

    const Var n = norm(norms.before_mlp, h);
    Var fed;
    if (config.is_sparse(layer)) {
      result.router_probabilities.push_back(decoder.router(mlp, n));
      fed = decoder.experts(mlp, n, result.router_probabilities.back());
    } else {
      fed = decoder.mlp(mlp, n);
    }
    add_to_stream(norm(norms.after_mlp, fed));
  }
  result.states = decoder.norm("model.norm", h);
  return result;
}

Var logits(const ModelConfig& config, const Parameters& parameters, const Var& hidden) {
  require(config.has_lm_head, "model", "expected an LM head to compute log-probabilities with");
  Var z = Decoder(config, parameters).head(hidden);
  if (config.logits_scaling != 1.0) z = scale(z, 1.0 / config.logits_scaling);
  const double cap = config.final_logit_softcapping;
  return cap > 0.0 ? scale(tanh(scale(z, 1.0 / cap)), cap) : z;
}

Var values(const ModelConfig& config, const Parameters& parameters, const Var& hidden) {
  require(config.has_value_head, "model", "expected a value head to compute values with");
  return linear(hidden, Decoder(config, parameters).parameter("value_head.weight"));
}

}  // namespace streambp::reference
