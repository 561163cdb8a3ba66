// KTO: Kahneman-Tversky optimisation on completions that are desirable or not. With l the sum of a
// completion's log-probabilities less the reference's, and z = max(0, mean of l over the rows that estimate
// the KL divergence), held constant (0 without such rows), the loss is the mean over the other rows of
// - desirable: w_d (1 - sigma(beta (l - z)))
// - undesirable: w_u (1 - sigma(beta (z - l)))
// or, with loss_type apo_zero_unpaired, the same with z = 0 (arXiv 2408.06266, equation 7). arXiv 2402.01306,
// equation 8; TRL, trainer/kto_trainer.py. The rows of the KL estimate are mismatched completions of a
// forward pass of their own: they get no gradient, and a mixture's load-balancing loss does not count them.
#include <algorithm>

#include "streambp/error.h"
#include "streambp/objective/kinds.h"
#include "streambp/objective/terms.h"

namespace streambp {
namespace {

/// The tokens [N] of the sequences that `chosen` [S] selects.
at::Tensor tokens_of(const Batch& batch, const at::Tensor& chosen) {
  at::Tensor tokens = at::zeros({batch.size()}, at::kBool);
  for (size_t i = 0; i + 1 < batch.offsets.size(); ++i) {
    tokens.slice(0, batch.offsets[i], batch.offsets[i + 1])
        .fill_(chosen[static_cast<int64_t>(i)].item<bool>());
  }
  return tokens;
}

class Kto final : public Objective {
 public:
  Kto(const Batch& batch, const Options& options, const Counts& whole)
      : scored_("kto", batch), beta_(options.number("beta", 0.0, kInfinity)) {
    const at::Tensor role = scored_.sequence_input(batch, inputs::kRole);
    const at::Tensor desirable = role.eq(1.0), undesirable = role.eq(0.0), estimates = role.eq(2.0);
    if (!(desirable | undesirable | estimates).all().item<bool>()) {
      throw InputError(
          "kto: input '{}': expected 0 (undesirable), 1 (desirable) or 2 (KL estimate) a sequence",
          inputs::kRole);
    }
    const auto of_estimate = estimates.sum().item<int64_t>();
    if (of_estimate > 0 && whole != count(batch)) {
      throw InputError(
          "kto: rows of the KL estimate in a part of a batch, expected them in the whole: their mean enters "
          "every row");
    }
    // A part of a batch holds no estimate, and neither do the others: all of the whole's sequences are
    // labelled.
    const auto labelled = static_cast<double>(std::max<int64_t>(whole.sequences - of_estimate, 1));
    const double desirable_weight = options.number("desirable_weight", 0.0, kInfinity);
    const double undesirable_weight = options.number("undesirable_weight", 0.0, kInfinity);
    weights_ =
        (desirable.to(at::kDouble) * desirable_weight + undesirable.to(at::kDouble) * undesirable_weight) /
        labelled;
    signs_ = desirable.to(at::kDouble) - undesirable.to(at::kDouble);
    if (options.word("loss_type") == "kto") {
      estimate_weights_ = estimates.to(at::kDouble) / static_cast<double>(std::max<int64_t>(of_estimate, 1));
    }
    if (of_estimate > 0) router_loss.counted = tokens_of(batch, estimates.logical_not());
    reference_ = scored_.reference_sums(batch);
  }

  std::string name() const override { return "kto"; }
  bool separable() const override { return false; }

  at::Tensor loss(const TokenValues& values, int64_t, int64_t) const override {
    const at::Tensor sums = scored_.sums(values.log_probabilities);
    const auto on_device = [&](const at::Tensor& tensor) { return tensor.to(sums.device()); };
    const at::Tensor ratios = sums - on_device(reference_);
    at::Tensor beyond = -ratios;
    if (estimate_weights_.defined())
      beyond = (ratios.detach() * on_device(estimate_weights_)).sum().clamp_min(0.0) - ratios;
    // 1 - sigma(x) = sigma(-x), without the cancellation.
    const at::Tensor misses = (beyond * on_device(signs_) * beta_).sigmoid();
    return (misses * on_device(weights_)).sum();
  }

 private:
  ScoredTokens scored_;
  double beta_;
  at::Tensor weights_;           // [S]: of a row in the mean, 0 in the KL estimate
  at::Tensor signs_;             // [S]: 1 desirable, -1 undesirable, 0 in the KL estimate
  at::Tensor estimate_weights_;  // [S]; undefined: z is 0
  at::Tensor reference_;         // [S]
};

}  // namespace

ObjectiveKind kto_kind() {
  ObjectiveKind kind;
  kind.name = "kto";
  kind.summary = "KTO: Kahneman-Tversky optimisation on desirable and undesirable completions";
  kind.source = "arXiv 2402.01306; TRL, KTOTrainer";
  kind.layout = Layout::kLabelled;
  kind.options = {{"loss_type", "kto", "with the KL estimate or without", {"kto", "apo_zero_unpaired"}},
                  {"beta", "0.1", "strength of the pull towards the reference"},
                  {"desirable_weight", "1", "weight of desirable completions"},
                  {"undesirable_weight", "1", "weight of undesirable completions"}};
  kind.make = [](const Batch& batch, const Options& options,
                 const Counts& whole) -> std::unique_ptr<Objective> {
    return std::make_unique<Kto>(batch, options, whole);
  };
  kind.compares_rows = [](const Batch& batch, const Options&) {
    const auto roles = batch.sequence_inputs.find(inputs::kRole);
    return roles != batch.sequence_inputs.end() && roles->second.eq(2.0).any().item<bool>();
  };
  kind.uses_reference = [](const Options&) { return true; };
  kind.adds_router_loss = true;
  return kind;
}

}  // namespace streambp
