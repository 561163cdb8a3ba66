// Direct preference optimisation on pairs of a chosen and a rejected completion of one prompt. With s the sum
// of a completion's log-probabilities, l_c = s_chosen - s_reference,chosen, l_r likewise, scores f_c = f(l_c)
// and f_r = f(l_r), z = beta (f_c - f_r), |.| a completion's tokens (see mean_over) and e the
// label_smoothing, the loss is the mean over pairs of
// - sigmoid: -(1 - c) log sigma(z) - c log sigma(-z), c the cdpo_label_smoothing. arXiv 2305.18290, equation
//   7; c > 0: conservative DPO, which TRL no longer has: its label_smoothing does not touch this loss.
// - sigmoid_norm: -log sigma(beta (f_c / |chosen| - f_r / |rejected|)). arXiv 2411.15124, section 5.
// - hinge: max(0, 1 - z). arXiv 2305.10425 (SLiC), as in arXiv 2309.06657.
// - ipo: (f_c / |chosen| - f_r / |rejected| - 1 / (2 beta))^2. arXiv 2310.12036, averaged over tokens as in
//   TRL.
// - robust: [-(1 - e) log sigma(z) + e log sigma(-z)] / (1 - 2 e). arXiv 2403.00409.
// - exo_pair: sigma(z) [log sigma(z) - log(1 - e)] + sigma(-z) [log sigma(-z) - log e]. arXiv 2402.00856, 16.
// - nca_pair: -log sigma(beta l_c) - log sigma(-beta l_c) / 2 - log sigma(-beta l_r) / 2. arXiv 2402.05369.
// - bco_pair: -log sigma(beta l_c) - log sigma(-beta l_r). arXiv 2404.04656, without the shift, as in TRL.
// - sppo_hard: (l_c - 1 / (2 beta))^2 + (l_r + 1 / (2 beta))^2. arXiv 2405.00675, equation 4.7.
// - aot, aot_unpaired: sigmoid of the margins, each side sorted over the batch: policy's against reference's,
//   or l_c against l_r. arXiv 2406.05882.
// - apo_zero: sigma(-beta l_c) + sigma(beta l_r); apo_down: sigma(beta l_c) + sigma(-beta (l_c - l_r)).
//   arXiv 2408.06266, equations 7 and 8.
// - discopop: -log sigma(z) (1 - m) + e^-z m, m = sigma(z / tau). arXiv 2406.08414, equation 5.
// - sft: the mean over the chosen completions' tokens of -log p.
//
// Several are added up with loss_weights (MPO, arXiv 2411.10442). f is the derivative of the divergence's
// generator in log-ratios (arXiv 2309.16240): l (reverse_kl), 1 - e^-l (forward_kl), log 2 + log sigma(l)
// (js_divergence) or (e^((a - 1) l) - 1) / (a - 1) (alpha_divergence). ld_alpha multiplies the
// log-probabilities of tokens beyond the shorter completion's length (LD-DPO, arXiv 2409.06411);
// use_weighting multiplies a pair's loss by both completions' exp(mean over tokens of log p - log sum_v
// p_v^2), held constant (WPO, arXiv 2406.11827).
//
// Reference implementation: TRL 1.16, trainer/dpo_trainer.py, which takes |.| from completion_mask before it
// is shifted: where a row begins with its completion (truncation_mode keep_end) that is one more than are
// scored. WPO's mean and sft's are over scored tokens. An empty completion has |.| = 1. Reference-free: the
// reference's sums are 0. Exponents end at kLargestExponent.
#include <algorithm>

#include "streambp/error.h"
#include "streambp/objective/kinds.h"
#include "streambp/objective/preference_losses.h"
#include "streambp/objective/terms.h"

namespace streambp {
namespace {

bool is_true(const Options& options, const char* name) {
  return options.word(name) == "true";
}

/// f of log-ratios, by f_divergence_type.
class FDivergence {
 public:
  explicit FDivergence(const Options& options)
      : type_(options.word("f_divergence_type")),
        power_(options.number("f_alpha_divergence_coef", -kInfinity, kInfinity) - 1.0) {
    if (type_ == "alpha_divergence" && std::abs(power_) < 1e-6) type_ = "reverse_kl";  // its limit
  }

  bool is_plain() const { return type_ == "reverse_kl"; }

  at::Tensor of(const at::Tensor& ratios) const {
    if (type_ == "forward_kl") return 1.0 - exp_clamped(-ratios);
    if (type_ == "js_divergence") return stable_log_sigmoid(ratios) + std::log(2.0);
    if (type_ == "alpha_divergence") return (exp_clamped(ratios * power_) - 1.0) / power_;
    return ratios;
  }

 private:
  std::string type_;
  double power_;
};

class Dpo final : public Objective {
 public:
  Dpo(const Batch& batch, const Options& options, const Counts& whole)
      : scored_("dpo", batch),
        pairs_(number_of_pairs("dpo", scored_.sequences())),
        losses_(options.words("loss_type")),
        loss_weights_(losses_.size(), 1.0),
        scoring_(options),
        weighs_(is_true(options, "use_weighting")) {
    divisor_ = static_cast<double>(number_of_pairs("dpo", whole.sequences));
    whole_chosen_ = static_cast<double>(std::max<int64_t>(whole.chosen, 1));
    settings_.discopop_tau = options.positive("discopop_tau");
    settings_.label_smoothing = options.number("label_smoothing", 0.0, 1.0);
    settings_.sigmoid_smoothing = options.number("cdpo_label_smoothing", 0.0, 1.0);
    lengths_ = scored_.lengths();
    if (options.word("mean_over") == "completion_mask" &&
        batch.sequence_inputs.contains(inputs::kCompletionTokens))
      lengths_ = scored_.sequence_input(batch, inputs::kCompletionTokens).clamp_min(1.0);
    if (options.given("loss_weights")) loss_weights_ = options.numbers("loss_weights");
    if (loss_weights_.size() != losses_.size()) {
      throw InputError("dpo: {} loss_weights for {} losses in loss_type, expected one each",
                       loss_weights_.size(), losses_.size());
    }
    check_losses(options, whole == count(batch));
    const bool needs_beta = std::any_of(losses_.begin(), losses_.end(), [](const std::string& name) {
      return pair_losses().at(name).needs_beta;
    });
    settings_.beta = needs_beta ? options.positive("beta") : options.number("beta", 0.0, kInfinity);
    if (options.given("ld_alpha")) token_weights_ = length_weights(options.number("ld_alpha", 0.0, 1.0));
    if (!is_true(options, "reference_free")) reference_ = scored_.reference_sums(batch, token_weights_);
  }

  std::string name() const override { return "dpo"; }
  bool separable() const override { return false; }
  HeadRequest request() const override {
    HeadRequest request;
    request.log_sum_squares = weighs_;
    return request;
  }

  at::Tensor loss(const TokenValues& values, int64_t, int64_t) const override {
    const at::Tensor& log_p = values.log_probabilities;
    const auto on_device = [&](const at::Tensor& tensor) { return tensor.to(log_p.device()); };
    const auto chosen = [&](const at::Tensor& rows) { return rows.narrow(0, 0, pairs_); };
    const auto rejected = [&](const at::Tensor& rows) { return rows.narrow(0, pairs_, pairs_); };
    const auto margins = [&](const at::Tensor& rows) { return chosen(rows) - rejected(rows); };
    const at::Tensor sums =
        scored_.sums(token_weights_.defined() ? log_p * on_device(token_weights_) : log_p);
    const at::Tensor reference = reference_.defined() ? on_device(reference_) : at::zeros_like(sums);
    const at::Tensor ratios = sums - reference;
    const at::Tensor scores = scoring_.of(ratios);
    const PairScores pairs{
        chosen(ratios), rejected(ratios), margins(scores), margins(scores / on_device(lengths_)),
        margins(sums), margins(reference),
        // Of this part of the batch: over its pairs, since the sum below is divided by those of all.
        (chosen(scored_.sums(log_p)).sum() *
         (-divisor_ / static_cast<double>(std::max<int64_t>(pairs_, 1)) / whole_chosen_))
            .expand({pairs_})};
    at::Tensor terms = at::zeros({pairs_}, sums.options());
    for (size_t i = 0; i < losses_.size(); ++i)
      terms = terms + pair_losses().at(losses_[i]).terms(pairs, settings_) * loss_weights_[i];
    if (weighs_) {
      const at::Tensor aligned = scored_.sums(log_p.detach() - values.log_sum_squares.detach());
      const at::Tensor weights = (aligned / on_device(scored_.lengths())).exp();
      terms = terms * (chosen(weights) * rejected(weights));
    }
    return terms.sum() / divisor_;
  }

 private:
  void check_losses(const Options& options, bool is_whole) const {
    bool smooths = false, sorts = false;
    for (const std::string& name : losses_) {
      const PairLoss& loss = pair_losses().at(name);
      if ((losses_.size() == 1 && name != "sigmoid") || name == "exo_pair" || name == "robust")
        check_smoothing("dpo", name, settings_.label_smoothing);
      if (!loss.takes_divergence && !scoring_.is_plain()) {
        throw InputError("dpo: f_divergence_type is {}, expected reverse_kl with loss_type {}",
                         options.word("f_divergence_type"), name);
      }
      if ((loss.sorts || name == "sft") && weighs_)
        throw InputError("dpo: use_weighting is true, but {} has no loss for each pair that it could weigh",
                         name);
      smooths = smooths || (loss.smooths && name != "sigmoid");
      sorts = sorts || loss.sorts;
    }
    const bool has_sigmoid = std::find(losses_.begin(), losses_.end(), "sigmoid") != losses_.end();
    if (settings_.label_smoothing != 0.0 && !smooths) {
      throw InputError(
          "dpo: label_smoothing is {}, expected 0 with loss_type {}{}", settings_.label_smoothing,
          options.word("loss_type"),
          has_sigmoid ? ", of which TRL ignores it; conservative DPO is cdpo_label_smoothing" : "");
    }
    if (settings_.sigmoid_smoothing != 0.0 && !has_sigmoid) {
      throw InputError("dpo: cdpo_label_smoothing is {}, expected 0 with loss_type {}: it smooths sigmoid",
                       settings_.sigmoid_smoothing, options.word("loss_type"));
    }
    if (!is_whole && sorts) {
      throw InputError("dpo: a part of a batch, expected the whole with loss_type {}: it sorts the pairs",
                       options.word("loss_type"));
    }
  }

  /// [M]: 1 up to the length of the shorter completion of a pair, `alpha` beyond.
  at::Tensor length_weights(double alpha) const {
    const at::Tensor lengths = scored_.sums(at::ones_like(scored_.has_target()));
    const at::Tensor shared =
        at::minimum(lengths.narrow(0, 0, pairs_), lengths.narrow(0, pairs_, pairs_)).repeat(2);
    const at::Tensor beyond = scored_.ranks().gt(scored_.spread(shared));
    return at::ones_like(scored_.has_target()).masked_fill_(beyond, alpha);
  }

  ScoredTokens scored_;
  int64_t pairs_;
  std::vector<std::string> losses_;
  std::vector<double> loss_weights_;
  FDivergence scoring_;
  bool weighs_;
  PairLossSettings settings_;
  at::Tensor lengths_;  // [S]: what ipo and sigmoid_norm divide by
  double divisor_ = 1.0;
  double whole_chosen_ = 1.0;
  at::Tensor token_weights_;  // [M]; undefined: 1
  at::Tensor reference_;      // [S]; undefined: reference-free
};

}  // namespace

ObjectiveKind dpo_kind() {
  ObjectiveKind kind;
  kind.name = "dpo";
  kind.summary = "direct preference optimisation on pairs";
  kind.source = "arXiv 2305.18290; TRL, DPOTrainer";
  kind.layout = Layout::kPairs;
  std::vector<std::string> losses;
  for (const auto& [name, loss] : pair_losses()) losses.push_back(name);
  kind.options = {
      {"loss_type", "sigmoid", "the loss of a pair, or several", losses, /*is_list=*/true},
      {"loss_weights", "", "what several are multiplied by, with '+' between the numbers; 1 each"},
      {"beta", "0.1", "strength of the pull towards the reference"},
      {"label_smoothing", "0", "TRL's: probability that a label is wrong (robust, exo_pair, aot)"},
      {"cdpo_label_smoothing", "0", "the same of sigmoid: conservative DPO's, which TRL no longer has"},
      {"mean_over",
       "completion_mask",
       "the tokens that ipo and sigmoid_norm average over: all of completion_mask, as TRL, or the scored "
       "ones",
       {"completion_mask", "scored"}},
      {"f_divergence_type",
       "reverse_kl",
       "what holds the policy to the reference",
       {"reverse_kl", "forward_kl", "js_divergence", "alpha_divergence"}},
      {"f_alpha_divergence_coef", "0.5", "of alpha_divergence"},
      {"ld_alpha", "", "weight of the tokens beyond the shorter completion's length, from 0 to 1"},
      {"use_weighting", "false", "weigh pairs by the policy's own probabilities (WPO)", {"false", "true"}},
      {"discopop_tau", "0.05", "temperature of discopop"},
      {"reference_free", "false", "take the reference's log-probabilities for 0", {"false", "true"}}};
  kind.make = [](const Batch& batch, const Options& options,
                 const Counts& whole) -> std::unique_ptr<Objective> {
    return std::make_unique<Dpo>(batch, options, whole);
  };
  kind.compares_rows = [](const Batch&, const Options& options) {
    const std::vector<std::string> names = options.words("loss_type");
    return std::any_of(names.begin(), names.end(),
                       [](const std::string& name) { return pair_losses().at(name).sorts; });
  };
  kind.uses_reference = [](const Options& options) { return !is_true(options, "reference_free"); };
  kind.adds_router_loss = true;
  return kind;
}

}  // namespace streambp
