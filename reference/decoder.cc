#include "reference/decoder.h"

#include "reference/layers.h"
#include "reference/ops/ops.h"
#include "reference/require.h"

namespace streambp::STREAMBP_REFERENCE {
namespace {

/// One sequence on its path through the layers.
class Path {
 public:
  Path(const ModelConfig& config, const Layers& layers, const std::vector<int>& tokens,
       const std::vector<double>& positions, double length, const GivenExperts& experts,
       const GivenPicks& given_picks)
      : config_(config),
        layers_(layers),
        tokens_(tokens),
        positions_(positions),
        length_(length),
        experts_(experts),
        given_picks_(given_picks) {
    h_ = scale(layers.embed("model.embed_tokens", tokens), config.embedding_scale);
    if (config.plain_norms) h_ = layers.plainly_normed(h_, config.hidden_size);
    if (config.hyper.streams > 0) h_ = layers.in_every_stream(h_);
    embedded_ = h_;
    if (config.gemma4.hidden_size_per_layer_input > 0) inputs_ = layers.per_layer_inputs(tokens, h_);
  }

  void through(int layer) {
    norms_ = layer_norms(config_, layer);
    if (config_.hyper.streams > 0) return through_streams(layer);
    if (config_.residual_temperature > 0.0) return through_gates(layer_prefix(layer), layer);
    const Var input = h_;
    if (config_.has_mixer(layer)) add_to_stream(after(layer, norms_.after_attention, mixed(layer)));
    if (config_.has_mlp(layer)) {
      const Var read = config_.parallel ? after(layer, norms_.before_attention, input)
                                        : after(layer, norms_.before_mlp, h_);
      add_to_stream(after(layer, norms_.after_mlp, fed(layer, read)));
    }
    if (config_.gemma4.hidden_size_per_layer_input > 0) {
      const Index size = config_.gemma4.hidden_size_per_layer_input;
      const Var own = slice_columns(inputs_, layer * size, size);
      h_ = add(h_, layers_.per_layer_input(layer_prefix(layer), h_, own));
    }
    if (config_.gemma4.layer_scalar) {
      h_ = scale(h_, real_part(layers_.parameter(layer_prefix(layer) + "layer_scalar").value()(0, 0)));
    }
  }

  HiddenStates result() const {
    if (config_.hyper.lowrank > 0)
      return {layers_.low_rank_read("model.hyper_connection_mixer.", h_), router_probabilities_,
              balanced_probabilities_};
    const Var last = config_.hyper.head_reads_mean ? layers_.mean_of_streams(h_)
                     : config_.hyper.streams > 0   ? layers_.streams_read("model.hc_head.hc_", h_)
                                                   : h_;
    return {layers_.norm("model.norm", last), router_probabilities_, balanced_probabilities_};
  }

 private:
  Var after(int layer, const std::string& name, const Var& x) const {
    return name.empty() ? x : layers_.norm(layer_prefix(layer) + name, x);
  }

  /// A layer whose halves are added by gates.
  void through_gates(const std::string& prefix, int layer) {
    const Var attended = layers_.plainly_normed(mixed(layer), config_.hidden_size, config_.post_norm_eps);
    h_ = layers_.gated_sum(prefix + "post_attention_residual_gate.gate", h_, attended);
    const Var made = fed(layer, after(layer, norms_.before_mlp, h_));
    h_ = layers_.gated_sum(prefix + "post_feedforward_residual_gate.gate", h_,
                           layers_.norm_of_scaled(prefix + norms_.after_mlp, made));
  }

  /// A layer between whose halves a token has several streams.
  void through_streams(int layer) {
    if (config_.hyper.lowrank > 0) return through_low_rank_streams(layer_prefix(layer), layer);
    const std::string prefix = layer_prefix(layer), attention = prefix + "attn_hc.", mlp = prefix + "ffn_hc.";
    const Var all = h_;
    h_ = layers_.streams_read(attention, all);
    const Var middle = layers_.streams_given(attention, all, mixed(layer));
    const Var read = layers_.streams_read(mlp, middle);
    h_ = layers_.streams_given(mlp, middle, fed(layer, after(layer, norms_.before_mlp, read)));
  }

  /// The same where maps of all streams say what is read and given, after n-grams of the tokens.
  void through_low_rank_streams(const std::string& prefix, int layer) {
    const std::string attention = prefix + "attn_hyper_connection.", mlp = prefix + "mlp_hyper_connection.";
    const Var all =
        config_.has_ngrams(layer) ? add(h_, layers_.of_ngrams(prefix + "ple.", layer, h_, tokens_)) : h_;
    h_ = layers_.low_rank_read(attention, all);
    const Var middle = layers_.low_rank_given(attention, all, mixed(layer));
    h_ = layers_.low_rank_given(mlp, middle, fed(layer, layers_.low_rank_read(mlp, middle)));
  }

  void add_to_stream(const Var& x) {
    h_ = add(h_, config_.residual_multiplier == 1.0 ? x : scale(x, config_.residual_multiplier));
  }

  /// What attention, or what stands in its stead, makes of the stream.
  Var mixed(int layer) {
    if (config_.runs_block(layer)) {
      const Var made = layers_.shared_block(layer, h_, embedded_, positions_, length_, seen_);
      const Var x = after(layer, norms_.before_attention, add(h_, made));
      return layers_.state_space_layer(layer_prefix(layer) + "mamba_decoder.mamba.", x);
    }
    const Var x = after(layer, norms_.before_attention, h_);
    const std::string module = layer_prefix(layer) + config_.modules.attention + ".";
    if (config_.is_linear(layer) && config_.delta_rule.beside_attention)
      return add(recurrent(layer, x), layers_.attention(module, layer, x, positions_, length_, seen_));
    if (config_.is_linear(layer)) return recurrent(layer, x);
    if (config_.is_compressed())
      return layers_.compressed_attention(module, layer, x, positions_, length_, given_picks_);
    if (config_.is_latent())
      return layers_.latent_attention(module, layer, x, positions_, length_, given_picks_, picks_, seen_);
    return layers_.attention(module, layer, x, positions_, length_, seen_, given_picks_);
  }

  Var recurrent(int layer, const Var& x) const {
    const std::string module = layer_prefix(layer) + config_.modules.recurrence + ".";
    if (config_.delta_rule.convolution_alone) return layers_.short_convolution(module, x);
    if (config_.delta_rule.channel_gates) return layers_.channel_gated_rule(module, x);
    return config_.delta_rule.state_space ? layers_.state_space_layer(module, x)
                                          : layers_.delta_rule(module, x);
  }

  /// What the MLP, the experts or both make of x.
  Var fed(int layer, const Var& x) {
    const std::string prefix = layer_prefix(layer), mlp = prefix + config_.modules.mlp + ".";
    if (!config_.is_sparse(layer)) return layers_.mlp(mlp, x);
    const bool is_added = config_.mixture.added_to_mlp;
    ExpertsOfTokens given = experts_.empty() ? ExpertsOfTokens() : experts_.at(router_probabilities_.size());
    if (config_.is_hashed(layer) && given.empty()) given = layers_.hashed_experts(mlp, tokens_);
    if (config_.mixture.granite_names) {
      router_probabilities_.push_back(layers_.router(prefix + "block_sparse_moe.", x));
      return layers_.granite_experts(prefix, x, router_probabilities_.back(), given);
    }
    router_probabilities_.push_back(is_added ? layers_.router_added_to_mlp(prefix, h_)
                                             : layers_.router(mlp, x));
    const Var& p = router_probabilities_.back();
    if (config_.mixture.balanced_by_softmax && !config_.is_hashed(layer))
      balanced_probabilities_.push_back(layers_.softmax_of_router(mlp, x));
    if (config_.mixture.plain_latents) return layers_.latent_experts(mlp, x, p, given);
    if (config_.mixture.moe_hidden_size > 0) return layers_.narrow_experts(mlp, x, p, given);
    return is_added ? layers_.mlp_and_experts(prefix, h_, x, p, given) : layers_.experts(mlp, x, p, given);
  }

  const ModelConfig& config_;
  const Layers& layers_;
  LayerNorms norms_;  // of the layer that is gone through
  const std::vector<int>& tokens_;
  const std::vector<double>& positions_;
  const double length_;
  const GivenExperts& experts_;
  const GivenPicks& given_picks_;
  Var h_, embedded_, inputs_;
  KeyValuesOfLayers seen_;
  PicksOfLayers picks_;
  std::vector<Var> router_probabilities_, balanced_probabilities_;
};

}  // namespace

HiddenStates hidden_states(const ModelConfig& config, const Parameters& parameters,
                           const std::vector<int>& tokens, const std::vector<double>& positions,
                           double length, const GivenExperts& experts, const GivenPicks& picks) {
  const Layers layers(config, parameters);
  Path path(config, layers, tokens, positions, length, experts, picks);
  for (int layer = 0; layer < config.num_hidden_layers; ++layer) path.through(layer);
  return path.result();
}

Var logits(const ModelConfig& config, const Parameters& parameters, const Var& hidden) {
  require(config.has_lm_head, "model", "expected an LM head to compute log-probabilities with");
  Var z = Layers(config, parameters).head(hidden);
  if (config.logits_scaling != 1.0) z = scale(z, 1.0 / Number{config.logits_scaling});
  const Number cap = config.final_logit_softcapping;
  return cap > 0.0 ? scale(tanh(scale(z, 1.0 / cap)), cap) : z;
}

Var values(const ModelConfig& config, const Parameters& parameters, const Var& hidden) {
  require(config.has_value_head, "model", "expected a value head to compute values with");
  return linear(hidden, Layers(config, parameters).parameter("value_head.weight"));
}

}  // namespace streambp::STREAMBP_REFERENCE
