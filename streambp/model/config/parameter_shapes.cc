// Names, shapes and order of a decoder's parameters.
#include <fmt/format.h>

#include "streambp/model/config/shape_list.h"

namespace streambp {
std::vector<ParameterShape> parameter_shapes(const Config& config) {
  const int64_t hidden = config.hidden_size;
  ShapeList list(config);
  list.matrix("model.embed_tokens", config.vocab_size, hidden, ParameterRole::kEmbedding);
  if (config.has_per_layer_inputs()) list.per_layer_inputs();
  for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    const std::string at = fmt::format("model.layers.{}.", layer);
    if (config.runs_block(layer)) {
      list.shared_block(at, layer);
      list.delta_rule(at + "mamba_decoder.");
      list.norm(at + "mamba_decoder.input_layernorm", hidden);
      continue;
    }
    const NormNames norms = config.norm_names(layer);
    list.norm_of_layer(at, norms.before_attention);
    const bool mixes = config.has_mixer(layer);
    if (mixes && config.is_recurrent(layer)) list.delta_rule(at);
    if (config.attends(layer) && config.is_latent()) {
      list.latent_attention(at, layer);
    } else if (config.attends(layer) && config.is_compressed()) {
      list.compressed_attention(at, layer);
    } else if (config.attends(layer)) {
      list.attention(at, layer);
    }
    list.norm_of_layer(at, norms.after_attention);
    list.norm_of_layer(at, norms.before_mlp);
    if (config.is_sparse(layer) && !config.mixture.next_to_mlp) {
      list.mixture(at, layer);
    } else if (config.has_mlp(layer)) {
      list.dense_mlp(at + modules_of(config).mlp + ".", config.intermediate_size_of(layer));
      if (config.is_sparse(layer)) list.mixture_next_to_mlp(at);
    }
    list.norm_of_layer(at, norms.after_mlp);
    if (config.has_low_rank_streams()) {
      for (const char* half : {"attn_hyper_connection.", "mlp_hyper_connection."})
        list.low_rank_streams(at + half, /*gives=*/true);
      if (config.ngrams.are_in(layer)) list.ngrams(at + "ple.", layer);
    } else if (config.has_streams()) {
      for (const char* gates : {"attn_hc.", "ffn_hc."})
        list.stream_gates(at + gates, 2, "", config.hyper.sinkhorn_iters > 0);
    }
    if (config.has_residual_gates()) list.residual_gates(at);
    if (config.has_per_layer_inputs()) list.per_layer_maps(at);
    if (config.layer_scalar) list.layer_scalar(at);
  }
  if (config.has_low_rank_streams()) {
    list.low_rank_streams("model.hyper_connection_mixer.", /*gives=*/false);
  } else {
    list.norm("model.norm", hidden);
  }
  if (config.latent.trained_positions) list.per_head(kTrainedFrequencies, config.latent.qk_rope_head_dim / 2);
  if (config.has_head_gates()) list.stream_gates("model.hc_head.", 1, "hc_");
  if (config.value_model) {
    list.matrix("score", 1, hidden, ParameterRole::kHead);
  } else if (!config.tie_word_embeddings) {
    list.matrix("lm_head", config.vocab_size, hidden, ParameterRole::kHead);
  }
  return list.take();
}

int64_t parameter_count(const Config& config) {
  int64_t count = 0;
  for (const ParameterShape& parameter : parameter_shapes(config)) {
    count += std::accumulate(parameter.shape.begin(), parameter.shape.end(), int64_t{1}, std::multiplies<>());
  }
  return count;
}

}  // namespace streambp
