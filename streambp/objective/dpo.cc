// Direct preference optimisation on pairs of a chosen and a rejected completion of one prompt. With s the sum
// of a completion's log-probabilities, l_c = s_chosen - s_reference,chosen, l_r likewise, z = beta (l_c -
// l_r) and e the label smoothing, the loss is the mean over pairs of
// - sigmoid: -(1 - e) log sigma(z) - e log sigma(-z). arXiv 2305.18290, equation 7; e > 0: conservative DPO.
// - hinge: max(0, 1 - z). arXiv 2305.10425 (SLiC), as in arXiv 2309.06657.
// - ipo: (l_c / |chosen| - l_r / |rejected| - 1 / (2 beta))^2. arXiv 2310.12036, averaged over tokens as in
// TRL.
// - robust: [-(1 - e) log sigma(z) + e log sigma(-z)] / (1 - 2 e). arXiv 2403.00409.
// Reference implementation: TRL, trainer/dpo_trainer.py. An empty completion has |.| = 1. Reference-free: the
// reference's sums are 0.
#include "streambp/error.h"
#include "streambp/objective/kinds.h"
#include "streambp/objective/terms.h"

namespace streambp {
namespace {

enum class DpoLoss { kSigmoid, kHinge, kIpo, kRobust };

DpoLoss loss_type(const Options& options) {
  const std::string& word = options.word("loss_type");
  if (word == "hinge") return DpoLoss::kHinge;
  if (word == "ipo") return DpoLoss::kIpo;
  return word == "robust" ? DpoLoss::kRobust : DpoLoss::kSigmoid;
}

bool is_reference_free(const Options& options) {
  return options.word("reference_free") == "true";
}

class Dpo final : public Objective {
 public:
  Dpo(const Batch& batch, const Options& options, const Counts& whole)
      : scored_("dpo", batch),
        pairs_(number_of_pairs("dpo", scored_.sequences())),
        loss_type_(loss_type(options)) {
    divisor_ = static_cast<double>(number_of_pairs("dpo", whole.sequences));
    beta_ = loss_type_ == DpoLoss::kIpo ? options.positive("beta") : options.number("beta", 0.0, kInfinity);
    smoothing_ = options.number("label_smoothing", 0.0, 1.0);
    if (loss_type_ == DpoLoss::kRobust && !(smoothing_ < 0.5)) {
      throw InputError("dpo: label_smoothing is {}, expected less than 0.5 with loss_type robust",
                       smoothing_);
    }
    if ((loss_type_ == DpoLoss::kHinge || loss_type_ == DpoLoss::kIpo) && smoothing_ != 0.0) {
      throw InputError("dpo: label_smoothing is {}, expected 0 with loss_type {}", smoothing_,
                       options.word("loss_type"));
    }
    if (!is_reference_free(options)) reference_ = scored_.reference_sums(batch);
  }

  std::string name() const override { return "dpo"; }
  bool separable() const override { return false; }

  at::Tensor loss(const TokenValues& values, int64_t, int64_t) const override {
    at::Tensor ratios = scored_.sums(values.log_probabilities);
    if (reference_.defined()) ratios = ratios - reference_.to(ratios.device());
    if (loss_type_ == DpoLoss::kIpo) ratios = ratios / scored_.lengths().to(ratios.device());
    const at::Tensor margins = ratios.narrow(0, 0, pairs_) - ratios.narrow(0, pairs_, pairs_);
    return terms(margins).sum() / divisor_;
  }

 private:
  at::Tensor terms(const at::Tensor& margins) const {
    const at::Tensor z = margins * beta_;
    switch (loss_type_) {
      case DpoLoss::kHinge:
        return at_least(1.0 - z, 0.0);
      case DpoLoss::kIpo:
        return (margins - 0.5 / beta_).square();
      case DpoLoss::kRobust:
        return (stable_log_sigmoid(z) * (smoothing_ - 1.0) + stable_log_sigmoid(-z) * smoothing_) /
               (1.0 - 2.0 * smoothing_);
      case DpoLoss::kSigmoid:
        break;
    }
    return stable_log_sigmoid(z) * (smoothing_ - 1.0) - stable_log_sigmoid(-z) * smoothing_;
  }

  ScoredTokens scored_;
  int64_t pairs_;
  DpoLoss loss_type_;
  double divisor_ = 1.0;
  double beta_ = 0.0;
  double smoothing_ = 0.0;
  at::Tensor reference_;  // [S]; undefined: reference-free
};

}  // namespace

ObjectiveKind dpo_kind() {
  ObjectiveKind kind;
  kind.name = "dpo";
  kind.summary = "direct preference optimisation on pairs";
  kind.source = "arXiv 2305.18290; TRL, DPOTrainer";
  kind.layout = Layout::kPairs;
  kind.options = {
      {"loss_type", "sigmoid", "the loss of a margin", {"sigmoid", "hinge", "ipo", "robust"}},
      {"beta", "0.1", "strength of the pull towards the reference"},
      {"label_smoothing", "0", "probability that a label is wrong (sigmoid, robust)"},
      {"reference_free", "false", "take the reference's log-probabilities for 0", {"false", "true"}}};
  kind.make = [](const Batch& batch, const Options& options,
                 const Counts& whole) -> std::unique_ptr<Objective> {
    return std::make_unique<Dpo>(batch, options, whole);
  };
  kind.uses_reference = [](const Options& options) { return !is_reference_free(options); };
  return kind;
}

}  // namespace streambp
