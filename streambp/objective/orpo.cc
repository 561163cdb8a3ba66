// ORPO: odds-ratio preference optimisation. With a the mean of a completion's log-probabilities and odds(a) =
// e^a / (1 - e^a), the loss is the sum of
// - the mean over pairs of -beta log sigma(log odds(a_chosen) - log odds(a_rejected))
// - the mean over the tokens of all chosen completions of -log p (nll completion, the paper's), or over those
//   of all chosen sequences, their prompts included (nll sequence, TRL's)
// arXiv 2403.07691, equations 4 to 7; TRL, experimental/orpo, ORPOTrainer. A mean above -2^-53 counts as
// -2^-53 with gradient 0 in the first term: a completion of probability 1 has infinite odds.
#include <algorithm>

#include "streambp/error.h"
#include "streambp/model/scored.h"
#include "streambp/objective/kinds.h"
#include "streambp/objective/terms.h"

namespace streambp {
namespace {

constexpr double kLargestMean = -0x1p-53;

at::Tensor log_odds(const at::Tensor& means) {
  const at::Tensor a = at_most(means, kLargestMean);
  // log(1 - e^a) through expm1, which keeps 1 - e^a where e^a is close to 1.
  return a - a.expm1().neg().log();
}

/// `batch` with every token of the chosen sequences as a target of the one before it.
Batch with_chosen_prompts(Batch batch) {
  batch.targets = batch.targets.to(at::kCPU).clone();
  for (int64_t i = 0; i < number_of_pairs("orpo", static_cast<int64_t>(batch.offsets.size()) - 1); ++i) {
    const int64_t begin = batch.offsets[i], next = std::max(batch.offsets[i + 1] - begin - 1, int64_t{0});
    batch.targets.narrow(0, begin, next).copy_(batch.tokens.narrow(0, batch.offsets[i + 1] - next, next));
  }
  return batch;
}

class Orpo final : public Objective {
 public:
  Orpo(const Batch& batch, const Options& options, const Counts& whole)
      : Orpo(options.word("nll") == "sequence" ? with_chosen_prompts(batch) : batch, batch, options, whole) {}

  std::string name() const override { return "orpo"; }
  bool separable() const override { return false; }
  at::Tensor targets() const override { return targets_; }

  at::Tensor loss(const TokenValues& values, int64_t, int64_t) const override {
    const at::Tensor& log_p = values.log_probabilities;
    const auto on_device = [&](const at::Tensor& tensor) { return tensor.to(log_p.device()); };
    const at::Tensor odds = log_odds(scored_.sums(log_p * on_device(in_completion_)) / on_device(lengths_));
    const at::Tensor margins = odds.narrow(0, 0, pairs_) - odds.narrow(0, pairs_, pairs_);
    return stable_log_sigmoid(margins).sum() * (-beta_ / whole_pairs_) -
           scored_.sums(log_p).narrow(0, 0, pairs_).sum() / whole_chosen_;
  }

 private:
  /// `batch` with the targets that are scored, and as it was `given`.
  Orpo(const Batch& batch, const Batch& given, const Options& options, const Counts& whole)
      : scored_("orpo", batch),
        pairs_(number_of_pairs("orpo", scored_.sequences())),
        whole_pairs_(static_cast<double>(number_of_pairs("orpo", whole.sequences))),
        beta_(options.number("beta", 0.0, kInfinity)) {
    const ScoredTokens completions("orpo", given);
    if (const int64_t empty = completions.empty_sequence(); empty >= 0) {
      throw InputError("orpo: sequence {} has no completion token, expected one in each of a pair", empty);
    }
    const bool is_sequence = options.word("nll") == "sequence";
    const Counts own = count(given);
    const int64_t chosen = is_sequence ? whole.chosen_next : whole.chosen;
    if (chosen < (is_sequence ? own.chosen_next : own.chosen)) {
      throw InputError("orpo: {} chosen tokens in the whole batch, expected at least this part's {}", chosen,
                       is_sequence ? own.chosen_next : own.chosen);
    }
    whole_chosen_ = static_cast<double>(std::max<int64_t>(chosen, 1));
    lengths_ = completions.lengths();
    in_completion_ =
        given.targets.to(at::kCPU).ne(kNoTarget).to(at::kDouble).index_select(0, scored_indices(batch));
    if (is_sequence) targets_ = batch.targets;
  }

  ScoredTokens scored_;
  int64_t pairs_;
  double whole_pairs_;
  double whole_chosen_ = 1.0;
  double beta_;
  at::Tensor lengths_;        // [S]: tokens of the completions
  at::Tensor in_completion_;  // [M]
  at::Tensor targets_;        // [N]; undefined: the batch's
};

}  // namespace

ObjectiveKind orpo_kind() {
  ObjectiveKind kind;
  kind.name = "orpo";
  kind.summary = "ORPO: odds-ratio preference optimisation with the chosen completions' cross-entropy";
  kind.source = "arXiv 2403.07691; TRL, ORPOTrainer";
  kind.layout = Layout::kPairs;
  kind.options = {{"beta", "0.1", "weight of the odds-ratio term"},
                  {"nll",
                   "sequence",
                   "the cross-entropy's tokens: of the chosen sequences, prompts included (TRL), or "
                   "completions (the paper)",
                   {"completion", "sequence"}}};
  kind.make = [](const Batch& batch, const Options& options,
                 const Counts& whole) -> std::unique_ptr<Objective> {
    return std::make_unique<Orpo>(batch, options, whole);
  };
  return kind;
}

}  // namespace streambp
