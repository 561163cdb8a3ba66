// CPO and SimPO: preference optimisation without a reference. With s a completion's log-probabilities, summed
// (sigmoid, hinge) or averaged over its tokens (ipo, simpo), rewards r = s, or r = (1 - e^(-alpha s)) / alpha
// with alpha != 0 (AlphaPO), m = r_chosen - r_rejected and e the label smoothing, the loss is the mean over
// pairs of
// - sigmoid: -(1 - e) log sigma(beta m) - e log sigma(-beta m)
// - hinge: max(0, 1 - beta m)
// - ipo: (m - 1 / (2 beta))^2
// - simpo: sigmoid's of beta m - gamma instead of beta m
// and cpo_alpha times the mean over the tokens of all chosen completions of -log p. arXiv 2401.08417 (CPO),
// 2405.14734, equation 6 (SimPO), 2501.03884 (AlphaPO); TRL, experimental/cpo, CPOTrainer. The mean of an
// empty completion is 0. Exponents end at kLargestExponent.
#include <algorithm>

#include "streambp/objective/kinds.h"
#include "streambp/objective/preference_losses.h"
#include "streambp/objective/terms.h"

namespace streambp {
namespace {

class Cpo final : public Objective {
 public:
  Cpo(std::string name, std::string loss_type, const Batch& batch, const Options& options,
      const Counts& whole)
      : name_(std::move(name)),
        loss_type_(std::move(loss_type)),
        scored_(name_, batch),
        pairs_(number_of_pairs(name_, scored_.sequences())),
        divisor_(static_cast<double>(number_of_pairs(name_, whole.sequences))),
        whole_chosen_(static_cast<double>(std::max<int64_t>(whole.chosen, 1))),
        alpha_(options.number("alpha", -kInfinity, kInfinity)),
        cpo_alpha_(options.number("cpo_alpha", 0.0, kInfinity)),
        gamma_(options.number("simpo_gamma", 0.0, kInfinity)) {
    settings_.beta = loss_type_ == "ipo" ? options.positive("beta") : options.number("beta", 0.0, kInfinity);
    settings_.label_smoothing = settings_.sigmoid_smoothing = options.number("label_smoothing", 0.0, 1.0);
    if (!is_simpo()) check_smoothing(name_, loss_type_, settings_.label_smoothing);
  }

  std::string name() const override { return name_; }
  bool separable() const override { return false; }

  at::Tensor loss(const TokenValues& values, int64_t, int64_t) const override {
    const at::Tensor sums = scored_.sums(values.log_probabilities);
    const bool averages = is_simpo() || loss_type_ == "ipo";
    at::Tensor rewards = averages ? sums / scored_.lengths().to(sums.device()) : sums;
    if (alpha_ != 0.0) rewards = (1.0 - exp_clamped(rewards * -alpha_)) / alpha_;
    PairScores pairs;
    pairs.margins = pairs.mean_margins = rewards.narrow(0, 0, pairs_) - rewards.narrow(0, pairs_, pairs_);
    const at::Tensor terms =
        is_simpo() ? smoothed_sigmoid_loss(pairs.margins * settings_.beta - gamma_, settings_.label_smoothing)
                   : pair_losses().at(loss_type_).terms(pairs, settings_);
    const at::Tensor loss = terms.sum() / divisor_;
    return cpo_alpha_ == 0.0 ? loss : loss - sums.narrow(0, 0, pairs_).sum() * (cpo_alpha_ / whole_chosen_);
  }

 private:
  bool is_simpo() const { return loss_type_ == "simpo"; }

  std::string name_;
  std::string loss_type_;
  ScoredTokens scored_;
  int64_t pairs_;
  double divisor_;
  double whole_chosen_;
  double alpha_;
  double cpo_alpha_;
  double gamma_;
  PairLossSettings settings_;
};

/// What both have, with defaults for each.
std::vector<Option> options_of(const char* beta, const char* gamma, const char* cpo_alpha) {
  return {{"beta", beta, "scale of the margin"},
          {"simpo_gamma", gamma, "margin that simpo asks for"},
          {"label_smoothing", "0", "probability that a label is wrong (sigmoid, simpo)"},
          {"alpha", "0", "shape of the rewards (AlphaPO); 0: log-probabilities"},
          {"cpo_alpha", cpo_alpha, "weight of the chosen completions' cross-entropy"}};
}

}  // namespace

ObjectiveKind cpo_kind() {
  ObjectiveKind kind;
  kind.name = "cpo";
  kind.summary =
      "CPO: preference optimisation without a reference, with the chosen completions' cross-entropy";
  kind.source = "arXiv 2401.08417; TRL, CPOTrainer";
  kind.layout = Layout::kPairs;
  kind.options = options_of("0.1", "0.5", "1");
  kind.options.insert(kind.options.begin(),
                      {"loss_type", "sigmoid", "the loss of a margin", {"sigmoid", "hinge", "ipo", "simpo"}});
  kind.make = [](const Batch& batch, const Options& options,
                 const Counts& whole) -> std::unique_ptr<Objective> {
    return std::make_unique<Cpo>("cpo", options.word("loss_type"), batch, options, whole);
  };
  return kind;
}

ObjectiveKind simpo_kind() {
  ObjectiveKind kind;
  kind.name = "simpo";
  kind.summary = "SimPO: length-normalised preference optimisation without a reference";
  kind.source = "arXiv 2405.14734; TRL, CPOTrainer";
  kind.layout = Layout::kPairs;
  kind.options = options_of("2", "1", "0");
  kind.make = [](const Batch& batch, const Options& options,
                 const Counts& whole) -> std::unique_ptr<Objective> {
    return std::make_unique<Cpo>("simpo", "simpo", batch, options, whole);
  };
  return kind;
}

}  // namespace streambp
