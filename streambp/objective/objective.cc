#include "streambp/objective/objective.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>

#include "streambp/error.h"
#include "streambp/objective/kinds.h"

namespace streambp {
namespace {

std::string range_text(double least, double most) {
  const bool from = least > -std::numeric_limits<double>::infinity();
  const bool to = most < std::numeric_limits<double>::infinity();
  const std::string bounds = to ? fmt::format(" from {} to {}", least, most) : fmt::format(" from {}", least);
  return from ? bounds : to ? fmt::format(" up to {}", most) : "";
}

}  // namespace

double Options::number(const std::string& name, double least, double most) const {
  const std::string& text = values_.at(name);
  double value = 0.0;
  const char* const end = text.data() + text.size();
  const auto [stopped, problem] = std::from_chars(text.data(), end, value);
  if (problem != std::errc() || stopped != end || !std::isfinite(value) ||
      !(least <= value && value <= most)) {
    throw InputError("{}: {} is '{}', expected a number{}", objective_, name, text, range_text(least, most));
  }
  return value;
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
  return counts;
}

const std::vector<ObjectiveKind>& objective_kinds() {
  static const std::vector<ObjectiveKind> kinds{sft_kind(),  dpo_kind(), simpo_kind(),
                                                orpo_kind(), kto_kind(), grpo_kind(),
                                                rloo_kind(), ppo_kind(), distill_kind()};
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
    if (!choices.empty() && std::find(choices.begin(), choices.end(), value) == choices.end()) {
      throw InputError("{}: {} is '{}', expected one of {}", kind.name, option.name, value,
                       fmt::join(choices, ", "));
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

std::unique_ptr<Objective> make_objective(const std::string& name, const Batch& batch,
                                          const std::map<std::string, std::string>& given) {
  return make_objective(name, batch, given, count(batch));
}

std::unique_ptr<Objective> make_objective(const std::string& name, const Batch& batch,
                                          const std::map<std::string, std::string>& given,
                                          const Counts& whole) {
  const ObjectiveKind& kind = objective_kind(name);
  const Options options = complete_options(kind, given);
  const Counts own = count(batch);
  if (whole.scored < own.scored || whole.valued < own.valued || whole.sequences < own.sequences) {
    throw InputError("{}: the counts of the whole batch are below those of a part of it", name);
  }
  return kind.make(batch, options, whole);
}

}  // namespace streambp
