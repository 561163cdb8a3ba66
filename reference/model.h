// From tokens to a loss and its gradients: what the heads of the decoder say of every scored token, and
// `evaluate`.
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "reference/config.h"
#include "reference/decoder.h"
#include "reference/tape.h"

namespace streambp::STREAMBP_REFERENCE {

/// Marks a token whose logits have no target.
inline constexpr int kNoTarget = -100;

/// One sequence without padding, empty ones included. All have its length; `valued` may be empty, which asks
/// for nothing more.
struct Sequence {
  std::vector<int> tokens;
  std::vector<double> positions;  // for the rotation only; may have gaps
  std::vector<int> targets;       // targets[t] is what the logits at t are scored on, or kNoTarget
  std::vector<bool> valued = {};  // tokens that are scored for their value, with or without a target
  /// Positions of the padding around the sequence, which count for the length alone that some rotations
  /// depend on.
  std::vector<double> padding = {};
  GivenExperts experts = {};  // in place of those that routers would choose
  GivenPicks picks = {};      // in place of those that indexers would pick
};

/// A loss as a function of the log-probabilities [m, 1] of the m scored tokens, in order, m > 0.
/// Gives [1, 1].
using Objective = std::function<Var(Tape&, const Var& log_probabilities)>;

/// What the heads say of the m scored tokens of a batch (those with a target and those asked for a value), in
/// order: [m, 1] each. Those of the vocabulary are 0 for a token without a target. With z the logits, T the
/// temperature and p = softmax(z / T) over the V tokens of the vocabulary:
struct TokenValues {
  Var log_probabilities;       // ln p of the target
  Var entropies;               // -sum_v p_v ln p_v
  Var mean_log_probabilities;  // (1 / V) sum_v ln p_v
  Var divergences;             // from the teacher, see there
  Var log_sum_squares;         // ln sum_v p_v^2
  Var values;                  // of the value head
  Var embeddings;              // of every sequence with a token, [sequences, hidden_size], see Pooling
  /// The routers' load-balancing loss of the batch in all sparse layers times its coefficient, [1, 1], of all
  /// tokens, scored or not, of the sequences that RouterTerm does not leave out. Nothing where the loss has
  /// no such term.
  std::optional<Var> router_loss = std::nullopt;
};

/// A second model's opinion, which is held constant: with q = softmax(logits / temperature) and
/// p = softmax(z / temperature) of the model under training, a token's divergence is
/// - KL(q || p) for beta = 0, KL(p || q) for beta = 1
/// - beta KL(q || m) + (1 - beta) KL(p || m) between them, m = beta q + (1 - beta) p: the generalised
///   Jensen-Shannon divergence (Agarwal et al. 2023, https://arxiv.org/abs/2306.13649, equation 1)
struct Teacher {
  Matrix logits;  // [m, V], or log-probabilities, which differ from them by a constant per row
  Number temperature = 1.0;
  Number beta = 0.0;
  /// Whether the teacher may have more or fewer tokens than V. Both softmaxes are then over the tokens that
  /// both have, the first ones.
  bool shares_first_tokens = false;
};

/// The routers' load-balancing loss (mixture.h) in a loss.
struct RouterTerm {
  bool always = false;  // also where the model says nothing of it (MixtureSettings::output_router_logits)
  std::optional<Number> coefficient = std::nullopt;  // in place of the model's
  std::vector<bool> left_out = {};  // sequences of a forward pass without a gradient; empty: none

  /// What the loss is multiplied by; 0: there is no such term.
  Number of(const MixtureSettings& mixture) const;
};

/// How the states after the last norm of a sequence become its embedding: that of its last token, or the
/// mean.
enum class Pooling { kLast, kMean };

/// A loss as a function of everything the heads say, and what it needs of that. What is not asked for is not
/// computed: its Var is on no tape.
struct TokenObjective {
  std::function<Var(Tape&, const TokenValues&)> loss;
  Number temperature = 1.0;  // of all but the divergences
  bool log_probabilities = true;
  bool entropies = false;
  bool mean_log_probabilities = false;
  bool values = false;
  std::optional<Teacher> teacher = std::nullopt;
  bool log_sum_squares = false;
  RouterTerm router = {};
  /// The first sequences, this many, are scored on all their tokens but the first, whatever their targets.
  int whole_sequences = 0;
  std::optional<Pooling> pooling = std::nullopt;  // asks for embeddings
};

/// Per-token entries are of all tokens of all sequences, in order, and 0 where a token is not scored.
struct Result {
  Number loss = 0.0;
  std::vector<Number> log_probabilities;  // empty unless asked for, as the next two
  Weights gradients;                      // of the loss, for every parameter
  std::vector<Number> entropies;
  std::vector<Number> values;
};

/// One more than the greatest position of all tokens and of the padding around them, 0 without any: the
/// length that some rotations depend on.
double batch_length(const std::vector<Sequence>& sequences);

/// What `asked` needs. Sequences do not see one another. Throws std::invalid_argument if a sequence's vectors
/// differ in length, a token or target is not in the vocabulary, the model lacks a head that is needed, a
/// temperature is not positive, or the teacher's logits are not [m, V].
TokenValues token_values(Tape& tape, const ModelConfig& config, const Parameters& parameters,
                         const std::vector<Sequence>& sequences, const TokenObjective& asked);

/// The objective's loss, and that of the routers where the model has one, [1, 1].
Var total_loss(Tape& tape, const TokenObjective& objective, const TokenValues& heads);

/// Loss, per-token values and all gradients, adapters and value head included. Without any scored token (or
/// embedding asked for) the loss and all gradients are 0 and the objective is not called. Throws
/// std::invalid_argument as the functions above, and if a parameter is missing, unknown or of a wrong shape.
Result evaluate(const ModelConfig& config, const Weights& weights, const std::vector<Sequence>& sequences,
                const TokenObjective& objective);

/// The same for a loss of log-probabilities at temperature 1.
Result evaluate(const ModelConfig& config, const Weights& weights, const std::vector<Sequence>& sequences,
                const Objective& objective);

}  // namespace streambp::STREAMBP_REFERENCE
