// Checks of whole models: the log-probabilities and the loss of a tiny model of each family, differentiated
// by every parameter. What no difference quotient can see (is it the right model?) is what the golden cases
// are for.
#include <cmath>
#include <utility>

#include "reference/check.h"
#include "reference/model.h"
#include "reference/objectives.h"
#include "reference/ops.h"

namespace streambp::reference {
namespace {

ModelConfig tiny_model() {
  ModelConfig config;
  config.vocab_size = 11;
  config.hidden_size = 6;
  config.intermediate_size = 7;
  config.num_hidden_layers = 2;
  config.num_attention_heads = 3;
  config.num_key_value_heads = 1;
  config.head_dim = 4;
  // Far larger than in real models, so that it is seen, and so that norms of small vectors are not too sharp
  // for differences.
  config.rms_norm_eps = 0.05;
  return config;
}

std::vector<std::pair<std::string, ModelConfig>> families() {
  ModelConfig qwen2 = tiny_model();
  qwen2.qkv_bias = true;
  qwen2.tie_word_embeddings = true;

  ModelConfig qwen3 = tiny_model();
  qwen3.qk_norm = true;
  qwen3.num_attention_heads = 4;
  qwen3.num_key_value_heads = 2;
  qwen3.rope_type = RopeType::kLinear;
  qwen3.rope_factor = 2.5;

  ModelConfig llama = tiny_model();
  llama.num_key_value_heads = 3;
  llama.qkv_bias = true;
  llama.o_bias = true;
  llama.mlp_bias = true;
  llama.rope_type = RopeType::kLlama3;
  llama.rope_factor = 8.0;
  llama.rope_original_max_position_embeddings = 12;
  return {{"qwen2", qwen2}, {"qwen3", qwen3}, {"llama", llama}};
}

/// Several sequences: one with gaps in its positions and tokens without a target, one of a single token, one
/// that counts for nothing.
std::vector<Sequence> tiny_batch() {
  return {{{3, 1, 4, 1, 5, 9}, {0, 1, 2, 7, 8, 30}, {1, 4, kNoTarget, 5, 9, 2}},
          {{6}, {3}, {5}},
          {{2, 7}, {0, 1}, {kNoTarget, kNoTarget}},
          {{10, 0, 8}, {0, 1, 2}, {kNoTarget, 8, 10}}};
}

}  // namespace

Weights random_weights(const ModelConfig& config, std::uint64_t seed) {
  Weights weights;
  for (const auto& [name, shape] : parameter_shapes(config)) {
    // Entries of a norm are around 1; those of the embedding are large enough to be normed without sharp
    // bends; a linear layer keeps the size of what goes through it.
    const bool is_norm = name.ends_with("norm.weight");
    const bool is_embedding = name == "model.embed_tokens.weight";
    const double size = is_norm        ? 0.5
                        : is_embedding ? 1.5
                                       : 1.7 / std::sqrt(static_cast<double>(shape.second));
    const double middle = is_norm ? 1.0 : 0.0;
    weights[name] = random_matrix(shape.first, shape.second, ++seed, middle - size, middle + size);
  }
  return weights;
}

std::vector<CheckResult> check_models(std::uint64_t seed) {
  std::vector<CheckResult> results;
  for (const auto& family : families()) {
    const ModelConfig& config = family.second;
    std::vector<std::string> names;
    std::vector<Matrix> inputs;
    for (const auto& [name, weight] : random_weights(config, ++seed)) {
      names.push_back(name);
      inputs.push_back(weight);
    }
    const Function scores = [&](Tape& tape, const std::vector<Var>& x) {
      Parameters parameters;
      for (std::size_t i = 0; i < x.size(); ++i) parameters.emplace(names[i], x[i]);
      return log_probabilities(tape, config, parameters, tiny_batch());
    };
    const Function loss = [&](Tape& tape, const std::vector<Var>& x) {
      return sft(7.0)(tape, scores(tape, x));
    };
    CheckOptions options;
    options.seed = ++seed;
    options.max_entries = 12;
    options.length_scales.assign(inputs.size(), 0.2);
    results.push_back(check_gradient("log-probabilities of a tiny " + family.first, scores, inputs, options));
    results.push_back(check_gradient("SFT loss of a tiny " + family.first, loss, inputs, options));
  }
  return results;
}

}  // namespace streambp::reference
