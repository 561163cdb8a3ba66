#include "verify/reference_objective.h"

#include <algorithm>
#include <functional>
#include <optional>
#include <stdexcept>
#include <vector>

#include "reference/objectives/objectives.h"
#include "streambp/model/scored.h"
#include "streambp/objective/terms.h"

namespace streambp::verify {
namespace {

using Numbers = std::vector<double>;

Numbers numbers_of(const at::Tensor& tensor) {
  const at::Tensor wide = tensor.to(at::kCPU, at::kDouble).contiguous();
  return {wide.const_data_ptr<double>(), wide.const_data_ptr<double>() + wide.numel()};
}

/// A batch's inputs at its scored tokens, and the objective's options.
class Source {
 public:
  Source(const Batch& batch, const Options& options, const reference::Matrix& teacher_logits)
      : batch_(batch), options_(options), teacher_logits_(teacher_logits), indices_(scored_indices(batch)) {
    layout_.sequences = static_cast<int>(batch.offsets.size()) - 1;
    for (const double index : numbers_of(indices_)) {
      const auto next =
          std::upper_bound(batch.offsets.begin(), batch.offsets.end(), static_cast<int64_t>(index));
      layout_.sequence_of_token.push_back(static_cast<int>(next - batch.offsets.begin()) - 1);
    }
  }

  const reference::TokenLayout& layout() const { return layout_; }
  const reference::Matrix& teacher_logits() const { return teacher_logits_; }
  bool has(const char* name) const { return options_.has(name); }
  std::string word(const char* name) const { return options_.word(name); }
  std::vector<std::string> words(const char* name) const { return options_.words(name); }
  Numbers numbers(const char* name) const { return options_.numbers(name); }
  bool given(const char* name) const { return options_.given(name); }
  double number(const char* name) const { return options_.number(name, -kInfinity, kInfinity); }
  std::optional<double> optional(const char* name) const {
    return given(name) ? std::optional(number(name)) : std::nullopt;
  }

  Numbers has_target() const { return at_scored(batch_.targets.ne(kNoTarget)); }
  Numbers has_value() const {
    return batch_.value_mask.defined() ? at_scored(batch_.value_mask) : Numbers(layout_.tokens(), 0.0);
  }
  double scored() const { return std::max(batch_.targets.ne(kNoTarget).sum().item<double>(), 1.0); }

  /// Of the objectives with a reduction and a divisor.
  double divisor() const {
    return given("divisor") ? number("divisor") : word("reduction") == "sum" ? 1.0 : scored();
  }

  /// Empty where the batch has no such input.
  Numbers tokens(const char* name) const {
    const auto found = batch_.token_inputs.find(name);
    return found == batch_.token_inputs.end() ? Numbers() : at_scored(found->second);
  }
  /// The same, with as many zeros instead.
  Numbers tokens_or_zeros(const char* name) const {
    Numbers numbers = tokens(name);
    numbers.resize(layout_.tokens());
    return numbers;
  }
  Numbers sequences(const char* name) const { return numbers_of(batch_.sequence_inputs.at(name)); }
  bool has_sequences(const char* name) const { return batch_.sequence_inputs.contains(name); }
  Numbers sequences_if_any(const char* name) const {
    return has_sequences(name) ? sequences(name) : Numbers();
  }
  /// Given as such, or per token, then each times its entry of `weights` (empty: 1).
  Numbers reference_sums(const Numbers& weights = {}) const {
    if (has_sequences(inputs::kReferenceSums)) return sequences(inputs::kReferenceSums);
    Numbers tokens = tokens_or_zeros(inputs::kReferenceLogProbabilities);
    for (size_t t = 0; t < weights.size(); ++t) tokens.at(t) *= weights[t];
    return reference::sum_by_sequence(layout_, tokens);
  }

  /// The layout of a batch of pairs with all tokens of the chosen sequences scored but their first, and of
  /// each whether it is scored without that.
  std::pair<reference::TokenLayout, Numbers> with_chosen_prompts() const {
    reference::TokenLayout layout{layout_.sequences, {}};
    Numbers scored;
    const Numbers targets = numbers_of(batch_.targets);
    for (int i = 0; i < layout.sequences; ++i) {
      const int64_t begin = batch_.offsets[static_cast<size_t>(i)];
      const int64_t end = batch_.offsets[static_cast<size_t>(i) + 1];
      for (int64_t t = begin; t < end; ++t) {
        const bool is_scored = targets[static_cast<size_t>(t)] != static_cast<double>(kNoTarget);
        if (!is_scored && !(i < layout.sequences / 2 && t + 1 < end)) continue;
        layout.sequence_of_token.push_back(i);
        scored.push_back(is_scored ? 1.0 : 0.0);
      }
    }
    return {layout, scored};
  }

 private:
  Numbers at_scored(const at::Tensor& of_tokens) const {
    return numbers_of(of_tokens.index_select(0, indices_));
  }

  const Batch& batch_;
  const Options& options_;
  const reference::Matrix& teacher_logits_;
  at::Tensor indices_;
  reference::TokenLayout layout_;
};

reference::TokenObjective sft(const Source& source) {
  if (source.word("loss_type") == "dft") return reference::dft(source.divisor());
  return reference::sft(source.divisor(), source.number("label_smoothing"));
}

const std::map<std::string, reference::DpoLoss> kDpoLosses{{"sigmoid", reference::DpoLoss::kSigmoid},
                                                           {"sigmoid_norm", reference::DpoLoss::kSigmoidNorm},
                                                           {"hinge", reference::DpoLoss::kHinge},
                                                           {"ipo", reference::DpoLoss::kIpo},
                                                           {"robust", reference::DpoLoss::kRobust},
                                                           {"exo_pair", reference::DpoLoss::kExoPair},
                                                           {"nca_pair", reference::DpoLoss::kNcaPair},
                                                           {"bco_pair", reference::DpoLoss::kBcoPair},
                                                           {"sppo_hard", reference::DpoLoss::kSppoHard},
                                                           {"aot", reference::DpoLoss::kAot},
                                                           {"aot_unpaired", reference::DpoLoss::kAotUnpaired},
                                                           {"apo_zero", reference::DpoLoss::kApoZero},
                                                           {"apo_down", reference::DpoLoss::kApoDown},
                                                           {"discopop", reference::DpoLoss::kDiscopop},
                                                           {"sft", reference::DpoLoss::kSft}};

reference::TokenObjective dpo(const Source& source) {
  static const std::map<std::string, reference::FDivergence> divergences{
      {"reverse_kl", reference::FDivergence::kReverseKl},
      {"forward_kl", reference::FDivergence::kForwardKl},
      {"js_divergence", reference::FDivergence::kJs},
      {"alpha_divergence", reference::FDivergence::kAlpha}};
  reference::DpoOptions options;
  const std::vector<std::string> losses = source.words("loss_type");
  const Numbers weights =
      source.given("loss_weights") ? source.numbers("loss_weights") : Numbers(losses.size(), 1.0);
  for (size_t i = 0; i < losses.size(); ++i)
    options.mix.emplace_back(kDpoLosses.at(losses[i]), weights.at(i));
  options.beta = source.number("beta");
  options.label_smoothing = source.number("label_smoothing");
  options.cdpo_label_smoothing = source.number("cdpo_label_smoothing");
  if (source.word("mean_over") == "completion_mask")
    options.completion_tokens = source.sequences_if_any(inputs::kCompletionTokens);
  options.f_divergence_type = divergences.at(source.word("f_divergence_type"));
  options.f_alpha_divergence_coef = source.number("f_alpha_divergence_coef");
  if (source.given("ld_alpha")) options.ld_alpha = source.number("ld_alpha");
  options.use_weighting = source.word("use_weighting") == "true";
  options.discopop_tau = source.number("discopop_tau");
  if (source.word("reference_free") == "true") return reference::dpo(options, source.layout(), {});
  const Numbers of_tokens = reference::ld_weights(source.layout(), options.ld_alpha.value_or(1.0));
  return reference::dpo(options, source.layout(), source.reference_sums(of_tokens));
}

reference::TokenObjective cpo(const Source& source) {
  static const std::map<std::string, reference::CpoLoss> types{{"sigmoid", reference::CpoLoss::kSigmoid},
                                                               {"hinge", reference::CpoLoss::kHinge},
                                                               {"ipo", reference::CpoLoss::kIpo},
                                                               {"simpo", reference::CpoLoss::kSimpo}};
  return reference::cpo(
      {source.has("loss_type") ? types.at(source.word("loss_type")) : reference::CpoLoss::kSimpo,
       source.number("beta"), source.number("simpo_gamma"), source.number("label_smoothing"),
       source.number("alpha"), source.number("cpo_alpha")},
      source.layout());
}

reference::TokenObjective orpo(const Source& source) {
  if (source.word("nll") == "completion") return reference::orpo(source.number("beta"), source.layout());
  const auto [layout, completion] = source.with_chosen_prompts();
  return reference::orpo(source.number("beta"), layout, completion);
}

reference::TokenObjective kto(const Source& source) {
  std::vector<reference::KtoRole> roles;
  for (const double role : source.sequences(inputs::kRole))
    roles.push_back(static_cast<reference::KtoRole>(static_cast<int>(role)));
  return reference::kto(
      {source.number("beta"), source.number("desirable_weight"), source.number("undesirable_weight"),
       source.word("loss_type") == "apo_zero_unpaired"},
      source.layout(), roles, source.reference_sums());
}

reference::KlEstimator kl_estimator(const Source& source) {
  static const std::map<std::string, reference::KlEstimator> estimators{{"k1", reference::KlEstimator::kK1},
                                                                        {"k2", reference::KlEstimator::kK2},
                                                                        {"k3", reference::KlEstimator::kK3}};
  return estimators.at(source.word("kl_estimator"));
}

reference::TokenObjective grpo(const Source& source) {
  static const std::map<std::string, reference::GrpoLoss> types{
      {"grpo", reference::GrpoLoss::kGrpo},      {"bnpo", reference::GrpoLoss::kBnpo},
      {"dr_grpo", reference::GrpoLoss::kDrGrpo}, {"dapo", reference::GrpoLoss::kDapo},
      {"cispo", reference::GrpoLoss::kCispo},    {"sapo", reference::GrpoLoss::kSapo},
      {"luspo", reference::GrpoLoss::kLuspo},    {"vespo", reference::GrpoLoss::kVespo}};
  reference::GrpoOptions options;
  options.loss_type = types.at(source.word("loss_type"));
  options.sequence_level = source.word("importance_sampling_level") == "sequence";
  options.epsilon_low = source.number("epsilon_low");
  options.epsilon_high = source.number("epsilon_high");
  options.delta = source.optional("delta");
  options.beta = source.number("beta");
  options.temperature = source.number("temperature");
  options.max_completion_length = source.optional("max_completion_length").value_or(0.0);
  options.num_items_in_batch = source.optional("num_items_in_batch").value_or(source.scored());
  options.clip_ratio_c = source.optional("clip_ratio_c");
  options.sapo_temperature_pos = source.number("sapo_temperature_pos");
  options.sapo_temperature_neg = source.number("sapo_temperature_neg");
  options.vespo_k_pos = source.number("vespo_k_pos");
  options.vespo_k_neg = source.number("vespo_k_neg");
  options.vespo_lambda_pos = source.number("vespo_lambda_pos");
  options.vespo_lambda_neg = source.number("vespo_lambda_neg");
  options.top_entropy_quantile = source.number("top_entropy_quantile");
  options.off_policy_mask_threshold = source.optional("off_policy_mask_threshold");
  options.entropy_coef = source.number("entropy_coef");
  options.kl_estimator = kl_estimator(source);
  options.use_bias_correction_kl = source.word("use_bias_correction_kl") == "true";
  return reference::grpo(
      options,
      {source.layout(), source.tokens_or_zeros(inputs::kAdvantages),
       source.tokens(inputs::kOldLogProbabilities), source.tokens(inputs::kReferenceLogProbabilities),
       source.tokens(inputs::kSamplingLogProbabilities), source.tokens(inputs::kImportanceSamplingRatio)});
}

reference::TokenObjective rloo(const Source& source) {
  Numbers old_sums;
  if (source.has_sequences(inputs::kOldSums)) {
    old_sums = source.sequences(inputs::kOldSums);
  } else if (const Numbers old = source.tokens(inputs::kOldLogProbabilities); !old.empty()) {
    old_sums = reference::sum_by_sequence(source.layout(), old);
  }
  return reference::rloo(
      {source.number("epsilon_low"), source.number("epsilon_high"), source.number("temperature")},
      source.layout(), source.sequences(inputs::kAdvantages), old_sums);
}

reference::TokenObjective ppo(const Source& source) {
  reference::PpoOptions options;
  options.cliprange = source.number("cliprange");
  options.cliprange_value = source.number("cliprange_value");
  options.vf_coef = source.number("vf_coef");
  options.entropy_coef = source.number("entropy_coef");
  options.kl_coef = source.number("kl_coef");
  options.temperature = source.number("temperature");
  options.clip_ratio_c = source.optional("clip_ratio_c");
  options.kl_estimator = kl_estimator(source);
  reference::PpoInputs given;
  given.policy_mask = source.has_target();
  given.old_log_probabilities = source.tokens_or_zeros(inputs::kOldLogProbabilities);
  given.advantages = source.tokens_or_zeros(inputs::kAdvantages);
  given.reference_log_probabilities = source.tokens(inputs::kReferenceLogProbabilities);
  given.value_mask = source.has_value();
  given.old_values = source.tokens_or_zeros(inputs::kOldValues);
  given.returns = source.tokens_or_zeros(inputs::kReturns);
  const bool has_policy =
      std::any_of(given.policy_mask.begin(), given.policy_mask.end(), [](double m) { return m != 0.0; });
  if (!has_policy) return reference::ppo_value(options, given);
  return options.vf_coef > 0.0 ? reference::ppo(options, given) : reference::ppo_policy(options, given);
}

reference::TokenObjective distill(const Source& source) {
  reference::DistillOptions options;
  const std::string divergence = source.word("divergence");
  options.softening = divergence != "jsd";
  options.beta = divergence == "forward"   ? 0.0
                 : divergence == "reverse" ? 1.0
                 : source.given("beta")    ? source.number("beta")
                                           : 0.5;
  options.temperature = source.number("temperature");
  options.alpha = source.number("alpha");
  options.divisor = source.divisor();
  options.shares_first_tokens = true;
  return reference::distill(options, source.teacher_logits());
}

reference::TokenObjective reward(const Source& source) {
  reference::RewardOptions options;
  options.center_rewards_coefficient = source.number("center_rewards_coefficient");
  options.margins = source.sequences_if_any(inputs::kMargin);
  options.margins.resize(options.margins.size() / 2);
  return reference::reward(options);
}

reference::TokenObjective infonce(const Source& source) {
  reference::InfoNceOptions options;
  options.pooling = source.word("pooling") == "mean" ? reference::Pooling::kMean : reference::Pooling::kLast;
  options.scale = source.number("scale");
  options.cosine = source.word("similarity") == "cosine";
  options.negatives = static_cast<int>(source.number("negatives"));
  options.symmetric = source.word("symmetric") == "true";
  return reference::info_nce(options);
}

const std::map<std::string, std::function<reference::TokenObjective(const Source&)>> kObjectives{
    {"sft", sft},   {"dpo", dpo},         {"cpo", cpo},       {"simpo", cpo},
    {"orpo", orpo}, {"kto", kto},         {"grpo", grpo},     {"rloo", rloo},
    {"ppo", ppo},   {"distill", distill}, {"reward", reward}, {"infonce", infonce}};

}  // namespace

reference::TokenObjective reference_objective(const std::string& name, const Batch& batch,
                                              const std::map<std::string, std::string>& given,
                                              const reference::Matrix& teacher_logits) {
  const auto found = kObjectives.find(name);
  if (found == kObjectives.end()) throw std::invalid_argument("reference: no objective " + name);
  const ObjectiveKind& kind = objective_kind(name);
  const Options options = complete_options(kind, given, batch);
  const Source source(batch, options, teacher_logits);
  reference::TokenObjective objective = found->second(source);
  objective.router.always = kind.adds_router_loss;
  if (!kind.knows_router_loss) objective.router.coefficient = 0.0;
  if (source.given("router_aux_loss_coef"))
    objective.router.coefficient = source.number("router_aux_loss_coef");
  return objective;
}

}  // namespace streambp::verify
