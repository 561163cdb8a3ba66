#include "verify/reference_objective.h"

#include <algorithm>
#include <functional>
#include <optional>
#include <stdexcept>
#include <vector>

#include "reference/objectives.h"
#include "streambp/objective/terms.h"

namespace streambp {
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
      : batch_(batch), options_(options), teacher_logits_(teacher_logits), places_(scored_places(batch)) {
    layout_.sequences = static_cast<int>(batch.offsets.size()) - 1;
    for (const double place : numbers_of(places_)) {
      const auto next =
          std::upper_bound(batch.offsets.begin(), batch.offsets.end(), static_cast<int64_t>(place));
      layout_.sequence_of_token.push_back(static_cast<int>(next - batch.offsets.begin()) - 1);
    }
  }

  const reference::TokenLayout& layout() const { return layout_; }
  const reference::Matrix& teacher_logits() const { return teacher_logits_; }
  std::string word(const char* name) const { return options_.word(name); }
  bool given(const char* name) const { return options_.given(name); }
  double number(const char* name) const { return options_.number(name, -kInfinity, kInfinity); }
  std::optional<double> optional(const char* name) const {
    return given(name) ? std::optional(number(name)) : std::nullopt;
  }

  Numbers has_target() const { return at_places(batch_.targets.ne(kNoTarget)); }
  Numbers has_value() const {
    return batch_.value_mask.defined() ? at_places(batch_.value_mask) : Numbers(layout_.tokens(), 0.0);
  }
  double scored() const { return std::max(batch_.targets.ne(kNoTarget).sum().item<double>(), 1.0); }

  /// Empty where the batch has no such input.
  Numbers tokens(const char* name) const {
    const auto found = batch_.token_inputs.find(name);
    return found == batch_.token_inputs.end() ? Numbers() : at_places(found->second);
  }
  /// The same, with as many zeros instead.
  Numbers tokens_or_zeros(const char* name) const {
    Numbers numbers = tokens(name);
    numbers.resize(layout_.tokens());
    return numbers;
  }
  Numbers sequences(const char* name) const { return numbers_of(batch_.sequence_inputs.at(name)); }
  bool has_sequences(const char* name) const { return batch_.sequence_inputs.contains(name); }
  Numbers reference_sums() const {
    if (has_sequences(inputs::kReferenceSums)) return sequences(inputs::kReferenceSums);
    return reference::sum_by_sequence(layout_, tokens_or_zeros(inputs::kReferenceLogProbabilities));
  }

 private:
  Numbers at_places(const at::Tensor& of_tokens) const {
    return numbers_of(of_tokens.index_select(0, places_));
  }

  const Batch& batch_;
  const Options& options_;
  const reference::Matrix& teacher_logits_;
  at::Tensor places_;
  reference::TokenLayout layout_;
};

reference::TokenObjective sft(const Source& source) {
  const bool sum = source.word("reduction") == "sum";
  const double divisor = source.given("divisor") ? source.number("divisor") : sum ? 1.0 : source.scored();
  if (source.word("loss_type") == "dft") return reference::dft(divisor);
  return reference::sft(divisor, source.number("label_smoothing"));
}

reference::TokenObjective dpo(const Source& source) {
  static const std::map<std::string, reference::DpoLoss> types{{"sigmoid", reference::DpoLoss::kSigmoid},
                                                               {"hinge", reference::DpoLoss::kHinge},
                                                               {"ipo", reference::DpoLoss::kIpo},
                                                               {"robust", reference::DpoLoss::kRobust}};
  reference::DpoOptions options;
  options.loss_type = types.at(source.word("loss_type"));
  options.beta = source.number("beta");
  options.label_smoothing = source.number("label_smoothing");
  return reference::dpo(options, source.layout(),
                        source.word("reference_free") == "true" ? Numbers() : source.reference_sums());
}

reference::TokenObjective simpo(const Source& source) {
  return reference::simpo(
      {source.number("beta"), source.number("simpo_gamma"), source.number("label_smoothing")},
      source.layout());
}

reference::TokenObjective orpo(const Source& source) {
  return reference::orpo(source.number("beta"), source.layout());
}

reference::TokenObjective kto(const Source& source) {
  std::vector<reference::KtoRole> roles;
  for (const double role : source.sequences(inputs::kRole))
    roles.push_back(static_cast<reference::KtoRole>(static_cast<int>(role)));
  return reference::kto(
      {source.number("beta"), source.number("desirable_weight"), source.number("undesirable_weight")},
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
  const double temperature = source.number("temperature");
  reference::TokenObjective objective = reference::distill(
      {source.word("divergence") == "reverse", temperature, source.number("alpha"), source.scored()},
      source.teacher_logits());
  // The library scores the labels at the same temperature as the divergence.
  objective.temperature = temperature;
  return objective;
}

const std::map<std::string, std::function<reference::TokenObjective(const Source&)>> kObjectives{
    {"sft", sft},   {"dpo", dpo},   {"simpo", simpo}, {"orpo", orpo},      {"kto", kto},
    {"grpo", grpo}, {"rloo", rloo}, {"ppo", ppo},     {"distill", distill}};

}  // namespace

reference::TokenObjective reference_objective(const std::string& name, const Batch& batch,
                                              const std::map<std::string, std::string>& given,
                                              const reference::Matrix& teacher_logits) {
  const auto found = kObjectives.find(name);
  if (found == kObjectives.end()) throw std::invalid_argument("reference: no objective " + name);
  const Options options = complete_options(objective_kind(name), given);
  return found->second(Source(batch, options, teacher_logits));
}

}  // namespace streambp
