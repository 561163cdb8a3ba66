// RLOO: REINFORCE with the other completions' mean reward as baseline, which the advantages hold already.
// With r = exp(log p of the whole completion - its old log-probability) and A its advantage, the loss is the
// mean over the sequences of the whole batch of
//
//     -min(r A, clip(r, 1 - epsilon_low, 1 + epsilon_high) A)
//
// arXiv 2402.14740; TRL 1.16, trainer/rloo_trainer.py, RLOOTrainer._compute_loss. Without old
// log-probabilities they are the policy's own, held constant. Exponents are cut at kLargestExponent.
#include <algorithm>

#include "streambp/error.h"
#include "streambp/objective/kinds.h"
#include "streambp/objective/terms.h"

namespace streambp {
namespace {

class Rloo final : public Objective {
 public:
  Rloo(const Batch& batch, const Options& options, const Counts& whole)
      : scored_("rloo", batch),
        clip_{.low = options.number("epsilon_low", 0.0, kInfinity),
              .high = options.number("epsilon_high", 0.0, kInfinity)},
        temperature_(options.positive("temperature")),
        sequences_(static_cast<double>(std::max<int64_t>(whole.sequences, 1))),
        advantages_(scored_.sequence_input(batch, inputs::kAdvantages)) {
    if (batch.sequence_inputs.contains(inputs::kOldSums)) {
      old_ = scored_.sequence_input(batch, inputs::kOldSums);
    } else if (batch.token_inputs.contains(inputs::kOldLogProbabilities)) {
      old_ = scored_.sums(scored_.token_input(batch, inputs::kOldLogProbabilities, scored_.has_target()));
    }
  }

  std::string name() const override { return "rloo"; }
  bool separable() const override { return false; }
  HeadRequest request() const override {
    HeadRequest request;
    request.temperature = temperature_;
    return request;
  }

  at::Tensor loss(const TokenValues& values, int64_t, int64_t) const override {
    const at::Tensor sums = scored_.sums(values.log_probabilities);
    const at::Tensor ratio = exp_clamped(sums - (old_.defined() ? old_.to(sums.device()) : sums.detach()));
    return -clipped_surrogate(ratio, advantages_.to(sums.device()), clip_).sum() / sequences_;
  }

 private:
  ScoredTokens scored_;
  ClipRange clip_;
  double temperature_;
  double sequences_;       // of the whole batch, at least 1
  at::Tensor advantages_;  // [S]
  at::Tensor old_;         // [S]; undefined: the policy's own
};

}  // namespace

ObjectiveKind rloo_kind() {
  ObjectiveKind kind;
  kind.name = "rloo";
  kind.summary = "RLOO: clipped policy gradient of whole completions";
  kind.source = "arXiv 2402.14740; TRL, RLOOTrainer";
  kind.layout = Layout::kCompletions;
  kind.options = {{"epsilon_low", "0.2", "ratios are clipped below 1 minus this"},
                  {"epsilon_high", "0.2", "ratios are clipped above 1 plus this"},
                  {"temperature", "1", "the logits are divided by it"}};
  kind.make = [](const Batch& batch, const Options& options,
                 const Counts& whole) -> std::unique_ptr<Objective> {
    return std::make_unique<Rloo>(batch, options, whole);
  };
  kind.adds_router_loss = true;
  return kind;
}

}  // namespace streambp
