#include "verify/diagnose/parts/term_words.h"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <map>
#include <utility>

namespace streambp::verify {
namespace {

/// Of the largest weight: what rounding leaves of one that is none.
constexpr double kNoWeight = 1e-6;

/// What a loss is without its terms.
const char* main_text(const std::string& objective) {
  static const std::map<std::string, const char*> kMain{
      {"orpo", "the chosen completions' cross-entropy (NLL)"},
      {"cpo", "the pairs' own loss"},
      {"simpo", "the pairs' own loss"},
      {"dpo", "the pairs' own loss"},
      {"reward", "the pairs' own loss"},
      {"grpo", "the policy's own term"},
      {"rloo", "the policy's own term"},
      {"ppo", "the policy's own term"},
      {"sft", "the labels' cross-entropy"},
      {"distill", "the labels' cross-entropy"}};
  const auto found = kMain.find(objective);
  return found == kMain.end() ? "the loss itself" : found->second;
}

}  // namespace

std::pair<std::string, std::string> words_of_terms(const std::vector<Term>& terms, const Solution& solution,
                                                   size_t first, double base, double deviation) {
  std::vector<std::string> names, sentences;
  for (size_t i = 0; i < terms.size(); ++i) {
    const Term& term = terms[i];
    const double more = solution.weights[first + i] / base;
    const double error = std::max(
        {4.0 * std::abs(solution.deviations[first + i] / base), 4.0 * std::abs(deviation / base), 1e-6});
    if (std::abs(more) <= error) continue;
    names.push_back(term.name);
    const double times = 1.0 + more;
    if (!term.expected && term.name == "label-smoothing") {
      sentences.push_back(fmt::format("{} is in the loss, of {:.4g}", term.text, more / (1.0 + more)));
    } else if (term.name == kTargetLogits) {
      sentences.push_back(fmt::format(
          "the softmax's probabilities count {:.6g} times as much beside the targets' one as they "
          "should, as where its denominator is {:.6g} times what it should be (a sum over shards "
          "of the vocabulary)",
          1.0 / (1.0 + more), 1.0 + more));
    } else if (!term.expected) {
      sentences.push_back(fmt::format("{} is in the loss, with a weight of {:.6g}", term.text, more));
    } else if (std::abs(times) <= error) {
      names.back() += "-missing";
      sentences.push_back(fmt::format("{} is missing{}", term.text,
                                      term.name == "kl" ? ", or its reference is the policy itself" : ""));
    } else if (std::abs(times + 1.0) <= error) {
      names.back() += "-other-sign";
      sentences.push_back(
          fmt::format("{} counts -1 times as much as it should: it has the other sign, and is {}", term.text,
                      term.name == "entropy" ? "minimised" : "maximised"));
    } else {
      names.back() += "-weight";
      sentences.push_back(fmt::format("{} counts {:.6g} times as much as it should", term.text, times));
    }
  }
  return {fmt::format("{}", fmt::join(names, " + ")), fmt::format("{}", fmt::join(sentences, "; and "))};
}

bool stand_for_pairs(const std::vector<Term>& terms, size_t pairs) {
  const auto unasked = std::count_if(terms.begin(), terms.end(), [](const Term& term) {
    return !term.expected && term.name.ends_with("cross-entropy");
  });
  return pairs > 0 && std::cmp_less_equal(pairs, unasked);
}

std::optional<RowWords> term_alone(const std::string& objective, const std::vector<Term>& terms,
                                   const Solution& solution) {
  double most = 0.0;
  std::vector<size_t> there;
  for (size_t i = 0; i <= terms.size(); ++i) most = std::max(most, std::abs(solution.weights[i]));
  for (size_t i = 0; i <= terms.size(); ++i) {
    if (std::abs(solution.weights[i]) > std::max(kNoWeight * most, 4.0 * solution.deviations[i]))
      there.push_back(i);
  }
  if (there.size() != 1 || there.front() == 0 || !terms[there.front() - 1].expected) return std::nullopt;
  const Term& term = terms[there.front() - 1];
  return RowWords{term.name + "-alone",
                  fmt::format("{} is missing: {} is all that is there", main_text(objective), term.text),
                  solution.weights[there.front()]};
}

}  // namespace streambp::verify
