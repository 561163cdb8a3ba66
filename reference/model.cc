#include "reference/model.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <string>

#include "reference/mixture.h"
#include "reference/ops/ops.h"
#include "reference/require.h"

namespace streambp::STREAMBP_REFERENCE {
namespace {

void require_valid(const ModelConfig& config, const Sequence& sequence) {
  const std::size_t length = sequence.tokens.size();
  require(sequence.positions.size() == length && sequence.targets.size() == length, "sequence",
          "expected one position and one target for each of " + std::to_string(length) + " tokens, got " +
              std::to_string(sequence.positions.size()) + " and " + std::to_string(sequence.targets.size()));
  require(sequence.valued.empty() || sequence.valued.size() == length, "sequence",
          "expected to know of none or each of " + std::to_string(length) +
              " tokens whether it is valued, got " + std::to_string(sequence.valued.size()));
  const auto in_vocabulary = [&config](int token) { return token >= 0 && token < config.vocab_size; };
  const std::string range = "from 0 to " + std::to_string(config.vocab_size - 1);
  for (int token : sequence.tokens) {
    require(in_vocabulary(token), "sequence", "expected tokens " + range + ", got " + std::to_string(token));
  }
  for (int target : sequence.targets) {
    require(
        target == kNoTarget || in_vocabulary(target), "sequence",
        "expected targets " + range + " or " + std::to_string(kNoTarget) + ", got " + std::to_string(target));
  }
}

void require_valid(const ModelConfig& config, const Weights& weights) {
  const auto shapes = parameter_shapes(config);
  for (const auto& [name, shape] : shapes) {
    const auto found = weights.find(name);
    require(found != weights.end(), "weights", "expected a parameter " + name);
    require_shape("weights", name, found->second, shape.first, shape.second);
  }
  for (const auto& [name, weight] : weights) {
    require(shapes.contains(name), "weights", "expected only parameters of the model, got " + name);
  }
}

bool is_scored(const Sequence& sequence, std::size_t t) {
  return sequence.targets[t] != kNoTarget || (!sequence.valued.empty() && sequence.valued[t]);
}

/// The hidden states of the scored tokens below one another, and where among them those with a target are;
/// and what the routers make of all tokens.
struct Scored {
  Var hidden;
  std::vector<Var> router_probabilities;  // that the routers' loss is of
  std::vector<int> with_target;
  std::vector<int> targets;
};

Scored scored_tokens(Tape& tape, const ModelConfig& config, const Parameters& parameters,
                     const std::vector<Sequence>& sequences, const RouterTerm& router) {
  Scored scored;
  int count = 0;
  const bool asks_routers = router.of(config.mixture) != 0.0;
  const bool apart = config.mixture.balanced_by_softmax;
  require(!asks_routers || apart || !config.mixture.sigmoid_scores, "model",
          "expected no load-balancing loss of routers whose scores are no probabilities");
  require(router.left_out.empty() || router.left_out.size() == sequences.size(), "sequences",
          "expected to know of none or each of " + std::to_string(sequences.size()) +
              " whether the routers' loss leaves it out, got " + std::to_string(router.left_out.size()));
  const double length = batch_length(sequences);
  std::vector<Var> parts = {tape.leaf(Matrix(0, config.hidden_size))};
  for (std::size_t i = 0; i < sequences.size(); ++i) {
    const Sequence& sequence = sequences[i];
    require_valid(config, sequence);
    std::vector<int> rows;
    for (std::size_t t = 0; t < sequence.tokens.size(); ++t) {
      if (!is_scored(sequence, t)) continue;
      rows.push_back(static_cast<int>(t));
      if (sequence.targets[t] != kNoTarget) {
        scored.with_target.push_back(count);
        scored.targets.push_back(sequence.targets[t]);
      }
      ++count;
    }
    if (sequence.tokens.empty() || (rows.empty() && !asks_routers)) continue;
    const HiddenStates hidden = hidden_states(config, parameters, sequence.tokens, sequence.positions, length,
                                              sequence.experts, sequence.picks);
    parts.push_back(gather_rows(hidden.states, rows));
    if (!asks_routers || (!router.left_out.empty() && router.left_out[i])) continue;
    const std::vector<Var>& all = apart ? hidden.balanced_probabilities : hidden.router_probabilities;
    scored.router_probabilities.insert(scored.router_probabilities.end(), all.begin(), all.end());
  }
  scored.hidden = concat_rows(parts);
  return scored;
}

Var tempered(const Var& z, Number temperature) {
  require(temperature > 0.0 && std::isfinite(temperature), "model",
          "expected a positive temperature, got " + std::to_string(temperature));
  return log_softmax(scale(z, 1.0 / temperature));
}

Var divergences(Tape& tape, const Teacher& teacher, const Scored& scored, const Var& z) {
  const Index columns = teacher.shares_first_tokens ? std::min(teacher.logits.cols(), z.cols()) : z.cols();
  const Matrix of_teacher = teacher.shares_first_tokens ? teacher.logits.leftCols(columns) : teacher.logits;
  require_shape("teacher", "the logits", of_teacher, scored.hidden.rows(), columns);
  const Var log_q = tempered(tape.leaf(of_teacher(scored.with_target, Eigen::all)), teacher.temperature);
  const Var log_p = tempered(slice_columns(z, 0, columns), teacher.temperature);
  const Number beta = teacher.beta;
  if (beta == 0.0) return kl_divergence(log_q, log_p);
  if (beta == 1.0) return kl_divergence(log_p, log_q);
  const Var log_m = log_mixture(log_p, log_q, beta);
  return add(scale(kl_divergence(log_q, log_m), beta), scale(kl_divergence(log_p, log_m), 1.0 - beta));
}

Var embeddings(Tape& tape, const ModelConfig& config, const Parameters& parameters,
               const std::vector<Sequence>& sequences, Pooling pooling) {
  const double length = batch_length(sequences);
  std::vector<Var> parts = {tape.leaf(Matrix(0, config.hidden_size))};
  for (const Sequence& sequence : sequences) {
    if (sequence.tokens.empty()) continue;
    const Var states = hidden_states(config, parameters, sequence.tokens, sequence.positions, length,
                                     sequence.experts, sequence.picks)
                           .states;
    const auto tokens = static_cast<int>(states.rows());
    parts.push_back(pooling == Pooling::kLast
                        ? gather_rows(states, {tokens - 1})
                        : scale(scatter_rows(states, std::vector<int>(sequence.tokens.size(), 0), 1),
                                Number{1} / tokens));
  }
  return concat_rows(parts);
}

/// The sequences with the targets that `objective` scores.
std::vector<Sequence> scored_sequences(std::vector<Sequence> sequences, const TokenObjective& objective) {
  for (std::size_t i = 0; i < static_cast<std::size_t>(objective.whole_sequences); ++i) {
    for (std::size_t t = 0; t + 1 < sequences.at(i).tokens.size(); ++t)
      sequences[i].targets.at(t) = sequences[i].tokens[t + 1];
  }
  return sequences;
}

/// One entry for every token, from [m, 1] of the scored ones; empty if that was not asked for.
std::vector<Number> of_all_tokens(const std::vector<Sequence>& sequences, bool asked_for, const Var& x) {
  std::vector<Number> result;
  if (!asked_for) return result;
  Index next = 0;
  for (const Sequence& sequence : sequences) {
    for (std::size_t t = 0; t < sequence.tokens.size(); ++t) {
      result.push_back(is_scored(sequence, t) ? real_part(x.value()(next++, 0)) : 0.0);
    }
  }
  return result;
}

}  // namespace

Number RouterTerm::of(const MixtureSettings& mixture) const {
  if (mixture.num_experts == 0) return 0.0;
  if (coefficient) return *coefficient;
  return always || mixture.output_router_logits ? mixture.router_aux_loss_coef : 0.0;
}

double batch_length(const std::vector<Sequence>& sequences) {
  double length = 0.0;
  for (const Sequence& sequence : sequences) {
    for (double position : sequence.positions) length = std::max(length, position + 1.0);
    for (double position : sequence.padding) length = std::max(length, position + 1.0);
  }
  return length;
}

TokenValues token_values(Tape& tape, const ModelConfig& config, const Parameters& parameters,
                         const std::vector<Sequence>& sequences, const TokenObjective& asked) {
  const Scored scored = scored_tokens(tape, config, parameters, sequences, asked.router);
  TokenValues result;
  if (!scored.router_probabilities.empty()) {
    result.router_loss =
        scale(load_balancing_loss(tape, config.mixture, concat_rows(scored.router_probabilities)),
              asked.router.of(config.mixture));
  }
  if (asked.pooling) result.embeddings = embeddings(tape, config, parameters, sequences, *asked.pooling);
  if (asked.values) result.values = values(config, parameters, scored.hidden);
  const bool asks_for_p =
      asked.log_probabilities || asked.entropies || asked.mean_log_probabilities || asked.log_sum_squares;
  if (!asks_for_p && !asked.teacher) return result;

  const auto in_place = [&scored](const Var& x) {
    return scatter_rows(x, scored.with_target, scored.hidden.rows());
  };
  const Var z = logits(config, parameters, gather_rows(scored.hidden, scored.with_target));
  if (asked.teacher) result.divergences = in_place(divergences(tape, *asked.teacher, scored, z));
  if (!asks_for_p) return result;
  const Var log_p = tempered(z, asked.temperature);
  if (asked.log_probabilities) result.log_probabilities = in_place(pick(log_p, scored.targets));
  if (asked.entropies) result.entropies = in_place(entropy(log_p));
  if (asked.log_sum_squares) result.log_sum_squares = in_place(logsumexp(scale(log_p, 2.0)));
  if (asked.mean_log_probabilities) {
    result.mean_log_probabilities = in_place(scale(row_sum(log_p), Number{1} / config.vocab_size));
  }
  return result;
}

Var total_loss(Tape& tape, const TokenObjective& objective, const TokenValues& heads) {
  const Var loss = objective.loss(tape, heads);
  require_shape("evaluate", "the loss", loss.value(), 1, 1);
  return heads.router_loss ? add(loss, *heads.router_loss) : loss;
}

Result evaluate(const ModelConfig& config, const Weights& weights, const std::vector<Sequence>& given,
                const TokenObjective& objective) {
  require_valid(config, weights);
  const std::vector<Sequence> sequences = scored_sequences(given, objective);
  Tape tape;
  Parameters parameters;
  for (const auto& [name, weight] : weights) parameters.emplace(name, tape.leaf(weight));
  const TokenValues heads = token_values(tape, config, parameters, sequences, objective);

  Result result;
  result.log_probabilities = of_all_tokens(sequences, objective.log_probabilities, heads.log_probabilities);
  result.entropies = of_all_tokens(sequences, objective.entropies, heads.entropies);
  result.values = of_all_tokens(sequences, objective.values, heads.values);
  bool any_scored = objective.pooling.has_value();
  for (const Sequence& sequence : sequences) {
    for (std::size_t t = 0; t < sequence.tokens.size(); ++t) any_scored |= is_scored(sequence, t);
  }
  if (!any_scored && !heads.router_loss) {
    for (const auto& [name, weight] : weights)
      result.gradients[name] = Matrix::Zero(weight.rows(), weight.cols());
    return result;
  }
  const Var loss = any_scored ? total_loss(tape, objective, heads) : *heads.router_loss;
  tape.backward(loss, Matrix::Ones(1, 1));
  result.loss = real_part(loss.value()(0, 0));
  for (const auto& [name, leaf] : parameters) result.gradients[name] = leaf.gradient();
  return result;
}

Result evaluate(const ModelConfig& config, const Weights& weights, const std::vector<Sequence>& sequences,
                const Objective& objective) {
  TokenObjective same;
  same.loss = [&objective](Tape& tape, const TokenValues& heads) {
    return objective(tape, heads.log_probabilities);
  };
  return evaluate(config, weights, sequences, same);
}

}  // namespace streambp::STREAMBP_REFERENCE
