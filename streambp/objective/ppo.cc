// PPO with a value head. With r = exp(log p - log p_old), A the advantage, v a value and R its return, the
// loss is policy + vf_coef * value:
// - policy: mean over the tokens with a target of max(-A r, -A clip(r, 1 - cliprange, 1 + cliprange)), where
//   A < 0 at most -A clip_ratio_c (dual clip, arXiv 1912.09729), - entropy_coef * entropy + kl_coef *
//   kl_estimator(log p_ref, log p)
// - value: half the mean over the tokens asked for a value of max((v - R)^2, (v_clipped - R)^2), v_clipped =
//   clip(v, v_old - cliprange_value, v_old + cliprange_value)
// arXiv 1707.06347, equations 7 and 9; TRL 1.12, experimental/ppo/ppo_trainer.py, PPOTrainer.train, which
// also divides the logits by its temperature + 1e-7. Dual clip, entropy and KL, which TRL's loss has not:
// verl, trainer/ppo/core_algos.py (whose k3 is also cut at 10). Exponents are cut at kLargestExponent. A
// batch without a target is a critic's: its loss is the value part.
#include <algorithm>

#include "streambp/error.h"
#include "streambp/objective/kinds.h"
#include "streambp/objective/terms.h"

namespace streambp {
namespace {

class Ppo final : public Objective {
 public:
  Ppo(const Batch& batch, const Options& options, const Counts& whole)
      : clip_{.low = options.number("cliprange", 0.0, kInfinity),
              .high = options.number("cliprange", 0.0, kInfinity),
              .dual =
                  options.given("clip_ratio_c") ? options.number("clip_ratio_c", 1.0, kInfinity) : kInfinity},
        cliprange_value_(options.number("cliprange_value", 0.0, kInfinity)),
        vf_coef_(options.number("vf_coef", 0.0, kInfinity)),
        entropy_coef_(options.number("entropy_coef", 0.0, kInfinity)),
        kl_coef_(options.number("kl_coef", 0.0, kInfinity)),
        kl_estimator_(options.word("kl_estimator")),
        temperature_(options.positive("temperature")) {
    const ScoredTokens scored("ppo", batch);
    const Counts own = count(batch);
    has_policy_ = own.scored > 0;
    if (has_policy_) {
      const auto input = [&](const char* name) {
        return scored.token_input(batch, name, scored.has_target());
      };
      advantages_ = input(inputs::kAdvantages);
      old_ = input(inputs::kOldLogProbabilities);
      if (kl_coef_ > 0.0) reference_ = input(inputs::kReferenceLogProbabilities);
      policy_weights_ = scored.has_target() / static_cast<double>(whole.scored);
    }
    if (vf_coef_ > 0.0) {
      if (!batch.value_mask.defined()) {
        throw InputError(
            "ppo: value_mask is missing, expected the tokens that are asked for a value, or vf_coef 0");
      }
      old_values_ = scored.token_input(batch, inputs::kOldValues, scored.has_value());
      returns_ = scored.token_input(batch, inputs::kReturns, scored.has_value());
      value_weights_ =
          scored.has_value() * (0.5 * vf_coef_ / static_cast<double>(std::max<int64_t>(whole.valued, 1)));
    } else if (!has_policy_ && own.valued > 0) {
      throw InputError("ppo: vf_coef is 0 on a batch of values alone, expected a number above 0");
    }
  }

  std::string name() const override { return "ppo"; }
  bool separable() const override { return true; }
  HeadRequest request() const override {
    HeadRequest request;
    request.log_probabilities = has_policy_;
    request.log_probabilities = has_policy_;
    request.temperature = temperature_;
    request.values = vf_coef_ > 0.0;
    request.entropies = has_policy_ && entropy_coef_ > 0.0;
    return request;
  }

  at::Tensor loss(const TokenValues& values, int64_t begin, int64_t end) const override {
    if (!has_policy_) return value_loss(values.values, begin, end);
    const at::Tensor policy = policy_loss(values, begin, end);
    return vf_coef_ > 0.0 ? policy + value_loss(values.values, begin, end) : policy;
  }

 private:
  at::Tensor policy_loss(const TokenValues& values, int64_t begin, int64_t end) const {
    const at::Tensor& log_p = values.log_probabilities;
    const at::Tensor ratio = exp_clamped(log_p - part(old_, begin, end, log_p));
    at::Tensor terms = -clipped_surrogate(ratio, part(advantages_, begin, end, log_p), clip_);
    if (entropy_coef_ > 0.0) terms = terms - values.entropies * entropy_coef_;
    if (kl_coef_ > 0.0) {
      terms = terms + kl_estimate(kl_estimator_, part(reference_, begin, end, log_p), log_p) * kl_coef_;
    }
    return (terms * part(policy_weights_, begin, end, log_p)).sum();
  }

  at::Tensor value_loss(const at::Tensor& v, int64_t begin, int64_t end) const {
    const at::Tensor old = part(old_values_, begin, end, v);
    const at::Tensor clipped = old + between(v - old, -cliprange_value_, cliprange_value_);
    const at::Tensor target = part(returns_, begin, end, v);
    const at::Tensor terms = larger((v - target).square(), (clipped - target).square());
    return (terms * part(value_weights_, begin, end, v)).sum();
  }

  ClipRange clip_;
  double cliprange_value_;
  double vf_coef_;
  double entropy_coef_;
  double kl_coef_;
  std::string kl_estimator_;
  double temperature_;
  bool has_policy_ = false;
  // [M] each, undefined where the options or the batch leave them out
  at::Tensor policy_weights_, advantages_, old_, reference_;
  at::Tensor value_weights_, old_values_, returns_;
};

}  // namespace

ObjectiveKind ppo_kind() {
  ObjectiveKind kind;
  kind.name = "ppo";
  kind.summary = "PPO: clipped policy gradient with a clipped value loss";
  kind.source = "arXiv 1707.06347; TRL, PPOTrainer";
  kind.layout = Layout::kResponses;
  kind.options = {{"cliprange", "0.2", "ratios are clipped this far from 1"},
                  {"clip_ratio_c", "", "dual clip: largest ratio that a negative advantage pays for"},
                  {"cliprange_value", "0.2", "values are clipped this far from the old ones"},
                  {"vf_coef", "0.1", "weight of the value loss; 0: no value head"},
                  {"entropy_coef", "0", "weight of the entropy bonus"},
                  {"kl_coef", "0", "weight of the KL divergence from the reference"},
                  kl_estimator_option(),
                  {"temperature", "1", "the logits are divided by it"}};
  kind.make = [](const Batch& batch, const Options& options,
                 const Counts& whole) -> std::unique_ptr<Objective> {
    return std::make_unique<Ppo>(batch, options, whole);
  };
  kind.uses_reference = [](const Options& options) {
    return options.number("kl_coef", 0.0, kInfinity) > 0.0;
  };
  return kind;
}

}  // namespace streambp
