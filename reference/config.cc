#include "reference/config.h"

#include <algorithm>
#include <cstddef>

#include "reference/require.h"

namespace streambp::STREAMBP_REFERENCE {
namespace {

/// What some families multiply and divide by, and settings that go together.
void require_consistent(const ModelConfig& config) {
  require(config.residual_multiplier > 0.0 && config.logits_scaling > 0.0, "model",
          "expected a positive residual_multiplier and logits_scaling, got " +
              std::to_string(config.residual_multiplier) + " and " + std::to_string(config.logits_scaling));
  require(config.query_scale_beta == 0.0 || config.query_scale_original > 0.0, "model",
          "expected a positive query_scale_original, got " + std::to_string(config.query_scale_original));
  require(config.swiglu_alpha >= 0.0 && (config.swiglu_alpha == 0.0 || config.swiglu_limit > 0.0), "model",
          "expected a swiglu_alpha of at least 0 and with it a positive swiglu_limit, got " +
              std::to_string(config.swiglu_alpha) + " and " + std::to_string(config.swiglu_limit));
  require(!config.norm_after || !config.sandwich_norms, "model",
          "expected either norm_after or sandwich_norms, not both");
  require(!config.glm_norm_names || config.sandwich_norms, "model",
          "expected sandwich_norms where they have GLM's names");
  require(!config.qk_norm_full_width || config.qk_norm, "model",
          "expected qk_norm where it is of the full width");
  require(!config.attention_output_gate || !config.fused_projections, "model",
          "expected no fused projections of attention whose output has a gate");
}

void require_valid(const DeltaRuleSettings& rule) {
  if (rule.convolution_alone)
    return require(rule.conv_kernel > 0, "model", "expected a convolution of a token or more");
  require(rule.key_heads > 0 && rule.value_heads > 0 && rule.key_head_dim > 0 && rule.value_head_dim > 0 &&
              rule.conv_kernel > 0,
          "model", "expected positive sizes of the delta rule");
  require(!rule.channel_gates || (rule.value_heads == rule.key_heads && !rule.state_space), "model",
          "expected as many value heads as key heads, and no state space, where channels have gates");
  require(rule.value_heads % rule.key_heads == 0, "model",
          "expected a number of value heads of the delta rule that is a multiple of its key heads, got " +
              std::to_string(rule.value_heads) + " and " + std::to_string(rule.key_heads));
  require(rule.time_step_low <= rule.time_step_high, "model", "expected steps of time between two limits");
}

void require_valid(const ModelConfig& config, const LatentAttentionSettings& latent) {
  require(latent.q_lora_rank >= 0 && latent.qk_nope_head_dim > 0 && latent.v_head_dim > 0, "model",
          "expected positive sizes of latent attention");
  require(latent.qk_rope_head_dim >= 0 && latent.qk_rope_head_dim % 2 == 0, "model",
          "expected an even qk_rope_head_dim, got " + std::to_string(latent.qk_rope_head_dim));
  for (int layer = 0; latent.qk_rope_head_dim == 0 && layer < config.num_hidden_layers; ++layer)
    require(!config.rotates(layer), "model", "expected a qk_rope_head_dim where layers rotate");
  require(
      !config.qk_norm && !config.fused_projections && !config.attention_output_gate && config.rotary_dim == 0,
      "model",
      "expected latent attention without qk_norm, fused projections, a gate in its queries and rotary_dim");
  for (int layer = 0; !latent.sources.empty() && layer < config.num_hidden_layers; ++layer) {
    const int source = config.latent_source(layer);
    require(source >= 0 && source <= layer && config.latent_source(source) == source &&
                config.rotates(source) == config.rotates(layer),
            "model", "expected latents of a layer of its own below layer " + std::to_string(layer));
  }
  const IndexerSettings& indexer = config.indexer;
  const bool has_input = latent.q_lora_rank > 0 || indexer.reads_hidden;
  require(indexer.topk >= 0 && (indexer.topk == 0 || (indexer.heads > 0 && has_input &&
                                                      indexer.head_dim >= latent.qk_rope_head_dim)),
          "model", "expected an indexer of positive sizes, with a q_lora_rank");
  require(indexer.shared.empty() || !indexer.shared.front(), "model",
          "expected an indexer of the first layer's own");
  const Gemma4Settings& gemma4 = config.gemma4;
  require(gemma4.global_head_dim == 0 && gemma4.num_global_key_value_heads == 0 && !gemma4.attention_k_eq_v &&
              !gemma4.value_norm && gemma4.num_kv_shared_layers == 0,
          "model", "expected latent attention without Gemma 4's keys and values");
}

void require_valid(const ModelConfig& config, const CompressedSettings& compressed) {
  const auto layers = static_cast<std::size_t>(config.num_hidden_layers);
  require(compressed.window > 0 && compressed.o_groups > 0 && compressed.o_lora_rank > 0 &&
              config.num_attention_heads % compressed.o_groups == 0,
          "model", "expected a window, and groups of as many heads each, in compressed attention");
  require(compressed.rates.size() == layers && compressed.overlaps.size() == layers, "model",
          "expected to know the blocks of each of " + std::to_string(layers) + " layers");
  for (std::size_t layer = 0; layer < layers; ++layer) {
    const bool is_picked = compressed.rates[layer] > 0 && compressed.overlaps[layer];
    require(compressed.rates[layer] >= 0 && (!is_picked || config.indexer.topk > 0), "model",
            "expected blocks of at least 0 tokens, and an indexer of those that overlap");
  }
}

void require_key_blocks(const ModelConfig& config) {
  const IndexerSettings& indexer = config.indexer;
  require(indexer.topk > 0 && indexer.heads > 0 && config.num_attention_heads % indexer.heads == 0 &&
              indexer.head_dim >= config.rotary_dim && indexer.local_blocks >= 0 &&
              indexer.local_blocks <= indexer.topk && !indexer.layers.empty(),
          "model", "expected indexers of positive sizes, whose heads each stand for as many query heads");
}

void require_means(const ModelConfig& config) {
  const IndexerSettings& indexer = config.indexer;
  require(indexer.topk > 0 && indexer.heads > 0 && indexer.group > 0 &&
              indexer.head_dim >= config.rotary_dim && !config.is_latent(),
          "model", "expected indexers of means of positive sizes, beside ordinary attention");
}

void require_valid(const ModelConfig& config, const NgramSettings& ngrams) {
  const int heads = (ngrams.size - 1) * ngrams.heads_per_ngram;
  require(ngrams.size > 1 && heads > 0 && ngrams.embed_dim > 0 && ngrams.embed_dim % heads == 0 &&
              ngrams.conv_kernel > 0 && ngrams.vocab_base > 0 && ngrams.divisor > 0,
          "model", "expected n-grams of positive sizes, of whose entries each head has as many");
  require(ngrams.boundary >= 0 && ngrams.boundary < config.vocab_size && config.hyper.lowrank > 0, "model",
          "expected a token that n-grams end with, and several streams that they are added to");
}

void require_valid(const ModelConfig& config, const Gemma4Settings& gemma4) {
  const auto layers = std::to_string(config.num_hidden_layers);
  require(gemma4.global_head_dim >= 0 && gemma4.global_head_dim % 2 == 0, "model",
          "expected an even global_head_dim, got " + std::to_string(gemma4.global_head_dim));
  require(gemma4.global_head_dim == 0 || config.rotary_dim == 0, "model",
          "expected no rotary_dim with a global_head_dim");
  const int global = gemma4.num_global_key_value_heads;
  require(global >= 0 && (global == 0 || config.num_attention_heads % global == 0), "model",
          "expected a number of query heads that is a multiple of num_global_key_value_heads, got " +
              std::to_string(config.num_attention_heads) + " and " + std::to_string(global));
  require(gemma4.hidden_size_per_layer_input >= 0 &&
              (gemma4.hidden_size_per_layer_input > 0) == (gemma4.vocab_size_per_layer_input > 0),
          "model",
          "expected positive sizes of per-layer inputs or none, got hidden_size_per_layer_input " +
              std::to_string(gemma4.hidden_size_per_layer_input) + " and vocab_size_per_layer_input " +
              std::to_string(gemma4.vocab_size_per_layer_input));
  const int shared = gemma4.num_kv_shared_layers;
  require(shared == 0 || (shared > 0 && shared < config.num_hidden_layers), "model",
          "expected num_kv_shared_layers below the " + layers + " layers, got " + std::to_string(shared));
  for (int layer = 0; layer < config.num_hidden_layers; ++layer) {
    require(config.key_value_layer(layer) >= 0, "model",
            "expected another layer with the keys of layer " + std::to_string(layer));
  }
  require(shared == 0 || config.linear_attention.empty(), "model",
          "expected no num_kv_shared_layers with linear attention");
  const bool has_parts = shared > 0 || gemma4.attention_k_eq_v;
  require(!has_parts || !config.fused_projections, "model",
          "expected no fused projections where keys are shared or are values");
  require(!gemma4.use_double_wide_mlp || !config.fused_gate_up, "model",
          "expected no fused gate_up_proj where some MLPs are wider");
}

/// A mixture added to the MLP is Gemma 4's in everything.
void require_added_to_mlp(const ModelConfig& config) {
  const MixtureSettings& mixture = config.mixture;
  require(config.sandwich_norms && mixture.norm_topk_prob, "model",
          "expected sandwich_norms and norm_topk_prob where experts are added to the MLP");
  require(!mixture.sigmoid_scores && !mixture.biased_interleaved && config.swiglu_alpha == 0.0 &&
              mixture.shared_expert_intermediate_size == 0,
          "model",
          "expected neither sigmoid scores, biases, clamped gates nor shared experts where experts are "
          "added to the MLP");
}

void require_valid(const MixtureSettings& mixture) {
  require(mixture.num_experts_per_tok > 0 && mixture.num_experts_per_tok <= mixture.num_experts, "model",
          "expected from 1 to " + std::to_string(mixture.num_experts) + " experts for a token, got " +
              std::to_string(mixture.num_experts_per_tok));
  require(mixture.moe_intermediate_size > 0, "model", "expected a positive size of the experts");
  require(mixture.shared_expert_intermediate_size >= 0, "model",
          "expected a size of the shared expert of at least 0, got " +
              std::to_string(mixture.shared_expert_intermediate_size));
  const int groups = mixture.n_group;
  require((!mixture.sigmoid_scores && !mixture.corrected) || !mixture.biased_interleaved, "model",
          "expected an uncorrected softmax of the router that has a bias");
  require(
      groups > 0 && mixture.num_experts % groups == 0 && (groups == 1 || mixture.num_experts / groups > 1),
      "model",
      "expected n_group to divide " + std::to_string(mixture.num_experts) +
          " experts into groups of at least 2, got " + std::to_string(groups));
  require(mixture.topk_group > 0 && mixture.topk_group <= groups &&
              mixture.num_experts_per_tok <= mixture.num_experts / groups * mixture.topk_group,
          "model",
          "expected a topk_group of groups with at least " + std::to_string(mixture.num_experts_per_tok) +
              " experts, got " + std::to_string(mixture.topk_group));
  require(mixture.routed_scaling_factor > 0.0, "model",
          "expected a positive routed_scaling_factor, got " + std::to_string(mixture.routed_scaling_factor));
}

bool any(const std::vector<bool>& layers) {
  return std::find(layers.begin(), layers.end(), true) != layers.end();
}

/// That settings of each layer are there for each layer.
void require_of_layers(const ModelConfig& config) {
  const auto layers = static_cast<std::size_t>(config.num_hidden_layers);
  const auto require_size = [layers](std::size_t size, const std::string& what) {
    require(size == 0 || size == layers, "model",
            "expected to know of none or each of " + std::to_string(layers) + " layers " + what);
  };
  require_size(config.windows.size(), "its window");
  for (int window : config.windows) {
    require(window >= 0, "model", "expected windows of at least 0, got " + std::to_string(window));
  }
  require_size(config.no_rope.size(), "whether it rotates");
  require_size(config.linear_attention.size(), "whether it is linear");
  require_size(config.no_mixer.size(), "whether it has no mixer");
  require_size(config.no_mlp.size(), "whether it has no MLP");
  require_size(config.shared_blocks.layers.size(), "whether it runs a shared block");
  require_size(config.expert_limits.size(), "the limit of its experts");
  require_size(config.mlp_limits.size(), "the limit of its MLPs");
  require_size(config.indexer.shared.size(), "whether it shares what another has picked");
  require_size(config.indexer.layers.size(), "whether it has an indexer");
  require_size(config.mixture.hashed.size(), "whether its experts are those of a table");
  require_size(config.ngrams.modules.size(), "whether it has embeddings of n-grams");
  if (any(config.linear_attention)) require_valid(config.delta_rule);
}

}  // namespace

void require_valid(const ModelConfig& config) {
  require(config.vocab_size > 0 && config.hidden_size > 0 && config.intermediate_size >= 0 &&
              config.num_hidden_layers >= 0 && config.num_attention_heads > 0 &&
              config.num_key_value_heads > 0,
          "model", "expected positive sizes");
  require(config.num_attention_heads % config.num_key_value_heads == 0, "model",
          "expected a number of query heads that is a multiple of the key/value heads");
  require(
      config.window_attention_heads >= 0 && config.window_attention_heads % config.num_key_value_heads == 0,
      "model", "expected window_attention_heads that are a multiple of the key/value heads");
  require(config.window_rotary_dim >= 0 && config.window_rotary_dim % 2 == 0 &&
              config.window_rotary_dim <= config.head_dim,
          "model", "expected an even window_rotary_dim up to " + std::to_string(config.head_dim));
  require(config.is_latent() || (config.head_dim > 0 && config.head_dim % 2 == 0), "model",
          "expected an even head_dim, got " + std::to_string(config.head_dim));
  require(config.rotary_dim >= 0 && config.rotary_dim % 2 == 0 && config.rotary_dim <= config.head_dim,
          "model",
          "expected an even rotary_dim up to " + std::to_string(config.head_dim) + ", got " +
              std::to_string(config.rotary_dim));
  const auto layers = static_cast<std::size_t>(config.num_hidden_layers);
  require_of_layers(config);
  require_consistent(config);
  if (config.is_latent()) require_valid(config, config.latent);
  if (config.is_compressed()) require_valid(config, config.compressed);
  if (config.indexer.block > 0) require_key_blocks(config);
  if (config.indexer.of_means) require_means(config);
  if (!config.ngrams.modules.empty()) require_valid(config, config.ngrams);
  require_valid(config, config.gemma4);
  const MixtureSettings& mixture = config.mixture;
  require(mixture.num_experts >= 0, "model", "expected at least no experts");
  if (mixture.num_experts == 0) return;
  require(mixture.sparse.size() == layers, "model",
          "expected to know of each of " + std::to_string(layers) + " layers whether it is sparse");
  require_valid(mixture);
  if (mixture.added_to_mlp) require_added_to_mlp(config);
}

int ModelConfig::key_value_layer(int layer) const {
  if (!shares_keys(layer)) return layer;
  int source = num_hidden_layers - gemma4.num_kv_shared_layers - 1;
  while (source >= 0 && is_full(source) != is_full(layer)) --source;
  return source;
}

bool is_constant(const std::string& name) {
  return name.ends_with(".layer_scalar") || name.ends_with(".tid2eid");
}

int ModelConfig::block_use(int layer) const {
  int use = 0;
  for (int below = 0; below < layer; ++below) use += runs_block(below) ? 1 : 0;
  return use;
}

int ModelConfig::block_owner(int layer) const {
  const int block = block_use(layer) % shared_blocks.count;
  for (int owner = 0; owner < layer; ++owner) {
    if (runs_block(owner) && block_use(owner) == block) return owner;
  }
  return layer;
}

std::string layer_prefix(int layer) {
  return "model.layers." + std::to_string(layer) + ".";
}

LayerNorms layer_norms(const ModelConfig& config, int layer) {
  if (config.runs_block(layer)) return {"mamba_decoder.input_layernorm", "", "", ""};
  if (!config.shared_blocks.layers.empty()) return {"input_layernorm", "", "", ""};
  if (!config.has_mlp(layer)) return {"norm", "", "", ""};
  if (!config.has_mixer(layer)) return {"", "", "norm", ""};
  if (config.hyper.lowrank > 0) return {};
  if (config.parallel) return {"input_layernorm", "", "", ""};
  if (config.glm_norm_names) {
    return {"input_layernorm", "post_self_attn_layernorm", "post_attention_layernorm", "post_mlp_layernorm"};
  }
  const ModuleNames& modules = config.modules;
  if (config.sandwich_norms && !modules.after_mlp.empty())
    return {modules.before_attention, modules.after_attention, modules.before_mlp, modules.after_mlp};
  if (config.sandwich_norms) {
    return {"input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm",
            "post_feedforward_layernorm"};
  }
  if (config.norm_after) return {"", "post_attention_layernorm", "", "post_feedforward_layernorm"};
  return {modules.before_attention, "", modules.before_mlp, ""};
}

}  // namespace streambp::STREAMBP_REFERENCE
