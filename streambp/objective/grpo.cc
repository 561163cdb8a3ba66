// GRPO and its relatives. With r = exp(log p - log p_old) of a token, or its sequence's exp(mean over tokens
// of that difference) (GSPO, arXiv 2507.18071), and A its advantage, a token's policy term x is
// - grpo, bnpo, dr_grpo, dapo, luspo: -min(min(r, delta) A, clip(r, 1 - epsilon_low, 1 + epsilon_high) A),
// and
//   where A < 0 at most -clip_ratio_c A. delta: arXiv 2505.07291; clip_ratio_c: dual clip, arXiv 1912.09729.
// - cispo: -min(r, epsilon_high) A log p, the ratio held constant. arXiv 2506.13585, 2510.13786.
// - sapo: -(4 / t) sigma(t (r - 1)) A, t the sapo_temperature of A's sign. arXiv 2511.20347.
// - vespo: -phi A log p with phi = e^lambda w^k e^(-lambda w) held constant, w the ratio of the whole
// sequence
//   (the product over its tokens, within bounds), lambda and k those of A's sign. arXiv 2602.10693.
// It is left out where off_policy_mask_threshold (arXiv 2512.02556) or top_entropy_quantile (arXiv
// 2506.01939) say so, and multiplied by the batch's importance_sampling_ratio (in vespo that is a factor of w
// instead). beta times kl_estimator(log p_ref, log p), which use_bias_correction_kl multiplies by r (arXiv
// 2512.02556), is added. Over the B sequences of the whole batch, the sum of these terms is divided
// - grpo, sapo: by a sequence's tokens (0 without any), and by B. arXiv 2402.03300.
// - bnpo: by the number of tokens. TRL.
// - dr_grpo: by B max_completion_length. arXiv 2503.20783.
// - dapo, cispo, vespo: by num_items_in_batch, by default the number of tokens. arXiv 2503.14476.
// - luspo: by B. arXiv 2602.05261.
// and entropy_coef times the mean entropy of the tokens that top_entropy_quantile keeps is taken off.
// Reference implementation: TRL 1.16, trainer/grpo_trainer.py, GRPOTrainer._compute_loss; dual clip, k1 and
// k2: verl, trainer/ppo/core_algos.py. Without old log-probabilities they are the policy's own, held
// constant. Exponents are cut at kLargestExponent.
#include <algorithm>
#include <cmath>
#include <optional>
#include <tuple>

#include "streambp/error.h"
#include "streambp/objective/kinds.h"
#include "streambp/objective/terms.h"

namespace streambp {
namespace {

// The bounds within which TRL's GRPOTrainer.get_gamma_weights keeps vespo's lambda and the logarithms of
// ratios.
constexpr double kVespoLeastLambda = 1e-4;
constexpr double kVespoLogRatio = 20.0;
const double kVespoLeastLogRatio = std::log(1e-8);
constexpr double kVespoOverflow = 709.0;  // e^710 is no double

/// What a token's term is multiplied by, [M]: the loss is the sum of the products.
at::Tensor token_weights(const ScoredTokens& scored, const Options& options, const Counts& whole) {
  const std::string& type = options.word("loss_type");
  const auto sequences = static_cast<double>(std::max<int64_t>(whole.sequences, 1));
  const auto tokens = static_cast<double>(std::max<int64_t>(whole.scored, 1));
  if (type == "grpo" || type == "sapo") {
    return scored.has_target() / (scored.spread(scored.lengths()) * sequences);
  }
  if (type == "bnpo") return scored.has_target() / tokens;
  if (type == "luspo") return scored.has_target() / sequences;
  if (type != "dr_grpo") {
    const bool given = options.given("num_items_in_batch");
    return scored.has_target() / (given ? options.positive("num_items_in_batch") : tokens);
  }
  if (!options.given("max_completion_length")) {
    throw InputError("grpo: loss_type dr_grpo without max_completion_length, expected a number above 0");
  }
  return scored.has_target() / (sequences * options.positive("max_completion_length"));
}

/// Two numbers for two signs of the advantage.
struct BySign {
  double positive;
  double negative;

  /// One for each token: the first where `is_positive` [m].
  at::Tensor of(const at::Tensor& is_positive) const {
    const at::Tensor share = is_positive.to(at::kDouble);
    return share * positive + (1.0 - share) * negative;
  }
};

class Grpo final : public Objective {
 public:
  Grpo(const Batch& batch, const Options& options, const Counts& whole)
      : scored_("grpo", batch),
        type_(options.word("loss_type")),
        by_sequence_(options.word("importance_sampling_level") == "sequence"),
        corrects_kl_(options.word("use_bias_correction_kl") == "true"),
        kl_estimator_(options.word("kl_estimator")),
        beta_(options.number("beta", 0.0, kInfinity)),
        clip_(clip_range(options)),
        sapo_temperature_{options.positive("sapo_temperature_pos"), options.positive("sapo_temperature_neg")},
        vespo_k_{options.number("vespo_k_pos", 0.0, kInfinity),
                 options.number("vespo_k_neg", 0.0, kInfinity)},
        vespo_lambda_{options.number("vespo_lambda_pos", kVespoLeastLambda, kInfinity),
                      options.number("vespo_lambda_neg", kVespoLeastLambda, kInfinity)},
        top_entropy_quantile_(options.number("top_entropy_quantile", 0.0, 1.0)),
        entropy_coef_(options.number("entropy_coef", 0.0, kInfinity)),
        temperature_(options.positive("temperature")),
        tokens_(static_cast<double>(std::max<int64_t>(whole.scored, 1))),
        weights_(token_weights(scored_, options, whole)),
        advantages_(scored_.token_input(batch, inputs::kAdvantages, scored_.has_target())) {
    if (picks_tokens() && whole != count(batch)) {
      throw InputError(
          "grpo: top_entropy_quantile {} in a part of a batch, expected the whole: it picks among all tokens",
          top_entropy_quantile_);
    }
    if (options.given("off_policy_mask_threshold")) {
      off_policy_mask_threshold_ = options.number("off_policy_mask_threshold", -kInfinity, kInfinity);
    }
    old_ = optional(batch, inputs::kOldLogProbabilities);
    read_sampling(batch);
    ratio_ = optional(batch, inputs::kImportanceSamplingRatio);
    if (type_ == "vespo" && batch.sequence_inputs.contains(inputs::kImportanceSamplingRatio)) {
      throw InputError(
          "grpo: input '{}' has one number a sequence, expected one a token with loss_type vespo",
          inputs::kImportanceSamplingRatio);
    }
    if (ratio_.defined() && ratio_.lt(0.0).any().item<bool>()) {
      throw InputError("grpo: input '{}' holds {}, expected ratios of at least 0",
                       inputs::kImportanceSamplingRatio, ratio_.min().item<double>());
    }
    if (beta_ > 0.0) {
      reference_ = scored_.token_input(batch, inputs::kReferenceLogProbabilities, scored_.has_target());
    }
  }

  std::string name() const override { return "grpo"; }
  bool separable() const override {
    return !by_sequence_ && type_ != "vespo" && !picks_tokens() && !off_policy_mask_threshold_;
  }
  HeadRequest request() const override {
    HeadRequest request;
    request.temperature = temperature_;
    request.entropies = entropy_coef_ > 0.0 || picks_tokens();
    return request;
  }

  at::Tensor loss(const TokenValues& values, int64_t begin, int64_t end) const override {
    const at::Tensor& log_p = values.log_probabilities;
    const at::Tensor advantages = part(advantages_, begin, end, log_p);
    const at::Tensor log_ratio = log_p - (old_.defined() ? part(old_, begin, end, log_p) : log_p.detach());
    const at::Tensor ratio = exp_clamped(by_sequence_ ? sequence_means(log_ratio) : log_ratio);
    const at::Tensor kept = picks_tokens() ? high_entropy(values.entropies) : at::Tensor();

    at::Tensor terms = policy_terms(log_p, log_ratio, ratio, advantages);
    if (off_policy_mask_threshold_) terms = terms * near_policy(log_p, advantages);
    if (kept.defined()) terms = terms * kept;
    if (ratio_.defined() && type_ != "vespo") terms = terms * part(ratio_, begin, end, log_p);
    if (beta_ > 0.0) {
      const at::Tensor kl = kl_estimate(kl_estimator_, part(reference_, begin, end, log_p), log_p);
      terms = terms + (corrects_kl_ ? kl * ratio : kl) * beta_;
    }
    const at::Tensor loss = (terms * part(weights_, begin, end, log_p)).sum();
    if (entropy_coef_ == 0.0) return loss;
    const at::Tensor share = kept.defined() ? kept / kept.sum().clamp_min(1.0)
                                            : part(scored_.has_target(), begin, end, log_p) / tokens_;
    return loss - (values.entropies * share).sum() * entropy_coef_;
  }

 private:
  static ClipRange clip_range(const Options& options) {
    ClipRange range;
    range.low = options.number("epsilon_low", 0.0, kInfinity);
    range.high = options.number("epsilon_high", 0.0, kInfinity);
    const std::string& type = options.word("loss_type");
    for (const auto& [name, bound, least] :
         {std::tuple{"delta", &range.most, 0.0}, std::tuple{"clip_ratio_c", &range.dual, 1.0}}) {
      if (!options.given(name)) continue;
      if (type == "cispo" || type == "sapo" || type == "vespo") {
        throw InputError("grpo: {} with loss_type {}, which has no clipped surrogate, expected none", name,
                         type);
      }
      *bound = least > 0.0 ? options.number(name, least, kInfinity) : options.positive(name);
    }
    return range;
  }

  at::Tensor optional(const Batch& batch, const char* name) const {
    return batch.token_inputs.contains(name) ? scored_.token_input(batch, name, scored_.has_target())
                                             : at::Tensor();
  }

  bool picks_tokens() const { return top_entropy_quantile_ < 1.0; }

  /// Each token's mean over its sequence, [M].
  at::Tensor sequence_means(const at::Tensor& values) const {
    return scored_.spread(scored_.sums(values) / scored_.lengths().to(values.device()));
  }

  at::Tensor policy_terms(const at::Tensor& log_p, const at::Tensor& log_ratio, const at::Tensor& ratio,
                          const at::Tensor& advantages) const {
    if (type_ == "cispo") return -at_most(ratio.detach(), clip_.high) * advantages * log_p;
    if (type_ == "sapo") {
      const at::Tensor temperature = sapo_temperature_.of(advantages.gt(0.0));
      return -at::sigmoid((ratio - 1.0) * temperature) * 4.0 / temperature * advantages;
    }
    if (type_ == "vespo") return -gamma_weights(log_ratio.detach(), advantages) * advantages * log_p;
    return -clipped_surrogate(ratio, advantages, clip_);
  }

  /// vespo's phi of each token's sequence, [M].
  at::Tensor gamma_weights(const at::Tensor& log_ratio, const at::Tensor& advantages) const {
    at::Tensor logs = log_ratio.clamp(-kVespoLogRatio, kVespoLogRatio);
    if (ratio_.defined()) {
      logs = logs + ratio_.log().clamp(kVespoLeastLogRatio, kVespoLogRatio).to(logs.device());
    }
    const at::Tensor log_w = scored_.spread(scored_.sums(logs)).clamp(kVespoLeastLogRatio, kVespoLogRatio);
    const at::Tensor is_positive = advantages.ge(0.0);
    const at::Tensor lambda = vespo_lambda_.of(is_positive);
    const at::Tensor log_phi = lambda + vespo_k_.of(is_positive) * log_w - lambda * log_w.exp();
    // What would overflow counts as nothing, as it does there.
    return at_most(log_phi, kVespoOverflow).exp() * log_phi.le(kVespoOverflow).to(at::kDouble);
  }

  /// NaN stands for what is not known of a token, which TRL lets drift by nothing.
  void read_sampling(const Batch& batch) {
    const auto found = batch.token_inputs.find(inputs::kSamplingLogProbabilities);
    if (found == batch.token_inputs.end()) return;
    if (found->second.dim() == 1 && found->second.size(0) == batch.size() &&
        found->second.isnan().any().item<bool>())
      known_ = scored_.at_scored(found->second).isnan().logical_not().to(at::kDouble);
    sampling_ = scored_.token_input(batch, inputs::kSamplingLogProbabilities,
                                    known_.defined() ? scored_.has_target() * known_ : scored_.has_target());
  }

  /// 1 or 0 for each token, [M]: 0 if its advantage is negative and its sequence has become, on average, less
  /// likely than it was when it was sampled by more than the threshold.
  at::Tensor near_policy(const at::Tensor& log_p, const at::Tensor& advantages) const {
    const at::Tensor& sampling = sampling_.defined() ? sampling_ : old_;
    const at::Tensor policy = log_p.detach();
    at::Tensor drifts = sampling.defined() ? sampling.to(policy.device()) - policy : at::zeros_like(policy);
    if (known_.defined()) drifts = drifts * known_.to(policy.device());
    const at::Tensor drift = sequence_means(drifts);
    return (advantages.ge(0.0) | drift.le(*off_policy_mask_threshold_)).to(at::kDouble);
  }

  /// 1 for the tokens whose entropies [M] are at least their (1 - top_entropy_quantile)-quantile, by linear
  /// interpolation as in torch.quantile; else 0.
  at::Tensor high_entropy(const at::Tensor& entropies) const {
    const at::Tensor has_target = scored_.has_target().to(entropies.device());
    const at::Tensor given = entropies.detach();
    const auto targets = scored_.has_target().count_nonzero().item<int64_t>();
    if (targets == 0) return has_target;
    // Entropies are not negative: what has no target comes first.
    const at::Tensor sorted = std::get<0>((given * has_target + (has_target - 1.0)).sort())
                                  .narrow(0, scored_.size() - targets, targets);
    double rank = (1.0 - top_entropy_quantile_) * static_cast<double>(targets - 1);
    // The quantile of 0.3 of 11 tokens is the fourth, though 1 - 0.7 is a little more than 0.3.
    if (std::abs(rank - std::round(rank)) <= 1e-9) rank = std::round(rank);
    const auto below = static_cast<int64_t>(rank);
    at::Tensor threshold = sorted.narrow(0, below, 1);
    const double beyond = rank - static_cast<double>(below);
    if (beyond > 0.0) threshold = threshold + (sorted.narrow(0, below + 1, 1) - threshold) * beyond;
    return given.ge(threshold).to(at::kDouble) * has_target;
  }

  ScoredTokens scored_;
  std::string type_;
  bool by_sequence_;
  bool corrects_kl_;
  std::string kl_estimator_;
  double beta_;
  ClipRange clip_;
  BySign sapo_temperature_;
  BySign vespo_k_;
  BySign vespo_lambda_;
  double top_entropy_quantile_;
  std::optional<double> off_policy_mask_threshold_;
  double entropy_coef_;
  double temperature_;
  double tokens_;          // with a target, of the whole batch, at least 1
  at::Tensor weights_;     // [M]
  at::Tensor advantages_;  // [M]
  at::Tensor old_;         // [M]; undefined: the policy's own
  at::Tensor sampling_;    // [M]; undefined: the old ones
  at::Tensor known_;       // [M], 1 or 0: whether they are known of a token; undefined: of all
  at::Tensor ratio_;       // [M]; undefined: 1
  at::Tensor reference_;   // [M]; undefined: beta is 0
};

}  // namespace

ObjectiveKind grpo_kind() {
  ObjectiveKind kind;
  kind.name = "grpo";
  kind.summary = "GRPO and its relatives: policy gradient with group advantages";
  kind.source = "arXiv 2402.03300; TRL, GRPOTrainer";
  kind.layout = Layout::kCompletions;
  kind.options = {
      {"loss_type",
       "grpo",
       "a token's policy term, and how terms are averaged",
       {"grpo", "bnpo", "dr_grpo", "dapo", "cispo", "sapo", "luspo", "vespo"}},
      {"importance_sampling_level", "token", "ratios of tokens or of sequences", {"token", "sequence"}},
      {"epsilon_low", "0.2", "ratios are clipped below 1 minus this"},
      {"epsilon_high", "0.2", "ratios are clipped above 1 plus this; cispo: above this itself"},
      {"delta", "", "largest ratio, where a negative advantage leaves it unclipped"},
      {"clip_ratio_c", "", "dual clip: largest ratio that a negative advantage pays for"},
      {"sapo_temperature_pos", "1", "sapo: steepness of the gate where the advantage is positive"},
      {"sapo_temperature_neg", "1.05", "sapo: the same elsewhere"},
      {"vespo_k_pos", "2", "vespo: power of the sequence's ratio where the advantage is not negative"},
      {"vespo_k_neg", "3", "vespo: the same elsewhere"},
      {"vespo_lambda_pos", "3", "vespo: decay with the sequence's ratio where the advantage is not negative"},
      {"vespo_lambda_neg", "2", "vespo: the same elsewhere"},
      {"top_entropy_quantile", "1",
       "share of the batch's tokens, those of highest entropy, whose terms count"},
      {"off_policy_mask_threshold", "",
       "leave out sequences of negative advantage that drifted by more than this (nats a token)"},
      {"entropy_coef", "0", "weight of the entropy bonus"},
      {"beta", "0", "weight of the KL divergence from the reference"},
      kl_estimator_option(),
      {"use_bias_correction_kl", "false", "multiply it by the ratio", {"false", "true"}},
      {"temperature", "1", "the logits are divided by it"},
      {"max_completion_length", "", "divisor of dr_grpo, with the number of sequences"},
      {"num_items_in_batch", "", "divisor of dapo, cispo and vespo; default: the tokens of the whole batch"}};
  kind.make = [](const Batch& batch, const Options& options,
                 const Counts& whole) -> std::unique_ptr<Objective> {
    return std::make_unique<Grpo>(batch, options, whole);
  };
  kind.compares_rows = [](const Batch&, const Options& options) {
    return options.number("top_entropy_quantile", 0.0, 1.0) < 1.0;
  };
  kind.uses_reference = [](const Options& options) { return options.number("beta", 0.0, kInfinity) > 0.0; };
  kind.adds_router_loss = true;  // TRL: GRPOTrainer and RLOOTrainer, whatever output_router_logits says
  return kind;
}

}  // namespace streambp
