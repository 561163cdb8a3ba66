// Distillation from a teacher: loss = 1/divisor sum over scored tokens of [alpha w D - (1 - alpha) log p], D
// the divergence between the teacher's distribution t and the policy's p_tau with both their logits divided
// by the temperature tau, log p of the label at temperature 1:
// - forward: KL(t || p_tau), w = tau^2 (arXiv 1503.02531, section 2, labels' temperature and tau^2 included)
// - reverse: KL(p_tau || t), w = tau^2 (arXiv 2306.08543)
// - jsd: generalised Jensen-Shannon, with m = beta t + (1 - beta) p_tau, beta KL(t || m) + (1 - beta)
//   KL(p_tau || m), for beta 0 KL(t || p_tau) and for beta 1 KL(p_tau || t), and w = 1 (arXiv 2306.13649,
//   equation 1; TRL, GKDTrainer.generalized_jsd_loss and DistillationTrainer, which don't multiply by tau^2)
// Where one of the two tables of the vocabulary is longer, both distributions are those over the tokens that
// both models have, the first ones: TRL's GOLDTrainer cuts the teacher's table to the policy's size.
#include "streambp/error.h"
#include "streambp/objective/kinds.h"
#include "streambp/objective/terms.h"

namespace streambp {
namespace {

class Distill final : public Objective {
 public:
  Distill(const Batch& batch, const Options& options, const Counts& whole)
      : alpha_(options.number("alpha", 0.0, 1.0)),
        weights_(ScoredTokens("distill", batch).has_target() / token_divisor("distill", options, whole)) {
    const double temperature = options.positive("temperature");
    request_.divergence_temperature = temperature;
    request_.any_vocabulary = options.word("vocabulary") == "shared";
    const std::string& divergence = options.word("divergence");
    if (divergence == "jsd") {
      const double beta = options.given("beta") ? options.number("beta", 0.0, 1.0) : 0.5;
      request_.jensen_shannon_beta = beta;
      request_.divergence = beta == 0.0   ? Divergence::kForward
                            : beta == 1.0 ? Divergence::kReverse
                                          : Divergence::kJensenShannon;
      weight_ = alpha_;
      return;
    }
    if (options.given("beta"))
      throw InputError("distill: beta is given, expected divergence jsd with it, not {}", divergence);
    request_.divergence = divergence == "reverse" ? Divergence::kReverse : Divergence::kForward;
    weight_ = alpha_ * temperature * temperature;
  }

  std::string name() const override { return "distill"; }
  bool separable() const override { return true; }
  HeadRequest request() const override { return request_; }

  at::Tensor loss(const TokenValues& values, int64_t begin, int64_t end) const override {
    at::Tensor terms = values.divergences * weight_;
    if (alpha_ < 1.0) terms = terms - values.log_probabilities * (1.0 - alpha_);
    return (terms * part(weights_, begin, end, terms)).sum();
  }

 private:
  HeadRequest request_;
  double alpha_;
  double weight_ = 0.0;  // of the divergence
  at::Tensor weights_;   // [M]: of a token
};

}  // namespace

ObjectiveKind distill_kind() {
  ObjectiveKind kind;
  kind.name = "distill";
  kind.summary = "distillation: divergence from a teacher's distribution";
  kind.source = "arXiv 1503.02531; arXiv 2306.13649; TRL, GKDTrainer, DistillationTrainer";
  kind.layout = Layout::kLabels;
  kind.options = {
      {"divergence",
       "forward",
       "KL(teacher || policy), KL(policy || teacher), or the generalised Jensen-Shannon divergence",
       {"forward", "reverse", "jsd"}},
      {"beta", "", "of jsd (0.5): 0 is forward, 1 reverse, between them the teacher's share of the mixture"},
      {"temperature", "1", "both models' logits are divided by it in the divergence"},
      {"alpha", "1", "weight of the divergence; the labels' cross-entropy has the rest"},
      {"vocabulary",
       "padded",
       "the teacher's: the same but for padding (1 %), or any whose first tokens are the same",
       {"padded", "shared"}},
      reduction_option(),
      divisor_option()};
  kind.make = [](const Batch& batch, const Options& options,
                 const Counts& whole) -> std::unique_ptr<Objective> {
    return std::make_unique<Distill>(batch, options, whole);
  };
  return kind;
}

}  // namespace streambp
