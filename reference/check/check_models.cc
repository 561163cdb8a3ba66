// Checks of whole models: what the heads of a tiny model of each family say, and a loss of it, differentiated
// by every parameter. What no difference quotient can see (is it the right model?) is what the golden cases
// are for.
#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "reference/check/check_families.h"
#include "reference/check/check_suite.h"
#include "reference/mixture.h"
#include "reference/model.h"
#include "reference/objectives/objectives.h"
#include "reference/ops/ops.h"

namespace streambp::STREAMBP_REFERENCE {
namespace {

bool is_norm(const std::string& name) {
  return name.ends_with("norm.weight") || name.ends_with("norm_1.weight") || name.ends_with("norm_2.weight");
}

/// Every linear layer, the embedding and experts all together have an adapter, of ranks 1 to 3 and different
/// scales; rows of embedding and head are trained apart; there is a value head in addition to the LM head.
ModelConfig adapted(ModelConfig config) {
  int count = 0;
  const auto adapt = [&](const std::string& module) {
    config.adapters[module] = {1 + count % 3, 0.4 + 0.3 * (count % 4)};
    ++count;
  };
  for (const auto& [name, shape] : parameter_shapes(config)) {
    const std::string suffix = ".weight";
    const bool is_linear =
        name.find("proj") != std::string::npos || name.find("input_gate") != std::string::npos;
    const bool is_adapter = name.find("_adapter_list.") != std::string::npos;  // one of the model's own
    if (!is_linear || is_adapter || !name.ends_with(suffix) || is_norm(name)) continue;
    adapt(name.substr(0, name.size() - suffix.size()));
  }
  for (int layer = 0; layer < config.num_hidden_layers; ++layer) {
    if (!config.is_sparse(layer) || config.hidden_act == Activation::kRelu2) continue;
    const MixtureSettings& mixture = config.mixture;
    const std::string experts = layer_prefix(layer) +
                                (mixture.added_to_mlp    ? ""
                                 : mixture.granite_names ? "block_sparse_moe."
                                                         : config.modules.mlp + ".") +
                                "experts.";
    adapt(experts + "gate_up_proj");
    adapt(experts + "down_proj");
  }
  adapt("lm_head");
  config.adapters.at("lm_head").has_bias = true;
  adapt("model.embed_tokens");
  config.adapters.at("model.embed_tokens").scale =
      0.2;  // more makes the first norms too steep for differences
  config.trained_rows["model.embed_tokens"] = {4, config.vocab_size - 1, 0};
  if (!config.tie_word_embeddings) config.trained_rows["lm_head"] = {5, 1};
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
TokenObjective everything(Index tokens, int vocab_size, double beta, std::uint64_t seed) {
  TokenObjective asked;
  asked.temperature = 1.3;
  asked.entropies = true;
  asked.mean_log_probabilities = true;
  asked.values = true;
  asked.teacher = Teacher{on_tape(random_matrix(tokens, vocab_size, seed)), 0.8, beta};
  return asked;
}

/// The smallest lead of a choice of experts over all tokens and sparse layers.
double smallest_lead(const ModelConfig& config, const DoubleWeights& weights) {
  Tape tape;
  Parameters parameters;
  for (const auto& [name, weight] : weights) parameters.emplace(name, tape.leaf(on_tape(weight)));
  const std::vector<Sequence> batch = tiny_batch();
  double smallest = std::numeric_limits<double>::infinity();
  for (const Sequence& sequence : batch) {
    const HiddenStates hidden =
        hidden_states(config, parameters, sequence.tokens, sequence.positions, batch_length(batch));
    std::size_t sparse = 0;
    for (int layer = 0; layer < config.num_hidden_layers; ++layer) {
      if (!config.is_sparse(layer)) continue;
      if (config.is_hashed(layer)) {
        ++sparse;
        continue;
      }
      const Matrix& scores = hidden.router_probabilities[sparse++].value();
      DoubleMatrix p(scores.rows(), scores.cols());
      std::transform(scores.data(), scores.data() + scores.size(), p.data(),
                     [](const Scalar& entry) { return static_cast<double>(real_part(entry)); });
      const DoubleMatrix correction =
          config.mixture.corrected
              ? weights.at(layer_prefix(layer) + config.modules.mlp + "." + config.mixture.correction)
              : DoubleMatrix();
      for (Index t = 0; t < p.rows(); ++t) {
        smallest = std::min(smallest, lead_of_choice(config.mixture, p.row(t), correction));
      }
    }
  }
  return smallest;
}

/// Random weights, from the first seed from `seed` on with which no choice of an expert is a close one: where
/// the choice changes the model jumps, and no difference quotient is a gradient.
DoubleWeights settled_weights(const ModelConfig& config, std::uint64_t seed) {
  DoubleWeights weights = random_weights(config, seed);
  while (!(smallest_lead(config, weights) > 0.03)) weights = random_weights(config, ++seed);
  return weights;
}

/// f of a model as a function of every parameter that is not held constant.
Case case_of_parameters(const std::string& name, const ModelConfig& config, std::uint64_t seed,
                        std::size_t max_entries, bool move_together,
                        const std::function<Var(Tape&, const Parameters&)>& f) {
  std::vector<std::string> names;
  std::vector<DoubleMatrix> inputs;
  DoubleWeights constants;
  for (const auto& [parameter, weight] : settled_weights(config, seed)) {
    if (is_constant(parameter)) {
      constants[parameter] = weight;
      continue;
    }
    names.push_back(parameter);
    inputs.push_back(weight);
  }
  CheckOptions options;
  options.seed = seed;
  options.limit =
      1e-12;  // there are more roundings than in one operation: 2e-14 to 6e-14, as the seed has it
  options.max_entries = max_entries;
  options.move_together = move_together;
  options.length_scales.assign(inputs.size(), 0.2);
  const Function of_inputs = [names, constants, f](Tape& tape, const std::vector<Var>& x) {
    Parameters parameters;
    for (std::size_t i = 0; i < x.size(); ++i) parameters.emplace(names[i], x[i]);
    for (const auto& [parameter, weight] : constants)
      parameters.emplace(parameter, tape.leaf(on_tape(weight)));
    return f(tape, parameters);
  };
  return {name, of_inputs, inputs, options};
}

}  // namespace

DoubleWeights random_weights(const ModelConfig& config, std::uint64_t seed) {
  DoubleWeights weights;
  for (const auto& [name, shape] : parameter_shapes(config)) {
    // What norms, routers and layers multiply by is around 1; entries of the embedding are large enough to be
    // normed without sharp bends; a linear layer keeps the size of what goes through it.
    const bool is_factor = is_norm(name) || name.ends_with("scale") || is_constant(name);
    const double one = config.norm_adds_one && !name.ends_with("linear_attn.norm.weight") ? 0.0 : 1.0;
    const bool is_embedding = name == "model.embed_tokens.weight";
    const double size = is_factor      ? 0.5
                        : is_embedding ? 1.5
                                       : 1.7 / std::sqrt(static_cast<double>(shape.second));
    const double middle = is_factor ? one : 0.0;
    weights[name] = random_matrix(shape.first, shape.second, ++seed, middle - size, middle + size);
    if (!name.ends_with(".tid2eid")) continue;
    for (Index token = 0; token < shape.first; ++token) {  // neighbours, so that a token's are different
      for (Index slot = 0; slot < shape.second; ++slot)
        weights[name](token, slot) = static_cast<double>((3 * token + slot) % config.mixture.num_experts);
    }
  }
  return weights;
}

void list_models(std::uint64_t seed, std::size_t entries, const Visit& visit) {
  const std::size_t half = entries / 2, third = entries / 3;
  // Each parameter is moved by itself for the log-probabilities, of which the others are functions.
  const auto check = [&](const std::string& name, const ModelConfig& config, std::size_t max_entries,
                         bool move_together, const std::function<Var(Tape&, const Parameters&)>& f) {
    visit(case_of_parameters(name, config, seed += 1000, max_entries, move_together, f));
  };
  double beta = 0.0;
  for (const auto& [family, plain] : tiny_families()) {
    const ModelConfig& config = plain;  // a binding cannot be captured
    check("log-probabilities of a tiny " + family, config, entries, false,
          [&](Tape& tape, const Parameters& parameters) {
            return token_values(tape, config, parameters, tiny_batch(), {}).log_probabilities;
          });
    check("SFT loss of a tiny " + family, config, half, true, [&](Tape& tape, const Parameters& parameters) {
      const TokenObjective objective = sft(7.0, 0.0);
      return total_loss(tape, objective, token_values(tape, config, parameters, tiny_batch(), objective));
    });

    const ModelConfig full = adapted(plain);
    const TokenObjective asked = everything(10, full.vocab_size, beta, seed);
    check("all that the heads of a tiny " + family + " with adapters say", full, third, true,
          [&](Tape& tape, const Parameters& parameters) {
            const TokenValues heads = token_values(tape, full, parameters, tiny_valued_batch(), asked);
            return concat_rows({heads.log_probabilities, heads.entropies, heads.mean_log_probabilities,
                                heads.divergences, heads.values});
          });
    beta = beta == 1.0 ? 0.0 : beta + 0.5;  // each divergence in its turn
  }
  ModelConfig critic = tiny_model();
  critic.has_lm_head = false;
  critic.has_value_head = true;
  check("values of a tiny critic", critic, entries, false, [&](Tape& tape, const Parameters& parameters) {
    TokenObjective asked;
    asked.log_probabilities = false;
    asked.values = true;
    return token_values(tape, critic, parameters, tiny_valued_batch(), asked).values;
  });
}

}  // namespace streambp::STREAMBP_REFERENCE
