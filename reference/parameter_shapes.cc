#include <string>

#include "reference/shape_collector.h"

namespace streambp::STREAMBP_REFERENCE {
Shapes parameter_shapes(const ModelConfig& config) {
  require_valid(config);
  Collector collect(config);
  collect.embedding("model.embed_tokens", config.vocab_size, config.hidden_size);
  collect.per_layer_inputs();
  for (int layer = 0; layer < config.num_hidden_layers; ++layer) {
    const std::string prefix = layer_prefix(layer);
    const LayerNorms norms = layer_norms(config, layer);
    for (const std::string& name :
         {norms.before_attention, norms.after_attention, norms.before_mlp, norms.after_mlp}) {
      collect.norm(prefix, name);
    }
    const bool mixes = config.has_mixer(layer);
    if (config.runs_block(layer)) {
      collect.shared_block(layer);
      collect.delta_rule(prefix + "mamba_decoder.mamba.");
    } else if (mixes && config.is_linear(layer)) {
      collect.delta_rule(prefix + config.modules.recurrence + ".");
      if (config.delta_rule.beside_attention)
        collect.attention(prefix + config.modules.attention + ".", layer);
    } else if (mixes && config.is_latent()) {
      collect.latent_attention(prefix + "self_attn.", layer);
      if (config.indexer.topk > 0 && config.picker_of(layer) == layer)
        collect.indexer(prefix + "self_attn.indexer.");
    } else if (mixes && config.is_compressed()) {
      collect.compressed_attention(prefix + "self_attn.", layer);
    } else if (mixes) {
      collect.attention(prefix + config.modules.attention + ".", layer);
    }
    const bool is_sparse = config.is_sparse(layer), is_added = config.mixture.added_to_mlp;
    if (config.has_mlp(layer) && (!is_sparse || is_added))
      collect.mlp(prefix + config.modules.mlp + ".", layer);
    const bool is_granite = config.mixture.granite_names;
    if (is_sparse && is_granite) collect.granite_experts(prefix, layer);
    if (is_sparse && !is_added && !is_granite) collect.experts(prefix + config.modules.mlp + ".", layer);
    if (is_sparse && is_added) collect.experts_added_to_mlp(prefix);
    if (config.hyper.lowrank > 0) {
      collect.low_rank_streams(prefix + "attn_hyper_connection.", true);
      collect.low_rank_streams(prefix + "mlp_hyper_connection.", true);
      if (config.has_ngrams(layer)) collect.ngrams(prefix + "ple.", layer);
    } else if (config.hyper.streams > 0) {
      collect.stream_weights(prefix + "attn_hc.", 2);
      collect.stream_weights(prefix + "ffn_hc.", 2);
    }
    if (config.residual_temperature > 0.0) {
      collect.numbers(prefix + "post_attention_residual_gate.gate", config.hidden_size);
      collect.numbers(prefix + "post_feedforward_residual_gate.gate", config.hidden_size);
    }
    if (config.gemma4.layer_scalar) collect.scalar(prefix + "layer_scalar");
  }
  if (config.hyper.lowrank > 0) {
    collect.low_rank_streams("model.hyper_connection_mixer.", false);
  } else {
    collect.row("model.norm", config.hidden_size);
  }
  if (config.latent.trained_positions)
    collect.numbers("model.rotary_emb.alpha", config.latent.qk_rope_head_dim / 2);
  if (config.hyper.streams > 0 && config.hyper.lowrank == 0 && !config.hyper.head_reads_mean)
    collect.stream_weights("model.hc_head.hc_", 1);
  if (config.has_lm_head && config.tie_word_embeddings) {
    collect.adapter("lm_head", config.vocab_size, config.hidden_size);
  } else if (config.has_lm_head) {
    collect.linear("lm_head", config.vocab_size, config.hidden_size);
    collect.trained_rows("lm_head", config.vocab_size, config.hidden_size);
  }
  if (config.has_value_head) collect.row("value_head", config.hidden_size);
  require(collect.adapters() == config.adapters.size(), "model",
          "expected adapters of linear layers and embeddings only, " +
              std::to_string(config.adapters.size() - collect.adapters()) + " belong to other modules");
  require(collect.trained() == config.trained_rows.size(), "model",
          "expected trained rows of embeddings, and of a head of its own");
  return std::move(collect).shapes();
}

}  // namespace streambp::STREAMBP_REFERENCE
