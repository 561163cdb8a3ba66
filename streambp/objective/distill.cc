// Distillation from a teacher: loss = mean over scored tokens of [alpha tau^2 KL - (1 - alpha) log p], KL
// between the teacher's distribution and the policy's with both their logits divided by the temperature tau,
// forward KL(teacher || policy) or reverse KL(policy || teacher). arXiv 1503.02531, section 2 (forward,
// tau^2); arXiv 2306.08543 (reverse). log p is at the same temperature.
#include <algorithm>

#include "streambp/objective/kinds.h"
#include "streambp/objective/terms.h"

namespace streambp {
namespace {

class Distill final : public Objective {
 public:
  Distill(const Batch& batch, const Options& options, const Counts& whole)
      : divergence_(options.word("divergence") == "reverse" ? Divergence::kReverse : Divergence::kForward),
        temperature_(options.positive("temperature")),
        alpha_(options.number("alpha", 0.0, 1.0)),
        weights_(ScoredTokens("distill", batch).has_target() /
                 static_cast<double>(std::max<int64_t>(whole.scored, 1))) {}

  std::string name() const override { return "distill"; }
  bool separable() const override { return true; }
  HeadRequest request() const override {
    HeadRequest request;
    request.divergence = divergence_;
    request.temperature = temperature_;
    return request;
  }

  at::Tensor loss(const TokenValues& values, int64_t begin, int64_t end) const override {
    at::Tensor terms = values.divergences * (alpha_ * temperature_ * temperature_);
    if (alpha_ < 1.0) terms = terms - values.log_probabilities * (1.0 - alpha_);
    return (terms * part(weights_, begin, end, terms)).sum();
  }

 private:
  Divergence divergence_;
  double temperature_;
  double alpha_;
  at::Tensor weights_;  // [M]
};

}  // namespace

ObjectiveKind distill_kind() {
  ObjectiveKind kind;
  kind.name = "distill";
  kind.summary = "distillation: KL divergence from a teacher's distribution";
  kind.source = "arXiv 1503.02531";
  kind.layout = Layout::kLabels;
  kind.options = {
      {"divergence", "forward", "KL(teacher || policy) or KL(policy || teacher)", {"forward", "reverse"}},
      {"temperature", "1", "both models' logits are divided by it, the labels' term's too"},
      {"alpha", "1", "weight of the divergence; the labels' cross-entropy has the rest"}};
  kind.make = [](const Batch& batch, const Options& options,
                 const Counts& whole) -> std::unique_ptr<Objective> {
    return std::make_unique<Distill>(batch, options, whole);
  };
  return kind;
}

}  // namespace streambp
