// Checks of whole models: what the heads of a tiny model of each family say, and a loss of it, differentiated
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

/// Every linear layer has an adapter, of ranks 1 to 3 and different scales; a value head is there beside the
/// LM head.
ModelConfig adapted(ModelConfig config) {
  int count = 0;
  const auto adapt = [&](const std::string& module) {
    config.adapters[module] = {1 + count % 3, 0.4 + 0.3 * (count % 4)};
    ++count;
  };
  for (const std::string layer : {"model.layers.0.", "model.layers.1."}) {
    for (const char* module : {"q_proj", "k_proj", "v_proj", "o_proj"}) adapt(layer + "self_attn." + module);
    for (const char* module : {"gate_proj", "up_proj", "down_proj"}) adapt(layer + "mlp." + module);
  }
  if (!config.tie_word_embeddings) adapt("lm_head");
  config.has_value_head = true;
  return config;
}

/// Several sequences: one with gaps in its positions and tokens without a target, one of a single token, one
/// that counts for nothing.
std::vector<Sequence> tiny_batch() {
  return {{{3, 1, 4, 1, 5, 9}, {0, 1, 2, 7, 8, 30}, {1, 4, kNoTarget, 5, 9, 2}},
          {{6}, {3}, {5}},
          {{2, 7}, {0, 1}, {kNoTarget, kNoTarget}},
          {{10, 0, 8}, {0, 1, 2}, {kNoTarget, 8, 10}}};
}

/// The same, with values asked of tokens with and without a target.
std::vector<Sequence> tiny_valued_batch() {
  std::vector<Sequence> batch = tiny_batch();
  batch[0].valued = {true, false, true, false, false, true};
  batch[2].valued = {false, true};
  return batch;
}

/// Asks the heads for everything they can say of `tokens` scored tokens.
TokenObjective everything(Index tokens, int vocab_size, bool reverse, std::uint64_t seed) {
  TokenObjective asked;
  asked.temperature = 1.3;
  asked.entropies = true;
  asked.mean_log_probabilities = true;
  asked.values = true;
  asked.teacher = Teacher{random_matrix(tokens, vocab_size, seed), 0.8, reverse};
  return asked;
}

/// Checks f of a model by every parameter.
CheckResult check_by_parameters(const std::string& name, const ModelConfig& config, std::uint64_t seed,
                                std::size_t max_entries,
                                const std::function<Var(Tape&, const Parameters&)>& f) {
  std::vector<std::string> names;
  std::vector<Matrix> inputs;
  for (const auto& [parameter, weight] : random_weights(config, seed)) {
    names.push_back(parameter);
    inputs.push_back(weight);
  }
  CheckOptions options;
  options.seed = seed;
  options.max_entries = max_entries;
  options.length_scales.assign(inputs.size(), 0.2);
  const Function of_inputs = [&](Tape& tape, const std::vector<Var>& x) {
    Parameters parameters;
    for (std::size_t i = 0; i < x.size(); ++i) parameters.emplace(names[i], x[i]);
    return f(tape, parameters);
  };
  return check_gradient(name, of_inputs, inputs, options);
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
  const auto check = [&](const std::string& name, const ModelConfig& config, std::size_t max_entries,
                         const std::function<Var(Tape&, const Parameters&)>& f) {
    results.push_back(check_by_parameters(name, config, seed += 1000, max_entries, f));
  };
  bool reverse = false;
  for (const auto& [family, plain] : families()) {
    const ModelConfig& config = plain;
    const auto scores = [&config](Tape& tape, const Parameters& parameters) {
      return token_values(tape, config, parameters, tiny_batch(), {}).log_probabilities;
    };
    check("log-probabilities of a tiny " + family, config, 12, scores);
    check("SFT loss of a tiny " + family, config, 12,
          [&](Tape& tape, const Parameters& parameters) { return sft(7.0)(tape, scores(tape, parameters)); });

    const ModelConfig full = adapted(plain);
    const TokenObjective asked = everything(10, full.vocab_size, reverse, seed);
    check("all that the heads of a tiny " + family + " with adapters say", full, 3,
          [&](Tape& tape, const Parameters& parameters) {
            const TokenValues heads = token_values(tape, full, parameters, tiny_valued_batch(), asked);
            return concat_rows({heads.log_probabilities, heads.entropies, heads.mean_log_probabilities,
                                heads.divergences, heads.values});
          });
    reverse = !reverse;
  }
  ModelConfig critic = families().back().second;
  critic.has_lm_head = false;
  critic.has_value_head = true;
  check("values of a tiny critic", critic, 5, [&](Tape& tape, const Parameters& parameters) {
    TokenObjective asked;
    asked.log_probabilities = false;
    asked.values = true;
    return token_values(tape, critic, parameters, tiny_valued_batch(), asked).values;
  });
  return results;
}

}  // namespace streambp::reference
