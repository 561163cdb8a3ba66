// How parameter_shapes.cc collects what a decoder's parameters are, module by module.
#pragma once

#include <fmt/format.h>
#include <functional>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "streambp/model/config/config.h"
#include "streambp/model/config/family.h"

namespace streambp {

// Appends the parameters of one model, part by part.
class ShapeList {
 public:
  explicit ShapeList(const Config& config) : config_(config) {}

  void matrix(const std::string& name, int64_t out, int64_t in, ParameterRole role) {
    shapes_.push_back({name + ".weight", {out, in}, role, of_expert_});
  }

  void linear(const std::string& name, int64_t out, int64_t in, bool bias = false) {
    matrix(name, out, in, ParameterRole::kWeight);
    if (bias) shapes_.push_back({name + ".bias", {out}, ParameterRole::kBias, of_expert_});
  }

  // Of a norm that a layer need not have: `module` is empty then.
  void norm_of_layer(const std::string& at, const std::string& module) {
    if (!module.empty()) norm(at + module, config_.hidden_size);
  }

  void norm(const std::string& name, int64_t size) {
    shapes_.push_back({name + ".weight", {size}, ParameterRole::kNorm});
  }

  void per_head(const std::string& name, int64_t heads) {
    shapes_.push_back({name, {heads}, ParameterRole::kPerHead});
  }

  // `at` is the name of the layer and a dot in what follows.
  void delta_rule(const std::string& at) {
    const DeltaRuleSettings& rule = config_.delta_rule;
    const int64_t hidden = config_.hidden_size;
    const std::string in = at + modules_of(config_).recurrence + ".";
    if (rule.convolution_alone) {
      shapes_.push_back(
          {in + "conv.weight", {rule.channels(), 1, rule.conv_kernel}, ParameterRole::kConvolution});
      if (rule.conv_bias) shapes_.push_back({in + "conv.bias", {rule.channels()}, ParameterRole::kBias});
      linear(in + "in_proj", 3 * hidden, hidden, rule.in_bias);
      return linear(in + "out_proj", hidden, hidden, rule.out_bias);
    }
    if (rule.channel_gates) return channel_rule(in);
    per_head(in + "dt_bias", rule.value_heads);
    per_head(in + "A_log", rule.value_heads);
    if (rule.state_space) per_head(in + "D", rule.value_heads);
    shapes_.push_back(
        {in + "conv1d.weight", {rule.channels(), 1, rule.conv_kernel}, ParameterRole::kConvolution});
    if (rule.conv_bias) shapes_.push_back({in + "conv1d.bias", {rule.channels()}, ParameterRole::kBias});
    if (rule.state_space) {
      linear(in + "in_proj", rule.values() + rule.channels() + rule.value_heads, hidden, rule.in_bias);
    } else if (rule.fused_projections) {
      linear(in + "in_proj_qkvz", rule.channels() + rule.values(), hidden);
      linear(in + "in_proj_ba", 2 * rule.value_heads, hidden);
    } else {
      linear(in + "in_proj_qkv", rule.channels(), hidden);
      linear(in + "in_proj_z", rule.values(), hidden);
      linear(in + "in_proj_b", rule.value_heads, hidden);
      linear(in + "in_proj_a", rule.value_heads, hidden);
    }
    if (rule.norms_gated) norm(in + "norm", rule.state_space ? rule.values() : rule.value_head_dim);
    linear(in + "out_proj", hidden, rule.values(), rule.out_bias);
  }

  // Kimi Linear's and GLM-5.3's.
  void channel_rule(const std::string& in) {
    const DeltaRuleSettings& rule = config_.delta_rule;
    const int64_t hidden = config_.hidden_size, keys = rule.keys(), values = rule.values();
    const std::string gate = in + "forget_gate.";
    const std::vector<int64_t> rates =
        rule.rates_in_row ? std::vector{rule.value_heads} : std::vector<int64_t>{1, 1, rule.value_heads, 1};
    shapes_.push_back({gate + "A_log", rates, ParameterRole::kPerHead});
    per_head(gate + "dt_bias", keys);
    const auto convolution = [&](const char* name, int64_t channels) {
      shapes_.push_back({in + name, {channels, 1, rule.conv_kernel}, ParameterRole::kConvolution});
    };
    linear(in + "q_proj", keys, hidden);
    linear(in + "k_proj", keys, hidden);
    linear(in + "v_proj", values, hidden);
    convolution("q_conv1d.weight", keys);
    convolution("k_conv1d.weight", keys);
    convolution("v_conv1d.weight", values);
    linear(gate + "f_a_proj", rule.key_head_dim, hidden);
    linear(gate + "f_b_proj", keys, rule.key_head_dim);
    linear(in + "b_proj", rule.value_heads, hidden);
    linear(in + "g_a_proj", rule.value_head_dim, hidden);
    linear(in + "g_b_proj", values, rule.value_head_dim);
    norm(in + "o_norm", rule.value_head_dim);
    linear(in + "o_proj", hidden, values);
  }

  // Zamba 2's layer around its state space: the map of what the block gives and, in the lowest of the layers
  // that run it, the block.
  void shared_block(const std::string& at, int64_t layer);

  void attention(const std::string& at, int64_t layer) {
    const int64_t hidden = config_.hidden_size, head_dim = config_.head_dim_of(layer);
    const int64_t queries = config_.query_width(layer);
    const int64_t keys = config_.key_value_heads_of(layer) * head_dim;
    const bool own_keys = !config_.shares_keys_values(layer);
    const std::string in = at + modules_of(config_).attention + ".";
    if (config_.fused_projections) {
      linear(in + "qkv_proj", queries + 2 * keys, hidden, config_.qkv_bias);
    } else {
      linear(in + "q_proj", config_.attention_output_gate ? 2 * queries : queries, hidden, config_.qkv_bias);
      if (own_keys) linear(in + "k_proj", keys, hidden, config_.qkv_bias);
      if (own_keys && !config_.keys_are_values(layer)) linear(in + "v_proj", keys, hidden, config_.qkv_bias);
    }
    if (config_.gates_heads) linear(in + "g_proj", config_.query_heads_of(layer), hidden);
    if (config_.output_gate_map) linear(in + "gate_proj", queries, hidden);
    const bool full_width = config_.qk_norm_full_width;
    const auto [of_queries, of_keys] = qk_norm_names(config_);
    const auto norm_of = [&](const char* name, int64_t width) {
      std::vector<int64_t> shape{full_width ? width : head_dim};
      if (config_.qk_norm_by_head) shape = {width / head_dim, head_dim};
      shapes_.push_back({in + name + ".weight", std::move(shape), ParameterRole::kNorm});
    };
    if (config_.qk_norm) norm_of(of_queries, queries);
    if (config_.qk_norm && own_keys) norm_of(of_keys, keys);
    linear(in + modules_of(config_).out, hidden, queries, config_.o_bias);
    if (config_.attention_sinks)
      shapes_.push_back({in + "sinks", {config_.num_attention_heads}, ParameterRole::kPerHead});
    if (config_.picks_key_blocks() && config_.has_indexer(layer)) key_block_indexer(in + "indexer.");
    if (config_.indexer.of_means && config_.has_indexer(layer)) indexer_of_means(in + "indexer.");
  }

  void indexer(const std::string& in);
  // MiniMax M3's.
  void key_block_indexer(const std::string& in);
  // Qwen4-Exp's, and what its streams are read and added to by; `gives`: whether anything is.
  void indexer_of_means(const std::string& in);
  void low_rank_streams(const std::string& in, bool gives);
  void ngrams(const std::string& in, int64_t layer);

  void latent_attention(const std::string& at, int64_t layer);

  // Of a compressor, or an indexer's with rows of `size` entries.
  void compressor(const std::string& in, int64_t layer, int64_t size, ParameterRole map, ParameterRole norm);

  void compressed_attention(const std::string& at, int64_t layer);

  // The gates of as many weights for each stream as `scales` has numbers, and with `mixes` the matrix that
  // mixes them; `prefix` before the names.
  void stream_gates(const std::string& at, int64_t scales, const char* prefix = "", bool mixes = false) {
    const int64_t streams = config_.hyper.streams, rows = (scales + (mixes ? streams : 0)) * streams;
    const auto add = [&](const char* name, std::vector<int64_t> shape) {
      shapes_.push_back({at + prefix + name, std::move(shape), ParameterRole::kHyper});
    };
    add("fn", {rows, config_.residual_width()});
    add("base", {rows});
    add("scale", {scales + (mixes ? 1 : 0)});
  }

  // Those by which Muse Spark's halves are added to the stream.
  void residual_gates(const std::string& at) {
    for (const char* name : {"post_attention_residual_gate.gate", "post_feedforward_residual_gate.gate"})
      shapes_.push_back({at + name, {config_.hidden_size}, ParameterRole::kHyper});
  }

  // Experts have no biases, and may read and give another number of entries.
  void dense_mlp(const std::string& at, int64_t width) {
    const int64_t hidden = of_expert_ ? config_.expert_size() : config_.hidden_size;
    const bool bias = config_.mlp_bias && !of_expert_;
    if (config_.fused_projections || config_.fused_gate_up) {
      linear(at + modules_of(config_).gate_up, 2 * width, hidden, bias);
    } else {
      if (config_.has_gate()) linear(at + modules_of(config_).gate, width, hidden, bias);
      linear(at + modules_of(config_).up, width, hidden, bias);
    }
    linear(at + modules_of(config_).down, hidden, width, bias);
  }

  // GPT-OSS's: two tensors and their biases for all experts, [in, out] each.
  void interleaved_mixture(const std::string& at) {
    const int64_t experts = config_.mixture.num_experts, width = config_.mixture.moe_intermediate_size;
    const auto add = [&](const std::string& part, int64_t in, int64_t out) {
      const std::string name = at + "mlp.experts." + part;
      shapes_.push_back({name, {experts, in, out}, ParameterRole::kExperts, /*of_expert=*/true});
      shapes_.push_back({name + "_bias", {experts, out}, ParameterRole::kBias, /*of_expert=*/true});
    };
    linear(at + "mlp.router", experts, config_.hidden_size, /*bias=*/true);
    add("gate_up_proj", config_.hidden_size, 2 * width);
    add("down_proj", width, config_.hidden_size);
  }

  // Gemma 4's, next to the MLP: norms, router and two tensors for all experts, [out, in] each.
  void mixture_next_to_mlp(const std::string& at) {
    const int64_t experts = config_.mixture.num_experts, width = config_.mixture.moe_intermediate_size;
    const int64_t hidden = config_.hidden_size;
    for (const char* name :
         {"post_feedforward_layernorm_1", "post_feedforward_layernorm_2", "pre_feedforward_layernorm_2"})
      norm(at + name, hidden);
    shapes_.push_back({at + "router.scale", {hidden}, ParameterRole::kNorm});
    shapes_.push_back({at + "router.per_expert_scale", {experts}, ParameterRole::kNorm});
    linear(at + "router.proj", experts, hidden);
    const auto add = [&](const char* part, int64_t out, int64_t in) {
      shapes_.push_back(
          {at + "experts." + part, {experts, out, in}, ParameterRole::kExperts, /*of_expert=*/true});
    };
    add("gate_up_proj", 2 * width, hidden);
    add("down_proj", hidden, width);
  }

  // Gemma 4's second embedding and what makes each layer's share of it.
  void per_layer_inputs() {
    const int64_t width = config_.num_hidden_layers * config_.gemma4.hidden_size_per_layer_input;
    matrix("model.embed_tokens_per_layer", config_.gemma4.vocab_size_per_layer_input, width,
           ParameterRole::kTable);
    linear("model.per_layer_model_projection", width, config_.hidden_size);
    norm("model.per_layer_projection_norm", config_.gemma4.hidden_size_per_layer_input);
  }

  void per_layer_maps(const std::string& at) {
    const int64_t size = config_.gemma4.hidden_size_per_layer_input;
    linear(at + "per_layer_input_gate", size, config_.hidden_size);
    linear(at + "per_layer_projection", config_.hidden_size, size);
    norm(at + "post_per_layer_input_norm", config_.hidden_size);
  }

  void layer_scalar(const std::string& at) {
    shapes_.push_back({at + "layer_scalar", {1}, ParameterRole::kScalar});
  }

  // Granite's: two tensors for all experts, [out, in] each, and the layer's shared MLP.
  void granite_mixture(const std::string& at) {
    const int64_t experts = config_.mixture.num_experts, width = config_.mixture.moe_intermediate_size;
    const int64_t hidden = config_.hidden_size;
    const std::string in = at + "block_sparse_moe.";
    linear(in + "router.layer", experts, hidden);
    const auto add = [&](const char* part, int64_t out, int64_t inner) {
      shapes_.push_back({in + part, {experts, out, inner}, ParameterRole::kExperts, /*of_expert=*/true});
    };
    add("input_linear.weight", 2 * width, hidden);
    add("output_linear.weight", hidden, width);
    const int64_t shared = config_.mixture.shared_expert_intermediate_size;
    if (shared > 0) dense_mlp(at + modules_of(config_).mlp + ".", shared);
  }

  void mixture(const std::string& at, int64_t layer) {
    const MixtureSettings& mixture = config_.mixture;
    if (mixture.biased_interleaved) return interleaved_mixture(at);
    if (mixture.granite_names) return granite_mixture(at);
    const std::string in = at + modules_of(config_).mlp + ".";
    linear(in + "gate", mixture.num_experts, config_.hidden_size);
    if (mixture.is_hashed(layer)) {
      shapes_.push_back(
          {in + "gate.tid2eid", {config_.vocab_size, mixture.num_experts_per_tok}, ParameterRole::kHash});
    } else if (mixture.corrected) {
      const FamilyExperts& of_family = family_of(config_).experts;
      std::vector<int64_t> shape{mixture.num_experts};
      if (of_family.correction_is_row) shape.insert(shape.begin(), 1);
      shapes_.push_back({in + of_family.correction, shape, ParameterRole::kCorrection});
    }
    of_expert_ = true;
    if (mixture.stacked) {
      const auto add = [&](const char* part, int64_t out, int64_t inner) {
        shapes_.push_back({in + "experts." + part,
                           {mixture.num_experts, out, inner},
                           ParameterRole::kExperts,
                           /*of_expert=*/true});
      };
      add("gate_up_proj", 2 * mixture.moe_intermediate_size, config_.expert_size());
      add("down_proj", config_.expert_size(), mixture.moe_intermediate_size);
    }
    for (int64_t expert = 0; !mixture.stacked && expert < mixture.num_experts; ++expert) {
      dense_mlp(fmt::format("{}{}.{}.", at, experts_module(config_), expert), mixture.moe_intermediate_size);
    }
    of_expert_ = false;
    if (mixture.plain_latents) {
      linear(in + "fc1_latent_proj", mixture.moe_hidden_size, config_.hidden_size, config_.mlp_bias);
      linear(in + "fc2_latent_proj", config_.hidden_size, mixture.moe_hidden_size, config_.mlp_bias);
    } else if (mixture.moe_hidden_size > 0) {
      norm(in + "experts.post_expert_norm", mixture.moe_hidden_size);
      linear(in + "pre_expert_proj", mixture.moe_hidden_size, config_.hidden_size);
      norm(in + "pre_expert_norm", mixture.moe_hidden_size);
      linear(in + "post_expert_proj", config_.hidden_size, mixture.moe_hidden_size);
    }
    if (mixture.shared_expert_intermediate_size == 0) return;
    if (mixture.shared_expert_ungated)
      return dense_mlp(in + "shared_experts.", mixture.shared_expert_intermediate_size);
    dense_mlp(in + "shared_expert.", mixture.shared_expert_intermediate_size);
    linear(in + "shared_expert_gate", 1, config_.hidden_size);
  }

  std::vector<ParameterShape> take() { return std::move(shapes_); }

 private:
  const Config& config_;
  std::vector<ParameterShape> shapes_;
  bool of_expert_ = false;  // what is appended
};

}  // namespace streambp
