#include "reference/layers.h"

#include <cmath>
#include <limits>
#include <numeric>

#include "reference/mixture.h"
#include "reference/ops/ops.h"
#include "reference/require.h"

namespace streambp::STREAMBP_REFERENCE {

const Var& Layers::parameter(const std::string& name) const {
  const auto found = parameters_.find(name);
  require(found != parameters_.end(), "model", "expected a parameter " + name);
  return found->second;
}

/// The weight of a module, with the rows that are trained apart put in.
Var Layers::weight_of(const std::string& module) const {
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

namespace {

constexpr const char* kShared = ".shared_transformer.";

/// The number in "model.layers.3.mlp.".
std::size_t layer_of(const std::string& module) {
  return std::stoul(module.substr(std::string("model.layers.").size()));
}

}  // namespace

/// What the parameters of a module in a layer's shared block are called: as in the lowest layer that runs it.
std::string Layers::owned_name(const std::string& module) const {
  const std::size_t at = module.find(kShared);
  if (at == std::string::npos) return module;
  const int owner = config_.block_owner(static_cast<int>(layer_of(module)));
  return "model.layers." + std::to_string(owner) + module.substr(at);
}

/// With the adapter that a layer has of its own for a module of its shared block.
Var Layers::add_own_adapter(const std::string& module, const Var& x, const Var& y) const {
  const std::size_t last = module.rfind('.') + 1;
  const std::string part = module.substr(last);
  std::string list = "gate_up_proj_adapter_list";
  if (part == "q_proj" || part == "k_proj" || part == "v_proj") {
    if (!config_.shared_blocks.attention_adapters) return y;
    list = std::string("linear_") + part[0] + "_adapter_list";
  } else if (part != "gate_up_proj") {
    return y;
  }
  const int use = config_.block_use(static_cast<int>(layer_of(module)));
  const std::string pair = module.substr(0, last) + list + "." + std::to_string(use) + ".";
  return add(y, project(pair + "1", false, project(pair + "0", false, x)));
}

/// A linear layer, with its bias and its adapter where the model has them.
Var Layers::project(const std::string& module, bool has_bias, const Var& x) const {
  const std::string owned = owned_name(module);
  const Var weight = weight_of(owned);
  const Var y = has_bias ? linear(x, weight, parameter(owned + ".bias")) : linear(x, weight);
  const bool is_shared = owned != module || module.find(kShared) != std::string::npos;
  return add_adapter(module, x, is_shared ? add_own_adapter(module, x, y) : y);
}

Var Layers::add_adapter(const std::string& module, const Var& x, const Var& y) const {
  const auto adapter = config_.adapters.find(module);
  if (adapter == config_.adapters.end()) return y;
  const Var low = linear(x, parameter(module + ".lora_A.weight"));
  const Var& b = parameter(module + ".lora_B.weight");
  const Var delta =
      adapter->second.has_bias ? linear(low, b, parameter(module + ".lora_B.bias")) : linear(low, b);
  return add(y, scale(delta, adapter->second.scale));
}

Var Layers::embed(const std::string& module, const std::vector<int>& tokens) const {
  const Var h = embedding(weight_of(module), tokens, config_.pad_token_id);
  const auto adapter = config_.adapters.find(module);
  if (adapter == config_.adapters.end()) return h;
  // PEFT looks its rows up as nn.Embedding does: the padding token's has no gradient.
  const Var low = embedding(transpose(parameter(module + ".lora_A.weight")), tokens, config_.pad_token_id);
  return add(h, scale(linear(low, parameter(module + ".lora_B.weight")), adapter->second.scale));
}

Var Layers::per_layer_inputs(const std::vector<int>& tokens, const Var& h) const {
  const Number size = config_.gemma4.hidden_size_per_layer_input;
  const Number hidden = config_.hidden_size;
  const Var of_token = scale(embed("model.embed_tokens_per_layer", tokens), std::sqrt(size));
  const Var projected = scale(project("model.per_layer_model_projection", false, h), 1.0 / std::sqrt(hidden));
  return scale(add(norm("model.per_layer_projection_norm", projected), of_token), std::sqrt(Number{0.5}));
}

Var Layers::per_layer_input(const std::string& prefix, const Var& h, const Var& a) const {
  const Var gate = activation(project(prefix + "per_layer_input_gate", false, h));
  return norm(prefix + "post_per_layer_input_norm",
              project(prefix + "per_layer_projection", false, mul(gate, a)));
}

/// What the head makes of hidden states.
Var Layers::head(const Var& hidden) const {
  if (!config_.tie_word_embeddings) return project("lm_head", false, hidden);
  return add_adapter("lm_head", hidden, linear(hidden, weight_of("model.embed_tokens")));
}

/// Each group of columns divided by its root mean square, which is its length by the root of its number.
Var Layers::plainly_normed(const Var& x, int group, double eps) const {
  const Number size = group;
  return scale(l2_norm(x, group, size * (eps > 0.0 ? eps : config_.rms_norm_eps)), std::sqrt(size));
}

namespace {

/// x less the mean of each row.
Var less_mean(const Var& x) {
  const Var means = scale(row_sum(x), Number{1} / static_cast<Number>(x.cols()));
  const std::vector<int> of_every_column(static_cast<std::size_t>(x.cols()), 0);
  return sub(x, gather_columns(means, of_every_column));
}

}  // namespace

Var Layers::norm_of_heads(const std::string& module, const Var& x) const {
  if (!config_.qk_norm_by_head) return norm(module, x);
  const Var& weights = parameter(module + ".weight");
  std::vector<Var> heads;
  for (int head = 0; head < weights.rows(); ++head) {
    const Var own = slice_columns(x, head * weights.cols(), weights.cols());
    heads.push_back(rms_norm(less_mean(own), gather_rows(weights, {head}), config_.rms_norm_eps));
  }
  return join_groups(heads, 1);
}

Var Layers::norm(const std::string& module, const Var& x) const {
  const Var& weight = parameter(owned_name(module) + ".weight");
  if (config_.norm_centers) return rms_norm(less_mean(x), weight, config_.rms_norm_eps);
  const bool is_plain = config_.plain_norms && module == "model.norm";
  const bool is_after =
      module.ends_with("post_attention_layernorm") || module.ends_with("post_feedforward_layernorm");
  const double eps = config_.post_norm_eps > 0.0 && is_after ? config_.post_norm_eps : config_.rms_norm_eps;
  return rms_norm(x, config_.norm_adds_one && !is_plain ? offset(weight, 1.0) : weight, eps);
}

Var Layers::activation(const Var& x) const {
  if (config_.hidden_act == Activation::kGelu) return gelu(x);
  if (config_.hidden_act == Activation::kRelu) return maximum(x, scale(x, 0.0));
  return config_.hidden_act == Activation::kSilu ? silu(x) : gelu_tanh(x);
}

Var Layers::gated_product(const std::string& module, const Var& gate, const Var& up) const {
  const bool of_expert = module.ends_with(".experts.");
  if (config_.limits_all_mlps) {
    const Number most = config_.swiglu_limit;
    return mul(activation(clip(gate, -std::numeric_limits<double>::infinity(), most)), clip(up, -most, most));
  }
  const std::vector<double>& limits = of_expert ? config_.expert_limits : config_.mlp_limits;
  const double limit = limits.empty() ? 0.0 : limits[layer_of(module)];
  return limit > 0.0 ? limited_swiglu(activation(gate), up, limit) : mul(activation(gate), up);
}

Var Layers::gated(const std::string& module, bool has_bias, const Var& x) const {
  if (config_.hidden_act == Activation::kRelu2) {
    const Var up = project(module + "up_proj", has_bias, x);
    const Var positive = maximum(up, scale(up, 0.0));
    return project(module + "down_proj", has_bias, mul(positive, positive));
  }
  Var gate = project(module + config_.modules.gate, has_bias, x);
  if (config_.gate_multiplier != 1.0) gate = scale(gate, config_.gate_multiplier);
  const Var up = project(module + config_.modules.up, has_bias, x);
  const Var y = project(module + config_.modules.down, has_bias, gated_product(module, gate, up));
  return config_.down_multiplier == 1.0 ? y : scale(y, config_.down_multiplier);
}

Var Layers::shared_block(int layer, const Var& h, const Var& e, const std::vector<double>& positions,
                         double length, KeyValuesOfLayers& seen) const {
  const std::string prefix = layer_prefix(layer), block = prefix + "shared_transformer.";
  const Var both = transpose(concat_rows({transpose(h), transpose(e)}));
  const Var read = norm(block + "input_layernorm", both);
  const Var attended = attention(block + "self_attn.", layer, read, positions, length, seen);
  const Var fed = mlp(block + "feed_forward.", norm(block + "pre_ff_layernorm", attended));
  return project(prefix + "linear", false, fed);
}

Var Layers::mlp(const std::string& module, const Var& x) const {
  const bool is_shared = module.find(kShared) != std::string::npos;
  if (config_.clamps_all_mlps) return clamped_mlp(module, x);
  if (!config_.fused_projections && !config_.fused_gate_up && !is_shared)
    return gated(module, config_.mlp_bias, x);
  const Var both = project(module + config_.modules.gate_up, config_.mlp_bias, x);
  const Index width = config_.intermediate_size;
  const Var gate = slice_columns(both, 0, width);
  const Var up = slice_columns(both, width, width);
  return project(module + config_.modules.down, config_.mlp_bias, mul(activation(gate), up));
}

}  // namespace streambp::STREAMBP_REFERENCE
