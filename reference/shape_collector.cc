// Modules of attention that not every family has.
#include "reference/shape_collector.h"

#include "reference/ngram_table.h"

namespace streambp::STREAMBP_REFERENCE {

void Collector::shared_block(int layer) {
  const std::string prefix = layer_prefix(layer);
  const Index hidden = config_.hidden_size, width = config_.intermediate_size;
  linear(prefix + "linear", hidden, hidden);
  // Adapters are each layer's own.
  const int owner = config_.block_owner(layer);
  const auto map = [&](const std::string& module, Index out, Index in, bool has_bias = false) {
    if (owner == layer) return linear(module, out, in, has_bias);
    adapter(module, out, in);
  };
  const std::string block = prefix + "shared_transformer.", attention = block + "self_attn.",
                    mlp = block + "feed_forward.";
  const Index queries = Index{config_.num_attention_heads} * config_.head_dim;
  const Index keys = Index{config_.num_key_value_heads} * config_.head_dim;
  const auto adapters = [&](const std::string& list, Index out, Index in) {
    for (int user = owner; user < config_.num_hidden_layers; ++user) {
      if (!config_.runs_block(user) || config_.block_owner(user) != owner) continue;
      const std::string pair = list + "." + std::to_string(config_.block_use(user)) + ".";
      map(pair + "0", config_.shared_blocks.adapter_rank, in);
      map(pair + "1", out, config_.shared_blocks.adapter_rank);
    }
  };
  map(attention + "q_proj", queries, 2 * hidden);
  map(attention + "k_proj", keys, 2 * hidden);
  map(attention + "v_proj", keys, 2 * hidden);
  map(attention + "o_proj", hidden, queries);
  if (config_.shared_blocks.attention_adapters) {
    adapters(attention + "linear_q_adapter_list", queries, 2 * hidden);
    adapters(attention + "linear_k_adapter_list", keys, 2 * hidden);
    adapters(attention + "linear_v_adapter_list", keys, 2 * hidden);
  }
  map(mlp + "gate_up_proj", 2 * width, hidden, config_.mlp_bias);
  map(mlp + "down_proj", hidden, width, config_.mlp_bias);
  adapters(mlp + "gate_up_proj_adapter_list", 2 * width, hidden);
  if (owner != layer) return;
  row(block + "input_layernorm", 2 * hidden);
  row(block + "pre_ff_layernorm", hidden);
}

void Collector::indexer(const std::string& module) {
  const IndexerSettings& indexer = config_.indexer;
  linear(module + "wq_b", Index{indexer.heads} * indexer.head_dim,
         indexer.reads_hidden ? config_.hidden_size : config_.latent.q_lora_rank);
  linear(module + "wk", indexer.head_dim, config_.hidden_size);
  row(module + "k_norm", indexer.head_dim);
  shapes_[module + "k_norm.bias"] = {1, indexer.head_dim};
  linear(module + "weights_proj", indexer.heads, config_.hidden_size);
  if (indexer.group > 0) {
    shapes_[module + "index_kpool_compress_ape"] = {indexer.group, indexer.head_dim};
    shapes_[module + "index_kpool_compress_gate"] = {indexer.head_dim, config_.hidden_size};
  }
  if (!indexer.reads_hidden) return;
  row(module + "q_input_norm", config_.hidden_size);
  numbers(module + "q_input_norm.bias", config_.hidden_size);
  numbers(module + "softmax_scaling.scale", indexer.heads);
  numbers(module + "softmax_scaling.bias", indexer.heads);
}

void Collector::key_block_indexer(const std::string& module) {
  const IndexerSettings& indexer = config_.indexer;
  linear(module + "q_proj", Index{indexer.heads} * indexer.head_dim, config_.hidden_size);
  linear(module + "k_proj", indexer.head_dim, config_.hidden_size);
  row(module + "q_norm", indexer.head_dim);
  row(module + "k_norm", indexer.head_dim);
}

void Collector::indexer_of_means(const std::string& module) {
  const IndexerSettings& indexer = config_.indexer;
  linear(module + "index_qk_proj", Index{indexer.heads + 1} * indexer.head_dim, config_.hidden_size);
  row(module + "q_layernorm", indexer.head_dim);
  row(module + "k_layernorm", indexer.head_dim);
}

void Collector::low_rank_streams(const std::string& names, bool gives) {
  const Index width = Index{config_.hyper.streams} * config_.hidden_size;
  row(names + "hc_norm", width);
  linear(names + "input_mix_weight_down", config_.hyper.lowrank, width);
  linear(names + "input_mix_weight_up", width, config_.hyper.lowrank);
  if (gives) linear(names + "block_inject_weight", config_.hyper.streams, width);
}

void Collector::ngrams(const std::string& names, int layer) {
  const NgramSettings& settings = config_.ngrams;
  const Index width = Index{config_.hyper.streams} * config_.hidden_size;
  const NgramTable table =
      ngram_table(settings, settings.modules[static_cast<std::size_t>(layer)], config_.vocab_size);
  shapes_[names + "ple_embedding.ngram_embedding.weight"] = {
      table.rows, settings.embed_dim / static_cast<Index>(table.heads.size())};
  linear(names + "key_proj", width, settings.embed_dim);
  linear(names + "value_proj", config_.hidden_size, settings.embed_dim);
  for (const char* norm : {"norm_key", "norm_query", "norm_conv"}) row(names + norm, width);
  shapes_[names + "conv1d.weight"] = {width, settings.conv_kernel};
}

void Collector::latent_attention(const std::string& module, int layer) {
  const Index hidden = config_.hidden_size, heads = config_.num_attention_heads;
  const LatentAttentionSettings& latent = config_.latent;
  const Index queries = heads * (latent.qk_nope_head_dim + latent.qk_rope_head_dim);
  if (latent.q_lora_rank > 0) {
    linear(module + "q_a_proj", latent.q_lora_rank, hidden, config_.qkv_bias);
    row(module + "q_a_layernorm", latent.q_lora_rank);
    linear(module + "q_b_proj", queries, latent.q_lora_rank);
  } else {
    linear(module + "q_proj", queries, hidden);
  }
  const Index rank = latent.kv_lora_rank;
  if (config_.latent_source(layer) == layer) {
    linear(module + "kv_a_proj_with_mqa", rank + config_.latent_rope(layer), hidden, config_.qkv_bias);
    row(module + "kv_a_layernorm", rank);
  }
  linear(module + "kv_b_proj", heads * (config_.latent_nope(layer) + latent.v_head_dim), rank);
  if (latent.trained_positions) {
    numbers(module + "softmax_scaling.scale", heads);
    numbers(module + "softmax_scaling.bias", heads);
  }
  linear(module + "o_proj", hidden, heads * latent.v_head_dim, config_.o_bias);
  if (config_.output_gate_map) linear(module + "gate_proj", heads * latent.v_head_dim, hidden);
  if (config_.attention_sinks) shapes_[module + "sinks"] = {1, heads};
}

void Collector::compressor(const std::string& module, int layer, Index size) {
  const CompressedSettings& settings = config_.compressed;
  const Index width = settings.overlaps[static_cast<std::size_t>(layer)] ? 2 * size : size;
  linear(module + "kv_proj", width, config_.hidden_size);
  linear(module + "gate_proj", width, config_.hidden_size);
  shapes_[module + "position_bias"] = {settings.rates[static_cast<std::size_t>(layer)], width};
  row(module + "kv_norm", static_cast<int>(size));
}

void Collector::compressed_attention(const std::string& module, int layer) {
  const CompressedSettings& settings = config_.compressed;
  const Index hidden = config_.hidden_size, heads = config_.num_attention_heads, size = config_.head_dim;
  linear(module + "q_a_proj", settings.q_lora_rank, hidden);
  row(module + "q_a_norm", settings.q_lora_rank);
  linear(module + "q_b_proj", heads * size, settings.q_lora_rank);
  linear(module + "kv_proj", size, hidden);
  row(module + "kv_norm", config_.head_dim);
  linear(module + "o_a_proj", Index{settings.o_groups} * settings.o_lora_rank,
         heads * size / settings.o_groups);
  linear(module + "o_b_proj", hidden, Index{settings.o_groups} * settings.o_lora_rank);
  shapes_[module + "sinks"] = {1, heads};
  if (settings.rates[static_cast<std::size_t>(layer)] == 0) return;
  compressor(module + "compressor.", layer, size);
  if (!settings.overlaps[static_cast<std::size_t>(layer)]) return;
  const std::string indexer = module + "compressor.indexer.";
  compressor(indexer, layer, config_.indexer.head_dim);
  linear(indexer + "q_b_proj", Index{config_.indexer.heads} * config_.indexer.head_dim, settings.q_lora_rank);
  linear(indexer + "scorer.weights_proj", config_.indexer.heads, hidden);
}

}  // namespace streambp::STREAMBP_REFERENCE
