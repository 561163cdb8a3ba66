// GRPO and its relatives. With r = exp(log p - log p_old) of a token, or its sequence's exp(mean over tokens
// of that difference) (GSPO), and A its advantage, a token's term is
//
//     x = -min(min(r, delta) A, clip(r, 1 - epsilon_low, 1 + epsilon_high) A) + beta k3(log p_ref, log p)
//
// and the loss, over the B sequences of the whole batch,
// - grpo: (1/B) sum over sequences of the mean of x over their tokens, 0 without tokens. arXiv 2402.03300.
// - bnpo: the mean of x over tokens. TRL.
// - dr_grpo: the sum of x / (B max_completion_length). arXiv 2503.20783.
// - dapo: the sum of x / num_items_in_batch, by default the number of tokens. arXiv 2503.14476.
// Sequence-level ratios: arXiv 2507.18071; delta: arXiv 2505.07291. Reference implementation: TRL,
// trainer/grpo_trainer.py, GRPOTrainer._compute_loss. Without old log-probabilities they are the policy's
// own, held constant. Exponents are cut at kLargestExponent.
#include <algorithm>

#include "streambp/error.h"
#include "streambp/objective/kinds.h"
#include "streambp/objective/terms.h"

namespace streambp {
namespace {

/// What a token's term is multiplied by, [M]: the loss is the sum of the products.
at::Tensor token_weights(const ScoredTokens& scored, const Options& options, const Counts& whole) {
  const std::string& type = options.word("loss_type");
  const auto sequences = static_cast<double>(std::max<int64_t>(whole.sequences, 1));
  const auto tokens = static_cast<double>(std::max<int64_t>(whole.scored, 1));
  if (type == "grpo") return scored.has_target() / (scored.spread(scored.lengths()) * sequences);
  if (type == "bnpo") return scored.has_target() / tokens;
  if (type == "dapo") {
    const bool given = options.given("num_items_in_batch");
    return scored.has_target() / (given ? options.positive("num_items_in_batch") : tokens);
  }
  if (!options.given("max_completion_length")) {
    throw InputError("grpo: loss_type dr_grpo without max_completion_length, expected a number above 0");
  }
  return scored.has_target() / (sequences * options.positive("max_completion_length"));
}

class Grpo final : public Objective {
 public:
  Grpo(const Batch& batch, const Options& options, const Counts& whole)
      : scored_("grpo", batch),
        by_sequence_(options.word("importance_sampling_level") == "sequence"),
        beta_(options.number("beta", 0.0, kInfinity)),
        low_(options.number("epsilon_low", 0.0, kInfinity)),
        high_(options.number("epsilon_high", 0.0, kInfinity)),
        most_(options.given("delta") ? options.positive("delta") : kInfinity),
        temperature_(options.positive("temperature")),
        weights_(token_weights(scored_, options, whole)),
        advantages_(scored_.token_input(batch, inputs::kAdvantages, scored_.has_target())) {
    const auto optional = [&](const char* name) {
      return batch.token_inputs.contains(name) ? scored_.token_input(batch, name, scored_.has_target())
                                               : at::Tensor();
    };
    old_ = optional(inputs::kOldLogProbabilities);
    if (beta_ > 0.0) {
      reference_ = scored_.token_input(batch, inputs::kReferenceLogProbabilities, scored_.has_target());
    }
  }

  std::string name() const override { return "grpo"; }
  bool separable() const override { return !by_sequence_; }
  HeadRequest request() const override {
    HeadRequest request;
    request.temperature = temperature_;
    return request;
  }

  at::Tensor loss(const TokenValues& values, int64_t begin, int64_t end) const override {
    const at::Tensor& log_p = values.log_probabilities;
    at::Tensor exponents = log_p - (old_.defined() ? part(old_, begin, end, log_p) : log_p.detach());
    if (by_sequence_) {
      exponents = scored_.spread(scored_.sums(exponents) / scored_.lengths().to(log_p.device()));
    }
    at::Tensor terms =
        -clipped_surrogate(exp_clamped(exponents), part(advantages_, begin, end, log_p), low_, high_, most_);
    if (beta_ > 0.0) terms = terms + k3(part(reference_, begin, end, log_p), log_p) * beta_;
    return (terms * part(weights_, begin, end, log_p)).sum();
  }

 private:
  ScoredTokens scored_;
  bool by_sequence_;
  double beta_;
  double low_;
  double high_;
  double most_;
  double temperature_;
  at::Tensor weights_;     // [M]
  at::Tensor advantages_;  // [M]
  at::Tensor old_;         // [M]; undefined: the policy's own
  at::Tensor reference_;   // [M]; undefined: beta is 0
};

}  // namespace

ObjectiveKind grpo_kind() {
  ObjectiveKind kind;
  kind.name = "grpo";
  kind.summary = "GRPO, DAPO, Dr. GRPO, BNPO and GSPO: clipped policy gradient with group advantages";
  kind.source = "arXiv 2402.03300; TRL, GRPOTrainer";
  kind.layout = Layout::kCompletions;
  kind.options = {
      {"loss_type", "grpo", "how terms are averaged", {"grpo", "bnpo", "dr_grpo", "dapo"}},
      {"importance_sampling_level", "token", "ratios of tokens or of sequences", {"token", "sequence"}},
      {"epsilon_low", "0.2", "ratios are clipped below 1 minus this"},
      {"epsilon_high", "0.2", "ratios are clipped above 1 plus this"},
      {"delta", "", "largest ratio, where a negative advantage leaves it unclipped"},
      {"beta", "0", "weight of the KL divergence from the reference"},
      {"temperature", "1", "the logits are divided by it"},
      {"max_completion_length", "", "divisor of dr_grpo, with the number of sequences"},
      {"num_items_in_batch", "", "divisor of dapo; default: the tokens of the whole batch"}};
  kind.make = [](const Batch& batch, const Options& options,
                 const Counts& whole) -> std::unique_ptr<Objective> {
    return std::make_unique<Grpo>(batch, options, whole);
  };
  kind.uses_reference = [](const Options& options) { return options.number("beta", 0.0, kInfinity) > 0.0; };
  return kind;
}

}  // namespace streambp
