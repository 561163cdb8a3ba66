#include "reference/decoder.h"

#include "reference/layers.h"
#include "reference/ops.h"
#include "reference/require.h"

namespace streambp::reference {

HiddenStates hidden_states(const ModelConfig& config, const Parameters& parameters,
                           const std::vector<int>& tokens, const std::vector<double>& positions,
                           double length) {
  const Layers layers(config, parameters);
  HiddenStates result;
  Var h = scale(layers.embed(tokens), config.embedding_scale);
  const LayerNorms norms = layer_norms(config);
  for (int layer = 0; layer < config.num_hidden_layers; ++layer) {
    const std::string prefix = layer_prefix(layer);
    const std::string mlp = prefix + "mlp.";
    const auto norm = [&](const std::string& name, const Var& x) {
      return name.empty() ? x : layers.norm(prefix + name, x);
    };
    const auto add_to_stream = [&](const Var& x) {
      h = add(h, config.residual_multiplier == 1.0 ? x : scale(x, config.residual_multiplier));
    };
    const Var x = norm(norms.before_attention, h);
    const std::string attention = prefix + "self_attn.";
    const Var mixed = config.is_linear(layer) ? layers.delta_rule(prefix + "linear_attn.", x)
                      : config.is_latent() ? layers.latent_attention(attention, layer, x, positions, length)
                                           : layers.attention(attention, layer, x, positions, length);
    add_to_stream(norm(norms.after_attention, mixed));

    const Var n = norm(norms.before_mlp, h);
    Var fed;
    if (config.is_sparse(layer)) {
      result.router_probabilities.push_back(layers.router(mlp, n));
      fed = layers.experts(mlp, n, result.router_probabilities.back());
    } else {
      fed = layers.mlp(mlp, n);
    }
    add_to_stream(norm(norms.after_mlp, fed));
  }
  result.states = layers.norm("model.norm", h);
  return result;
}

Var logits(const ModelConfig& config, const Parameters& parameters, const Var& hidden) {
  require(config.has_lm_head, "model", "expected an LM head to compute log-probabilities with");
  Var z = Layers(config, parameters).head(hidden);
  if (config.logits_scaling != 1.0) z = scale(z, 1.0 / config.logits_scaling);
  const double cap = config.final_logit_softcapping;
  return cap > 0.0 ? scale(tanh(scale(z, 1.0 / cap)), cap) : z;
}

Var values(const ModelConfig& config, const Parameters& parameters, const Var& hidden) {
  require(config.has_value_head, "model", "expected a value head to compute values with");
  return linear(hidden, Layers(config, parameters).parameter("value_head.weight"));
}

}  // namespace streambp::reference
