// SimPO: preference optimisation without a reference. With a the mean of a completion's log-probabilities, z
// = beta (a_chosen - a_rejected) - gamma and e the label smoothing, the loss is the mean over pairs of
//
//     -(1 - e) log sigma(z) - e log sigma(-z)
//
// arXiv 2405.14734, equation 6; TRL, CPOTrainer with loss_type simpo (cpo_alpha 0). The mean of an empty
// completion is 0.
#include "streambp/objective/kinds.h"
#include "streambp/objective/terms.h"

namespace streambp {
namespace {

class SimPo final : public Objective {
 public:
  SimPo(const Batch& batch, const Options& options, const Counts& whole)
      : scored_("simpo", batch),
        pairs_(number_of_pairs("simpo", scored_.sequences())),
        divisor_(static_cast<double>(number_of_pairs("simpo", whole.sequences))),
        beta_(options.number("beta", 0.0, kInfinity)),
        gamma_(options.number("simpo_gamma", 0.0, kInfinity)),
        smoothing_(options.number("label_smoothing", 0.0, 1.0)) {}

  std::string name() const override { return "simpo"; }
  bool separable() const override { return false; }

  at::Tensor loss(const TokenValues& values, int64_t, int64_t) const override {
    const at::Tensor sums = scored_.sums(values.log_probabilities);
    const at::Tensor means = sums / scored_.lengths().to(sums.device());
    const at::Tensor z = (means.narrow(0, 0, pairs_) - means.narrow(0, pairs_, pairs_)) * beta_ - gamma_;
    return (stable_log_sigmoid(z) * (smoothing_ - 1.0) - stable_log_sigmoid(-z) * smoothing_).sum() /
           divisor_;
  }

 private:
  ScoredTokens scored_;
  int64_t pairs_;
  double divisor_;
  double beta_;
  double gamma_;
  double smoothing_;
};

}  // namespace

ObjectiveKind simpo_kind() {
  ObjectiveKind kind;
  kind.name = "simpo";
  kind.summary = "SimPO: length-normalised preference optimisation without a reference";
  kind.source = "arXiv 2405.14734; TRL, CPOTrainer";
  kind.layout = Layout::kPairs;
  kind.options = {{"beta", "2", "scale of the margin"},
                  {"simpo_gamma", "1", "margin that is asked for"},
                  {"label_smoothing", "0", "probability that a label is wrong"}};
  kind.make = [](const Batch& batch, const Options& options,
                 const Counts& whole) -> std::unique_ptr<Objective> {
    return std::make_unique<SimPo>(batch, options, whole);
  };
  return kind;
}

}  // namespace streambp
