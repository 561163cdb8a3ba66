// A training objective: a function of what the head computes for the scored tokens.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/ATen.h>

#include "streambp/model/batch.h"

namespace streambp {

struct MixtureSettings;

/// What the head computes for a run of scored tokens: [m] float64 each, undefined where the objective did not
/// ask for it. Where it asked for embeddings (HeadRequest::pooling) there is nothing else.
struct TokenValues {
  at::Tensor
      log_probabilities;  // log p of the target (0 for a token that has none and is here for its value alone)
  at::Tensor entropies;   // -sum_v p_v log p_v
  at::Tensor mean_log_probabilities;  // (1/V) sum_v log p_v, for label smoothing
  at::Tensor values;                  // the value head's w . h, h the hidden state after the final norm
  at::Tensor divergences;             // between the teacher's distribution and this one
  at::Tensor log_sum_squares;         // log sum_v p_v^2, without a gradient
  at::Tensor embeddings = {};         // [S, D] of all sequences
};

/// With t the teacher's distribution, p the policy's and m = beta t + (1 - beta) p.
enum class Divergence {
  kNone,
  kForward,        // KL(t || p)
  kReverse,        // KL(p || t)
  kJensenShannon,  // beta KL(t || m) + (1 - beta) KL(p || m)
};

/// How the final hidden states (after the last norm) of a sequence become its embedding.
enum class Pooling {
  kNone,
  kLast,  // that of its last token
  kMean,  // the mean of all its tokens'
};

/// What an objective asks the head for.
struct HeadRequest {
  bool log_probabilities = true;  // false: values alone, and no logits at all (a critic)
  bool entropies = false;
  bool mean_log_probabilities = false;
  bool values = false;
  bool log_sum_squares = false;
  double temperature = 1.0;  // the logits are divided by it, but not for the divergences
  Divergence divergence = Divergence::kNone;
  double divergence_temperature = 1.0;  // both models' logits are divided by it, for the divergences
  double jensen_shannon_beta = 0.5;     // beta, above 0 and below 1
  /// Whether the teacher's vocabulary may differ from the policy's by more than padding (check_vocabularies).
  /// Divergences are those of the distributions over the first tokens, which both have.
  bool any_vocabulary = false;
  Pooling pooling = Pooling::kNone;  // not kNone: embeddings of the sequences, and nothing else

  /// Whether of each token's distribution only its target's log-probability is asked for.
  bool needs_targets_alone() const {
    return log_probabilities && !entropies && !mean_log_probabilities && !log_sum_squares &&
           divergence == Divergence::kNone;
  }
};

/// The load-balancing loss of a mixture's routers (ops/mlp/mixture.h) in an objective's loss.
struct RouterLoss {
  bool always = false;                // also where config.json has it off (output_router_logits)
  std::optional<double> coefficient;  // instead of config.json's router_aux_loss_coef
  at::Tensor counted;  // [N] bool: the tokens that it counts, and that get its gradient; undefined: all
  /// Of a batch on several ranks: replaces what this rank has counted [n] by the sums over all.
  std::function<void(at::Tensor& counts)> sum_over_ranks = {};
  /// Whether this rank's loss has the term, which is the whole batch's: one rank's has.
  bool reports = true;

  /// What the loss is multiplied by; 0: it is left out. Throws InputError for a coefficient that a model
  /// without experts can't have.
  double of(const MixtureSettings& mixture) const;
};

/// loss = f over the M scored tokens of a batch (scored_indices), in stream order. An objective sees its
/// batch once, when it is made: per-token inputs and normalisers are those of the whole batch, never of a
/// chunk.
class Objective {
 public:
  virtual ~Objective() = default;

  virtual std::string name() const = 0;
  virtual HeadRequest request() const { return {}; }

  /// Whether the loss is a sum over tokens of terms that depend on that token's values alone: then one pass
  /// over the head yields the gradient. Otherwise a first pass collects the values.
  virtual bool separable() const = 0;

  /// The terms of scored tokens [begin, end) as one differentiable number (float64). Only a separable
  /// objective is asked for less than the whole.
  virtual at::Tensor loss(const TokenValues& values, int64_t begin, int64_t end) const = 0;

  /// The targets [N] that it scores where they are not the batch's own; undefined: they are.
  virtual at::Tensor targets() const { return {}; }

  /// make_objective fills in what the options say.
  RouterLoss router_loss;

  /// make_objective records the batch, whose tensors it shares.
  void set_batch(const Batch& batch);
  /// Throws InputError unless `batch` has the sequences, tokens and targets of the recorded one. An objective
  /// without a recorded batch takes any.
  void require_batch(const Batch& batch) const;

 private:
  at::Tensor batch_tokens_, batch_targets_;  // [N] int64
  std::vector<int64_t> batch_offsets_;       // [S + 1]
};

/// What normalisers count. Of a whole batch; where a batch is cut into micro-batches, each one's objective is
/// made with the counts of all.
struct Counts {
  int64_t scored = 0;     // tokens with a target
  int64_t valued = 0;     // tokens with a value
  int64_t sequences = 0;  // empty ones included
  int64_t chosen = 0;  // tokens with a target in the first half of the sequences: in pairs, the chosen ones
  int64_t chosen_next = 0;  // tokens of that half that another one of their sequence follows

  bool operator==(const Counts&) const = default;
};

Counts count(const Batch& batch);

/// What per-sequence and per-token inputs an objective's batch carries; also how its input file is read
/// (streambp/data/objective_inputs.h).
enum class Layout {
  kLabels,       // labels per token (SFT, distillation)
  kPairs,        // sequences 0..n-1 chosen, n..2n-1 rejected, a completion mask (DPO, CPO, SimPO, ORPO)
  kRanked,       // the same without a mask: whole texts, scored at their end (reward)
  kTexts,        // blocks of n sequences: anchors, their positives, their negatives (InfoNCE)
  kLabelled,     // one completion a sequence, desirable or not (KTO)
  kCompletions,  // completions with advantages (GRPO)
  kResponses,    // responses with advantages, returns and values (PPO)
};

/// Whether sequences i and i + S/2 belong together.
inline bool has_pairs(Layout layout) {
  return layout == Layout::kPairs || layout == Layout::kRanked;
}

/// One hyperparameter of an objective: numbers are kept as text until they are read.
struct Option {
  std::string name;
  std::string default_value;
  std::string help;
  std::vector<std::string> choices = {};  // of a word; empty for a number
  bool is_list = false;                   // several of the choices, by '+'
};

/// Hyperparameters by name, complete and checked against the objective's options.
class Options {
 public:
  Options(std::map<std::string, std::string> values, std::string objective)
      : values_(std::move(values)), objective_(std::move(objective)) {}

  const std::string& word(const std::string& name) const { return values_.at(name); }
  bool has(const std::string& name) const { return values_.contains(name); }
  bool given(const std::string& name) const { return !values_.at(name).empty(); }
  /// Throws InputError naming objective and option unless least <= number <= most.
  double number(const std::string& name, double least, double most) const;
  /// Any number above 0; throws InputError likewise.
  double positive(const std::string& name) const;
  /// The words or numbers of a list, which '+' separates.
  std::vector<std::string> words(const std::string& name) const;
  std::vector<double> numbers(const std::string& name) const;

 private:
  std::map<std::string, std::string> values_;
  std::string objective_;
};

/// A registered objective. A new one is one file that defines its kind, and its name in kinds.h and
/// objective_kinds().
struct ObjectiveKind {
  std::string name;
  std::string summary;  // one line for --help
  std::string source;   // paper or reference implementation
  Layout layout = Layout::kLabels;
  std::vector<Option> options;
  /// Throws InputError for inputs that are missing or don't fit, and for options out of range.
  std::function<std::unique_ptr<Objective>(const Batch& batch, const Options& options, const Counts& whole)>
      make;
  /// Whether it needs a reference policy's log-probabilities under these options; empty: never.
  std::function<bool(const Options& options)> uses_reference = {};
  /// Whether its trainer adds the routers' load-balancing loss of a mixture whatever config.json says of
  /// output_router_logits, as TRL's do. Every kind has the option router_aux_loss_coef to override it.
  bool adds_router_loss = false;
  /// Whether the loss compares the batch's rows with one another (sorts pairs, estimates a mean from some
  /// rows for all): it is then no sum over parts of a batch. Empty: it never does.
  std::function<bool(const Batch& batch, const Options& options)> compares_rows = {};
  /// Whether that of config.json counts at all: not in the losses of classifiers and embeddings.
  bool knows_router_loss = true;
};

/// What `options` say of the routers' loss. Throws InputError for a coefficient below 0.
RouterLoss router_loss(const ObjectiveKind& kind, const Options& options);

const std::vector<ObjectiveKind>& objective_kinds();
std::vector<std::string> objective_names();

/// Throws InputError that lists the objectives.
const ObjectiveKind& objective_kind(const std::string& name);

/// The options of `kind`: `given`, and the defaults of the others. Throws InputError for an unknown option or
/// choice, naming the known ones.
Options complete_options(const ObjectiveKind& kind, const std::map<std::string, std::string>& given);
/// The same, where Batch::scalar_inputs come before defaults.
Options complete_options(const ObjectiveKind& kind, std::map<std::string, std::string> given,
                         const Batch& batch);

/// What the objective divides logits by: its option `temperature`, 1 where it has none.
double logit_temperature(const ObjectiveKind& kind, const Options& options);

/// The objective `name` on `batch`; `given` overrides defaults of its options. Normalisers are those of
/// `whole`, by default the batch's own. Throws InputError as complete_options and ObjectiveKind::make do, and
/// for a whole that is smaller than the batch.
std::unique_ptr<Objective> make_objective(const std::string& name, const Batch& batch,
                                          const std::map<std::string, std::string>& given = {});
std::unique_ptr<Objective> make_objective(const std::string& name, const Batch& batch,
                                          const std::map<std::string, std::string>& given,
                                          const Counts& whole);

}  // namespace streambp
