// Modules of attention that not every family has.
#include "streambp/model/config/shape_list.h"

namespace streambp {

void ShapeList::shared_block(const std::string& at, int64_t layer) {
  const int64_t hidden = config_.hidden_size, width = config_.intermediate_size;
  linear(at + "linear", hidden, hidden);
  if (config_.block_owner(layer) != layer) return;
  const SharedBlockSettings& blocks = config_.shared_blocks;
  const int64_t queries = config_.query_width(layer);
  const int64_t keys = config_.key_value_heads_of(layer) * config_.head_dim_of(layer);
  const std::string block = at + "shared_transformer.", in = block + "self_attn.",
                    mlp = block + "feed_forward.";
  const auto adapters = [&](const std::string& list, int64_t out, int64_t in_size) {
    for (int64_t user = layer; user < config_.num_hidden_layers; ++user) {
      if (!config_.runs_block(user) || config_.block_owner(user) != layer) continue;
      const std::string pair = fmt::format("{}.{}.", list, config_.block_use(user));
      linear(pair + "0", blocks.adapter_rank, in_size);
      linear(pair + "1", out, blocks.adapter_rank);
    }
  };
  linear(in + "q_proj", queries, 2 * hidden);
  linear(in + "k_proj", keys, 2 * hidden);
  linear(in + "v_proj", keys, 2 * hidden);
  linear(in + "o_proj", hidden, queries);
  if (blocks.attention_adapters) {
    for (const char part : {'q', 'k', 'v'})
      adapters(fmt::format("{}linear_{}_adapter_list", in, part), part == 'q' ? queries : keys, 2 * hidden);
  }
  const bool bias = config_.mlp_bias;
  linear(mlp + "gate_up_proj", 2 * width, hidden, bias);
  linear(mlp + "down_proj", hidden, width, bias);
  adapters(mlp + "gate_up_proj_adapter_list", 2 * width, hidden);
  norm(block + "input_layernorm", 2 * hidden);
  norm(block + "pre_ff_layernorm", hidden);
}

void ShapeList::indexer(const std::string& in) {
  const IndexerSettings& indexer = config_.indexer;
  const auto add = [&](const char* name, std::vector<int64_t> shape) {
    shapes_.push_back({in + name, std::move(shape), ParameterRole::kIndexer});
  };
  const int64_t read = indexer.reads_hidden ? config_.hidden_size : config_.latent.q_lora_rank;
  add("wq_b.weight", {indexer.heads * indexer.head_dim, read});
  add("wk.weight", {indexer.head_dim, config_.hidden_size});
  add("k_norm.weight", {indexer.head_dim});
  add("k_norm.bias", {indexer.head_dim});
  add("weights_proj.weight", {indexer.heads, config_.hidden_size});
  if (indexer.group > 0) {
    add("index_kpool_compress_ape", {indexer.group, indexer.head_dim});
    add("index_kpool_compress_gate", {indexer.head_dim, config_.hidden_size});
  }
  if (!indexer.reads_hidden) return;
  add("q_input_norm.weight", {config_.hidden_size});
  add("q_input_norm.bias", {config_.hidden_size});
  add("softmax_scaling.scale", {indexer.heads});
  add("softmax_scaling.bias", {indexer.heads});
}

void ShapeList::key_block_indexer(const std::string& in) {
  const IndexerSettings& indexer = config_.indexer;
  const auto add = [&](const char* name, std::vector<int64_t> shape) {
    shapes_.push_back({in + name, std::move(shape), ParameterRole::kIndexer});
  };
  add("q_proj.weight", {indexer.heads * indexer.head_dim, config_.hidden_size});
  add("k_proj.weight", {indexer.head_dim, config_.hidden_size});
  add("q_norm.weight", {indexer.head_dim});
  add("k_norm.weight", {indexer.head_dim});
}

void ShapeList::indexer_of_means(const std::string& in) {
  const IndexerSettings& indexer = config_.indexer;
  const auto add = [&](const char* name, std::vector<int64_t> shape) {
    shapes_.push_back({in + name, std::move(shape), ParameterRole::kIndexer});
  };
  add("index_qk_proj.weight", {(indexer.heads + 1) * indexer.head_dim, config_.hidden_size});
  add("q_layernorm.weight", {indexer.head_dim});
  add("k_layernorm.weight", {indexer.head_dim});
}

void ShapeList::low_rank_streams(const std::string& in, bool gives) {
  const int64_t width = config_.residual_width(), rank = config_.hyper.lowrank;
  norm(in + "hc_norm", width);
  linear(in + "input_mix_weight_down", rank, width);
  linear(in + "input_mix_weight_up", width, rank);
  if (gives) linear(in + "block_inject_weight", config_.hyper.streams, width);
}

void ShapeList::ngrams(const std::string& in, int64_t layer) {
  const NgramSettings& settings = config_.ngrams;
  const int64_t width = config_.residual_width(), module = settings.modules[static_cast<size_t>(layer)];
  matrix(in + "ple_embedding.ngram_embedding", ngram_table_rows(settings, module),
         settings.embed_dim / settings.heads(), ParameterRole::kTable);
  linear(in + "key_proj", width, settings.embed_dim);
  linear(in + "value_proj", config_.hidden_size, settings.embed_dim);
  for (const char* of : {"norm_key", "norm_query", "norm_conv"}) norm(in + of, width);
  shapes_.push_back({in + "conv1d.weight", {width, 1, settings.conv_kernel}, ParameterRole::kConvolution});
}

void ShapeList::latent_attention(const std::string& at, int64_t layer) {
  const LatentAttentionSettings& latent = config_.latent;
  const int64_t hidden = config_.hidden_size, heads = config_.num_attention_heads;
  const std::string in = at + "self_attn.";
  const int64_t queries = heads * (latent.qk_nope_head_dim + latent.qk_rope_head_dim);
  if (latent.q_lora_rank > 0) {
    linear(in + "q_a_proj", latent.q_lora_rank, hidden, config_.qkv_bias);
    norm(in + "q_a_layernorm", latent.q_lora_rank);
    linear(in + "q_b_proj", queries, latent.q_lora_rank);
  } else {
    linear(in + "q_proj", queries, hidden);
  }
  if (!config_.shares_keys_values(layer)) {
    linear(in + "kv_a_proj_with_mqa", latent.kv_lora_rank + config_.latent_rope(layer), hidden,
           config_.qkv_bias);
    norm(in + "kv_a_layernorm", latent.kv_lora_rank);
  }
  linear(in + "kv_b_proj", heads * (config_.latent_nope(layer) + latent.v_head_dim), latent.kv_lora_rank);
  linear(in + "o_proj", hidden, heads * latent.v_head_dim, config_.o_bias);
  if (config_.output_gate_map) linear(in + "gate_proj", heads * latent.v_head_dim, hidden);
  if (config_.attention_sinks) per_head(in + "sinks", heads);
  if (latent.trained_positions) {
    per_head(in + "softmax_scaling.scale", heads);
    per_head(in + "softmax_scaling.bias", heads);
  }
  if (config_.has_indexer(layer)) indexer(in + "indexer.");
}

void ShapeList::compressor(const std::string& in, int64_t layer, int64_t size, ParameterRole map,
                           ParameterRole norm) {
  const int64_t width = config_.compressed.overlaps_in(layer) ? 2 * size : size;
  const auto add = [&](const char* name, std::vector<int64_t> shape, ParameterRole role) {
    shapes_.push_back({in + name, std::move(shape), role});
  };
  // A row for each place in a block.
  add("position_bias", {config_.compressed.rate_of(layer), width},
      map == ParameterRole::kIndexer ? map : ParameterRole::kPerHead);
  add("kv_proj.weight", {width, config_.hidden_size}, map);
  add("gate_proj.weight", {width, config_.hidden_size}, map);
  add("kv_norm.weight", {size}, norm);
}

void ShapeList::compressed_attention(const std::string& at, int64_t layer) {
  const CompressedSettings& settings = config_.compressed;
  const int64_t hidden = config_.hidden_size, size = config_.head_dim;
  const std::string in = at + "self_attn.";
  per_head(in + "sinks", config_.num_attention_heads);
  linear(in + "q_a_proj", settings.q_lora_rank, hidden);
  norm(in + "q_a_norm", settings.q_lora_rank);
  linear(in + "q_b_proj", config_.query_width(layer), settings.q_lora_rank);
  linear(in + "kv_proj", size, hidden);
  norm(in + "kv_norm", size);
  linear(in + "o_a_proj", settings.o_groups * settings.o_lora_rank,
         config_.query_width(layer) / settings.o_groups);
  linear(in + "o_b_proj", hidden, settings.o_groups * settings.o_lora_rank);
  if (!config_.has_blocks(layer)) return;
  compressor(in + "compressor.", layer, size, ParameterRole::kWeight, ParameterRole::kNorm);
  if (!settings.overlaps_in(layer)) return;
  const IndexerSettings& picking = config_.indexer;
  const std::string picks = in + "compressor.indexer.";
  compressor(picks, layer, picking.head_dim, ParameterRole::kIndexer, ParameterRole::kIndexer);
  matrix(picks + "q_b_proj", picking.heads * picking.head_dim, settings.q_lora_rank, ParameterRole::kIndexer);
  matrix(picks + "scorer.weights_proj", picking.heads, hidden, ParameterRole::kIndexer);
}

}  // namespace streambp
