// The parts of model_layers.cc of attention, of each kind.
#include <tuple>

#include "streambp/model/config/family.h"
#include "streambp/model/model.h"

namespace streambp {

void Model::make_attention(const std::string& name, int64_t index, DecoderLayer::Weights& weights) {
  const bool own_keys = !config_.shares_keys_values(index);
  if (config_.fused_projections) {
    const int64_t keys = config_.num_key_value_heads * config_.head_dim;
    const auto qkv =
        add_fused_maps(name + ".qkv_proj", {config_.num_attention_heads * config_.head_dim, keys, keys});
    std::tie(weights.q_proj, weights.k_proj, weights.v_proj) = std::tie(qkv[0], qkv[1], qkv[2]);
  } else {
    const auto add = [&](const char* part, double scale) {
      Linear* const map = add_map(name + part, config_.qkv_bias);
      map->output_scale = scale;
      return map;
    };
    weights.q_proj = add(".q_proj", config_.query_multiplier);
    if (own_keys) weights.k_proj = add(".k_proj", config_.key_multiplier);
    if (own_keys && !config_.keys_are_values(index))
      weights.v_proj = add(".v_proj", config_.query_multiplier);
  }
  Linear* const out = add_residual_map(name + "." + modules_of(config_).out, config_.o_bias);
  out->output_scale *= config_.attention_multiplier;
  weights.o_proj = out;
  if (config_.qk_norm) {
    const auto [of_queries, of_keys] = qk_norm_names(config_);
    weights.q_norm = norm_of(name + "." + of_queries);
    if (own_keys) weights.k_norm = norm_of(name + "." + of_keys);
  }
  if (config_.plain_norms) weights.q_norm = weights.k_norm = plain_norm(config_.head_dim_of(index));
  if (config_.has_residual_gates()) weights.attended_norm = plain_norm(config_.head_dim_of(index));
  if (config_.output_gate_map) weights.output_gate = add_map(name + ".gate_proj", /*bias=*/false);
  if (config_.gates_heads) weights.output_gate = add_map(name + ".g_proj", /*bias=*/false);
  if (config_.norms_values && own_keys) weights.v_norm = plain_norm(config_.head_dim_of(index));
  if (config_.attention_sinks) weights.sinks = &parameter(name + ".sinks");
  if (!config_.has_indexer(index)) return;
  const std::string in = name + ".indexer.";
  if (config_.indexer.of_means) {
    const int64_t size = config_.indexer.head_dim;
    const auto maps = add_fused_maps(in + "index_qk_proj", {config_.indexer.heads * size, size});
    weights.indexer = {maps[0], maps[1], norm_of(in + "q_layernorm"), norm_of(in + "k_layernorm"),
                       config_.indexer};
    return;
  }
  weights.indexer = {add_map(in + "q_proj", /*bias=*/false), add_map(in + "k_proj", /*bias=*/false),
                     norm_of(in + "q_norm"), norm_of(in + "k_norm"), config_.indexer};
}

void Model::make_latent(const std::string& name, int64_t index, DecoderLayer::Weights& weights) {
  const LatentAttentionSettings& settings = config_.latent;
  LatentAttention& latent = weights.latent;
  const auto norm = [&](const char* part) {
    return RmsNorm{&parameter(name + part), settings.norm_eps, false};
  };
  if (settings.q_lora_rank > 0) {
    latent.q_a_proj = add_map(name + ".q_a_proj", config_.qkv_bias);
    latent.q_a_norm = norm(".q_a_layernorm.weight");
    latent.q_proj = add_map(name + ".q_b_proj", /*bias=*/false);
  } else {
    latent.q_proj = add_map(name + ".q_proj", /*bias=*/false);
  }
  if (!config_.shares_keys_values(index)) {
    latent.kv_a_proj = add_map(name + ".kv_a_proj_with_mqa", config_.qkv_bias);
    latent.kv_a_norm = norm(".kv_a_layernorm.weight");
  }
  latent.kv_b_proj = add_map(name + ".kv_b_proj", /*bias=*/false);
  latent.interleaved = config_.rope_interleaved;
  latent.rotates = config_.rotates(index);
  latent.heads = {latent.kv_b_proj, config_.num_attention_heads, config_.latent_nope(index),
                  config_.latent_rope(index), settings.v_head_dim};
  const auto scales_of = [&](const std::string& module) {
    return QueryScales{&parameter(module + ".softmax_scaling.scale"),
                       &parameter(module + ".softmax_scaling.bias")};
  };
  if (settings.trained_positions) {
    latent.scales = scales_of(name);
    latent.alpha = alpha_;
  }
  weights.o_proj = add_residual_map(name + ".o_proj", config_.o_bias);
  if (config_.output_gate_map) latent.gate_proj = add_map(name + ".gate_proj", /*bias=*/false);
  if (config_.attention_sinks) weights.sinks = &parameter(name + ".sinks");
  latent.indexing = config_.indexer;
  if (!config_.has_indexer(index)) return;
  const std::string in = name + ".indexer.";
  latent.indexer = {.wq_b = add_map(in + "wq_b", /*bias=*/false),
                    .wk = add_map(in + "wk", /*bias=*/false),
                    .weights_proj = add_map(in + "weights_proj", /*bias=*/false),
                    .norm_weight = &parameter(in + "k_norm.weight"),
                    .norm_bias = &parameter(in + "k_norm.bias"),
                    .query_norm_weight = nullptr,
                    .query_norm_bias = nullptr,
                    .scales = {},
                    .group_gate = nullptr,
                    .pooling = {}};
  if (config_.indexer.group > 0) {
    latent.indexer.group_gate = &parameter(in + "index_kpool_compress_gate");
    latent.indexer.pooling = {&parameter(in + "index_kpool_compress_ape"), config_.indexer.group};
  }
  if (!config_.indexer.reads_hidden) return;
  latent.indexer.query_norm_weight = &parameter(in + "q_input_norm.weight");
  latent.indexer.query_norm_bias = &parameter(in + "q_input_norm.bias");
  latent.indexer.scales = scales_of(name + ".indexer");
}

Compressor Model::make_compressor(const std::string& name, int64_t index) {
  Compressor compressor;
  compressor.kv_proj = add_map(name + ".kv_proj", /*bias=*/false);
  compressor.gate_proj = add_map(name + ".gate_proj", /*bias=*/false);
  compressor.pooling = {&parameter(name + ".position_bias"), config_.compressed.rate_of(index),
                        config_.compressed.overlaps_in(index)};
  compressor.norm = norm_of(name + ".kv_norm");
  return compressor;
}

void Model::make_compressed(const std::string& name, int64_t index, DecoderLayer::Weights& weights) {
  const CompressedSettings& settings = config_.compressed;
  CompressedAttention& layer = weights.compressed;
  layer.q_a_proj = add_map(name + ".q_a_proj", /*bias=*/false);
  layer.q_a_norm = norm_of(name + ".q_a_norm");
  layer.q_b_proj = add_map(name + ".q_b_proj", /*bias=*/false);
  layer.q_b_norm = plain_norm(config_.head_dim);
  layer.kv_proj = add_map(name + ".kv_proj", /*bias=*/false);
  layer.kv_norm = norm_of(name + ".kv_norm");
  layer.o_a_proj = add_fused_maps(
      name + ".o_a_proj", std::vector<int64_t>(static_cast<size_t>(settings.o_groups), settings.o_lora_rank));
  layer.heads = config_.num_attention_heads;
  layer.head_dim = config_.head_dim;
  layer.window = settings.window;
  layer.indexing = config_.indexer;
  weights.o_proj = add_residual_map(name + ".o_b_proj", /*bias=*/false);
  weights.sinks = &parameter(name + ".sinks");
  if (settings.rate_of(index) == 0) return;
  const std::string compressor = name + ".compressor", indexer = compressor + ".indexer";
  layer.compressor = make_compressor(compressor, index);
  if (!settings.overlaps_in(index)) return;
  layer.indexer = {make_compressor(indexer, index), add_map(indexer + ".q_b_proj", /*bias=*/false),
                   add_map(indexer + ".scorer.weights_proj", /*bias=*/false)};
}

}  // namespace streambp
