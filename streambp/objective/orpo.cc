// ORPO: odds-ratio preference optimisation. With a the mean of a completion's log-probabilities and odds(a) =
// e^a / (1 - e^a), the loss is the sum of
// - the mean over pairs of -beta log sigma(log odds(a_chosen) - log odds(a_rejected))
// - the mean over the tokens of all chosen completions of -log p
// arXiv 2403.07691, equations 4 to 7; TRL, ORPOTrainer.odds_ratio_loss. (TRL takes the prompt's tokens into
// the second term as well; the paper does not.) A mean above -2^-53 counts as -2^-53 with gradient 0 in the
// first term: a completion of probability 1 has infinite odds.
#include <algorithm>

#include "streambp/error.h"
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

class Orpo final : public Objective {
 public:
  Orpo(const Batch& batch, const Options& options, const Counts& whole)
      : scored_("orpo", batch),
        pairs_(number_of_pairs("orpo", scored_.sequences())),
        whole_pairs_(static_cast<double>(number_of_pairs("orpo", whole.sequences))),
        whole_chosen_(static_cast<double>(std::max<int64_t>(whole.chosen, 1))),
        beta_(options.number("beta", 0.0, kInfinity)) {
    if (const int64_t empty = scored_.empty_sequence(); empty >= 0) {
      throw InputError("orpo: sequence {} has no completion token, expected one in each of a pair", empty);
    }
    if (whole.chosen < count(batch).chosen) {
      throw InputError("orpo: {} chosen tokens in the whole batch, expected at least this part's {}",
                       whole.chosen, count(batch).chosen);
    }
  }

  std::string name() const override { return "orpo"; }
  bool separable() const override { return false; }

  at::Tensor loss(const TokenValues& values, int64_t, int64_t) const override {
    const at::Tensor sums = scored_.sums(values.log_probabilities);
    const at::Tensor odds = log_odds(sums / scored_.lengths().to(sums.device()));
    const at::Tensor margins = odds.narrow(0, 0, pairs_) - odds.narrow(0, pairs_, pairs_);
    return stable_log_sigmoid(margins).sum() * (-beta_ / whole_pairs_) -
           sums.narrow(0, 0, pairs_).sum() / whole_chosen_;
  }

 private:
  ScoredTokens scored_;
  int64_t pairs_;
  double whole_pairs_;
  double whole_chosen_;
  double beta_;
};

}  // namespace

ObjectiveKind orpo_kind() {
  ObjectiveKind kind;
  kind.name = "orpo";
  kind.summary = "ORPO: odds-ratio preference optimisation with the chosen completions' cross-entropy";
  kind.source = "arXiv 2403.07691; TRL, ORPOTrainer";
  kind.layout = Layout::kPairs;
  kind.options = {{"beta", "0.1", "weight of the odds-ratio term"}};
  kind.make = [](const Batch& batch, const Options& options,
                 const Counts& whole) -> std::unique_ptr<Objective> {
    return std::make_unique<Orpo>(batch, options, whole);
  };
  return kind;
}

}  // namespace streambp
