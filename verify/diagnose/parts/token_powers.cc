#include "verify/diagnose/parts/token_powers.h"

#include <cmath>
#include <cstdlib>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <utility>

#include "streambp/objective/terms.h"
#include "verify/diagnose/parts/scored_inputs.h"

namespace streambp::verify {
namespace {

/// Options are ignored together where no more are given.
constexpr size_t kMostIgnored = 5;

bool is_number(const std::string& text) {
  char* end = nullptr;
  std::strtod(text.c_str(), &end);
  return !text.empty() && *end == '\0';
}

/// A number of each scored token, and what is said where it is there so many times more than it should be.
struct Quantity {
  std::string name;
  at::Tensor of_tokens;  // [M], positive
  std::string missing;   // the power -1; empty: no more to say than of any other
  std::string text;      // "its probability"
};

std::vector<Quantity> quantities_of(const WrongSubject& subject, const at::Tensor& log_p) {
  const auto input = [&](const char* name) { return scored_input(subject.batch, name); };
  std::vector<Quantity> all;
  if (const at::Tensor ratio = input(inputs::kImportanceSamplingRatio); ratio.defined())
    all.push_back(
        {"importance-sampling-ratio", ratio,
         "importance_sampling_ratio is not applied: the policy's term lacks the sampler's correction",
         "importance_sampling_ratio"});
  if (const at::Tensor old = input(inputs::kOldLogProbabilities); old.defined())
    all.push_back({"ratio", (log_p - old).exp(), "", "its ratio to the old policy"});
  if (const at::Tensor reference = input(inputs::kReferenceLogProbabilities); reference.defined())
    all.push_back({"reference-ratio", (log_p - reference).exp(), "", "its ratio to the reference"});
  if (const at::Tensor advantages = input(inputs::kAdvantages); advantages.defined())
    all.push_back({"advantage", advantages.abs(), "", "the size of its advantage"});
  all.push_back({"probability", log_p.exp(), "", "its probability (as in DFT)"});
  all.push_back({"rest", (1.0 - log_p.exp()).clamp_min(1e-12), "", "1 - its probability"});
  const at::Tensor length = scored_lengths(subject.batch);
  const std::vector<at::Tensor> of_sequence = scored_of_sequences(subject.batch);
  at::Tensor place = at::ones_like(log_p), from_end = at::ones_like(log_p);
  for (const at::Tensor& own : of_sequence) {
    const at::Tensor numbers = at::arange(1, own.numel() + 1, at::kDouble);
    place.index_copy_(0, own, numbers);
    from_end.index_copy_(0, own, numbers.flip(0));
  }
  all.push_back({"place", place, "", "its place among the scored tokens of its row"});
  all.push_back({"place-from-end", from_end, "", "how many scored tokens its row has from it on"});
  if (const auto counts = subject.batch.sequence_inputs.find(inputs::kCompletionTokens);
      counts != subject.batch.sequence_inputs.end()) {
    at::Tensor completion = at::ones_like(log_p);
    for (size_t i = 0; i < of_sequence.size(); ++i)
      completion.index_fill_(0, of_sequence[i], counts->second[static_cast<int64_t>(i)].to(at::kDouble));
    all.push_back({"completion-length", completion, "", "the number of its completion's tokens"});
  }
  all.push_back({"length", length, "", "the number of its row's scored tokens"});
  all.push_back({"share", place / length, "", "its place, as a share of its row's scored tokens"});
  return all;
}

}  // namespace

std::string term_coefficient(const std::string& objective) {
  if (objective == "grpo" || objective == "orpo") return "beta";
  return objective == "cpo" || objective == "simpo" ? "cpo_alpha" : "";
}

std::vector<OptionChanges> changed_options(const ObjectiveKind& kind,
                                           const std::map<std::string, std::string>& given) {
  std::vector<std::pair<const Option*, std::string>> numbers, changed;
  for (const Option& option : kind.options) {
    const auto found = given.find(option.name);
    if (found == given.end() || !option.choices.empty() || !is_number(found->second)) continue;
    numbers.emplace_back(&option, found->second);
    if (found->second != option.default_value) changed.push_back(numbers.back());
  }
  std::vector<OptionChanges> all;
  for (size_t i = 0; i < numbers.size(); ++i) {
    for (size_t j = i + 1; j < numbers.size(); ++j) {
      const auto& [one, its] = numbers[i];
      const auto& [other, others] = numbers[j];
      if (its == others) continue;
      all.push_back({fmt::format("{}-for-{}", one->name, other->name),
                     fmt::format("{} and {} are exchanged", one->name, other->name),
                     {{one->name, others}, {other->name, its}}});
    }
  }
  if (changed.size() > kMostIgnored) return all;
  for (size_t which = 3; which < (size_t{1} << changed.size()); ++which) {
    OptionChanges each{"options-ignored", "", {}};
    std::vector<std::string> texts;
    for (size_t i = 0; i < changed.size(); ++i) {
      if ((which >> i & 1U) == 0) continue;
      const auto& [option, value] = changed[i];
      each.options[option->name] = option->default_value;
      texts.push_back(fmt::format("{} ({} is asked for)", option->name, value));
    }
    each.sentence = fmt::format("{} are ignored", fmt::join(texts, " and "));
    if (texts.size() > 1) all.push_back(std::move(each));
  }
  return all;
}

std::vector<OtherSums> token_powers(const WrongSubject& subject, const ScoredValues& values,
                                    const at::Tensor& own, const at::Tensor& policy,
                                    const std::string& coefficient) {
  const at::Tensor& log_p = values.columns[0];
  if (!log_p.defined() || !policy.defined() || log_p.numel() < 3) return {};
  std::vector<OtherSums> found;
  const at::Tensor besides = own - policy;
  const bool has_besides = besides.any().item<bool>();
  for (const Quantity& each : quantities_of(subject, log_p)) {
    const bool usable = each.of_tokens.gt(0.0).all().item<bool>() &&
                        !at::allclose(each.of_tokens, each.of_tokens[0].expand_as(each.of_tokens), 1e-9);
    if (!usable) continue;
    for (const double power : {-1.0, 1.0, -2.0, -0.5, 0.5, 2.0}) {
      const at::Tensor times = each.of_tokens.pow(power);
      const std::string text =
          power == -1.0 && !each.missing.empty() ? each.missing
          : power == -1.0 ? fmt::format("each token's loss is divided by {}", each.text)
          : power == 1.0
              ? fmt::format("each token's loss is multiplied by {} once more", each.text)
              : fmt::format("each token's loss is multiplied by {} to the power of {:g}", each.text, power);
      const std::string name = fmt::format("tokens-by-{}-to-{:g}", each.name, power);
      found.push_back({name, text, policy * times + besides});
      if (!has_besides) continue;
      found.push_back({name + "-all", text + ", in every term of the loss", own * times});
      found.push_back({name + "-term", fmt::format("of the term of {} alone {}", coefficient, text),
                       policy + besides * times});
    }
    if (each.name != "importance-sampling-ratio") continue;
    const at::Tensor length = scored_lengths(subject.batch);
    for (const bool mean : {true, false})
      found.push_back(
          {mean ? "importance-sampling-ratio-of-mean" : "importance-sampling-ratio-of-sum",
           fmt::format(
               "importance_sampling_ratio is that of the {} of a sequence's log-ratios, where it should "
               "be of their {}",
               mean ? "mean" : "sum", mean ? "sum" : "mean"),
           policy * each.of_tokens.pow((mean ? length.reciprocal() : length) - 1.0) + besides});
  }
  return found;
}

}  // namespace streambp::verify
