#include "streambp/objective/objective.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>

#include "streambp/error.h"
#include "streambp/model/config/config.h"
#include "streambp/objective/kinds.h"

namespace streambp {
namespace {

std::string range_text(double least, double most) {
  const bool from = least > -std::numeric_limits<double>::infinity();
  const bool to = most < std::numeric_limits<double>::infinity();
  const std::string bounds = to ? fmt::format(" from {} to {}", least, most) : fmt::format(" from {}", least);
  return from ? bounds : to ? fmt::format(" up to {}", most) : "";
}

/// The whole of `text` as a finite number.
std::optional<double> parsed(const std::string& text) {
  double value = 0.0;
  const char* const end = text.data() + text.size();
  const auto [stopped, problem] = std::from_chars(text.data(), end, value);
  if (problem != std::errc() || stopped != end || !std::isfinite(value)) return std::nullopt;
  return value;
}

std::vector<std::string> parts_of(const std::string& list) {
  std::vector<std::string> parts{""};
  for (const char letter : list) {
    if (letter == '+') {
      parts.emplace_back();
    } else {
      parts.back() += letter;
    }
  }
  return parts;
}

constexpr const char* kRouterCoefficient = "router_aux_loss_coef";

/// The option that every kind has.
ObjectiveKind with_router_option(ObjectiveKind kind) {
  kind.options.push_back(
      {kRouterCoefficient, "",
       kind.adds_router_loss
           ? "weight of a mixture's load-balancing loss instead of config.json's; 0: none"
           : "weight of a mixture's load-balancing loss instead of what config.json says of it; 0: none"});
  return kind;
}

}  // namespace

double RouterLoss::of(const MixtureSettings& mixture) const {
  if (mixture.num_experts == 0) {
    if (coefficient.value_or(0.0) == 0.0) return 0.0;
    throw InputError("{} is {}, but the model has no experts", kRouterCoefficient, *coefficient);
  }
  if (!mixture.has_router_loss()) {
    const double of_config = always || mixture.output_router_logits ? mixture.router_aux_loss_coef : 0.0;
    const double asked = coefficient.value_or(of_config);
    if (asked == 0.0) return 0.0;
    throw InputError(
        "{} is {}, expected 0: {}", kRouterCoefficient, asked,
        mixture.no_router_loss
            ? "this model's class has no loss of its routers"
            : "the load of this model's experts is balanced by the correction of its routers' choice");
  }
  if (coefficient) return *coefficient;
  return always || mixture.output_router_logits ? mixture.router_aux_loss_coef : 0.0;
}

RouterLoss router_loss(const ObjectiveKind& kind, const Options& options) {
  RouterLoss loss;
  loss.always = kind.adds_router_loss;
  if (!kind.knows_router_loss) loss.coefficient = 0.0;
  if (options.given(kRouterCoefficient))
    loss.coefficient = options.number(kRouterCoefficient, 0.0, std::numeric_limits<double>::infinity());
  return loss;
}

void Objective::set_batch(const Batch& batch) {
  batch_tokens_ = batch.tokens;
  batch_targets_ = batch.targets;
  batch_offsets_ = batch.offsets;
}

void Objective::require_batch(const Batch& batch) const {
  if (!batch_tokens_.defined()) return;
  const auto same = [](const at::Tensor& a, const at::Tensor& b) { return a.is_same(b) || at::equal(a, b); };
  if (batch_offsets_ == batch.offsets && same(batch_tokens_, batch.tokens) &&
      same(batch_targets_, batch.targets))
    return;
  throw InputError(
      "{}: made from another batch ({} tokens in {} sequences; this one has {} in {}, or other tokens or "
      "targets), expected the batch that make_objective was given",
      name(), batch_offsets_.back(), batch_offsets_.size() - 1, batch.offsets.back(),
      batch.offsets.size() - 1);
}

double Options::number(const std::string& name, double least, double most) const {
  const std::string& text = values_.at(name);
  const std::optional<double> value = parsed(text);
  if (!value || !(least <= *value && *value <= most)) {
    throw InputError("{}: {} is '{}', expected a number{}", objective_, name, text, range_text(least, most));
  }
  return *value;
}

std::vector<std::string> Options::words(const std::string& name) const {
  return parts_of(values_.at(name));
}

std::vector<double> Options::numbers(const std::string& name) const {
  std::vector<double> numbers;
  for (const std::string& part : words(name)) {
    const std::optional<double> value = parsed(part);
    if (!value) {
      throw InputError("{}: {} is '{}', expected numbers with '+' between them", objective_, name,
                       values_.at(name));
    }
    numbers.push_back(*value);
  }
  return numbers;
}

double Options::positive(const std::string& name) const {
  const double value = number(name, 0.0, std::numeric_limits<double>::infinity());
  if (value == 0.0) throw InputError("{}: {} is 0, expected a number above 0", objective_, name);
  return value;
}

Counts count(const Batch& batch) {
  const at::Tensor has_target = batch.targets.to(at::kCPU).ne(kNoTarget);
  Counts counts;
  counts.scored = has_target.sum().item<int64_t>();
  if (batch.value_mask.defined()) counts.valued = batch.value_mask.sum().item<int64_t>();
  counts.sequences = static_cast<int64_t>(batch.offsets.size()) - 1;
  const int64_t half = batch.offsets.at(static_cast<size_t>(counts.sequences / 2));
  counts.chosen = has_target.narrow(0, 0, half).sum().item<int64_t>();
  for (size_t i = 0; i < static_cast<size_t>(counts.sequences / 2); ++i)
    counts.chosen_next += std::max<int64_t>(batch.offsets[i + 1] - batch.offsets[i] - 1, 0);
  return counts;
}

const std::vector<ObjectiveKind>& objective_kinds() {
  static const std::vector<ObjectiveKind> kinds = [] {
    std::vector<ObjectiveKind> all{sft_kind(),  dpo_kind(),     cpo_kind(),    simpo_kind(),
                                   orpo_kind(), kto_kind(),     grpo_kind(),   rloo_kind(),
                                   ppo_kind(),  distill_kind(), reward_kind(), infonce_kind()};
    for (ObjectiveKind& kind : all) kind = with_router_option(std::move(kind));
    return all;
  }();
  return kinds;
}

std::vector<std::string> objective_names() {
  std::vector<std::string> names;
  for (const ObjectiveKind& kind : objective_kinds()) names.push_back(kind.name);
  return names;
}

const ObjectiveKind& objective_kind(const std::string& name) {
  for (const ObjectiveKind& kind : objective_kinds()) {
    if (kind.name == name) return kind;
  }
  throw InputError("objective '{}': expected one of {}", name, fmt::join(objective_names(), ", "));
}

Options complete_options(const ObjectiveKind& kind, const std::map<std::string, std::string>& given) {
  std::map<std::string, std::string> values;
  std::vector<std::string> names;
  for (const Option& option : kind.options) {
    names.push_back(option.name);
    const auto found = given.find(option.name);
    const std::string& value = found == given.end() ? option.default_value : found->second;
    const std::vector<std::string>& choices = option.choices;
    for (const std::string& word : option.is_list ? parts_of(value) : std::vector<std::string>{value}) {
      if (choices.empty() || std::find(choices.begin(), choices.end(), word) != choices.end()) continue;
      throw InputError("{}: {} is '{}', expected one of {}{}", kind.name, option.name, word,
                       fmt::join(choices, ", "), option.is_list ? ", or several with '+' between them" : "");
    }
    values.emplace(option.name, value);
  }
  for (const auto& [name, value] : given) {
    if (!values.contains(name)) {
      throw InputError("{}: no option '{}'; it has {}", kind.name, name, fmt::join(names, ", "));
    }
  }
  return {std::move(values), kind.name};
}

Options complete_options(const ObjectiveKind& kind, std::map<std::string, std::string> given,
                         const Batch& batch) {
  for (const auto& [name, number] : batch.scalar_inputs) given.try_emplace(name, fmt::format("{}", number));
  return complete_options(kind, given);
}

double logit_temperature(const ObjectiveKind& kind, const Options& options) {
  const bool has_one = std::any_of(kind.options.begin(), kind.options.end(),
                                   [](const Option& option) { return option.name == "temperature"; });
  return has_one ? options.number("temperature", 0.0, std::numeric_limits<double>::max()) : 1.0;
}

std::unique_ptr<Objective> make_objective(const std::string& name, const Batch& batch,
                                          const std::map<std::string, std::string>& given) {
  return make_objective(name, batch, given, count(batch));
}

std::unique_ptr<Objective> make_objective(const std::string& name, const Batch& batch,
                                          const std::map<std::string, std::string>& given,
                                          const Counts& whole) {
  const ObjectiveKind& kind = objective_kind(name);
  const Options options = complete_options(kind, given, batch);
  const Counts own = count(batch);
  if (whole.scored < own.scored || whole.valued < own.valued || whole.sequences < own.sequences) {
    throw InputError("{}: the counts of the whole batch are below those of a part of it", name);
  }
  const RouterLoss given_router = router_loss(kind, options);
  std::unique_ptr<Objective> objective = kind.make(batch, options, whole);
  objective->router_loss.always = given_router.always;
  objective->router_loss.coefficient = given_router.coefficient;
  objective->set_batch(batch);
  return objective;
}

}  // namespace streambp
