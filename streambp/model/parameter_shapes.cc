// Names, shapes and order of a decoder's parameters.
#include <fmt/format.h>
#include <functional>
#include <numeric>
#include <utility>

#include "streambp/model/config.h"

namespace streambp {
namespace {

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

  void norm(const std::string& name, int64_t size) {
    shapes_.push_back({name + ".weight", {size}, ParameterRole::kNorm});
  }

  // `at` is the name of the layer and a dot in what follows.
  void attention(const std::string& at) {
    const int64_t hidden = config_.hidden_size;
    const int64_t queries = config_.num_attention_heads * config_.head_dim;
    const int64_t keys = config_.num_key_value_heads * config_.head_dim;
    if (config_.fused_projections) {
      linear(at + "self_attn.qkv_proj", queries + 2 * keys, hidden, config_.qkv_bias);
    } else {
      linear(at + "self_attn.q_proj", queries, hidden, config_.qkv_bias);
      linear(at + "self_attn.k_proj", keys, hidden, config_.qkv_bias);
      linear(at + "self_attn.v_proj", keys, hidden, config_.qkv_bias);
    }
    if (config_.qk_norm) norm(at + "self_attn.q_norm", config_.head_dim);
    if (config_.qk_norm) norm(at + "self_attn.k_norm", config_.head_dim);
    linear(at + "self_attn.o_proj", hidden, queries, config_.o_bias);
  }

  void dense_mlp(const std::string& at, int64_t width) {
    const int64_t hidden = config_.hidden_size;
    if (config_.fused_projections) {
      linear(at + "gate_up_proj", 2 * width, hidden, config_.mlp_bias);
    } else {
      linear(at + "gate_proj", width, hidden, config_.mlp_bias);
      linear(at + "up_proj", width, hidden, config_.mlp_bias);
    }
    linear(at + "down_proj", hidden, width, config_.mlp_bias);
  }

  void mixture(const std::string& at) {
    const MixtureSettings& mixture = config_.mixture;
    linear(at + "mlp.gate", mixture.num_experts, config_.hidden_size);
    of_expert_ = true;
    for (int64_t expert = 0; expert < mixture.num_experts; ++expert) {
      dense_mlp(fmt::format("{}mlp.experts.{}.", at, expert), mixture.moe_intermediate_size);
    }
    of_expert_ = false;
  }

  std::vector<ParameterShape> take() { return std::move(shapes_); }

 private:
  const Config& config_;
  std::vector<ParameterShape> shapes_;
  bool of_expert_ = false;  // what is appended
};

}  // namespace

std::vector<ParameterShape> parameter_shapes(const Config& config) {
  const int64_t hidden = config.hidden_size;
  ShapeList list(config);
  list.matrix("model.embed_tokens", config.vocab_size, hidden, ParameterRole::kEmbedding);
  for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    const std::string at = fmt::format("model.layers.{}.", layer);
    list.norm(at + "input_layernorm", hidden);
    list.attention(at);
    list.norm(at + "post_attention_layernorm", hidden);
    if (config.sandwich_norms) list.norm(at + "pre_feedforward_layernorm", hidden);
    if (config.is_sparse(layer)) {
      list.mixture(at);
    } else {
      list.dense_mlp(at + "mlp.", config.intermediate_size);
    }
    if (config.sandwich_norms) list.norm(at + "post_feedforward_layernorm", hidden);
  }
  list.norm("model.norm", hidden);
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
