// Weights of rows, and advantages, that mistakes give.
#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <utility>

#include "streambp/model/scored.h"
#include "streambp/objective/terms.h"
#include "verify/diagnose/parts/row_words.h"
#include "verify/diagnose/wrong_engine/chunk_cuts.h"
#include "verify/diagnose/wrong_engine/wrong_batch.h"

namespace streambp::verify {
namespace {

/// How alike lengths of gradients are.
constexpr double kSameLength = 1e-5;

void add_advantages(RowFacts& facts, const Batch& given) {
  if (facts.advantages.empty()) return;
  const auto sequences = static_cast<int64_t>(facts.advantages.size());
  const auto add = [&](const AdvantageChange& change, const std::string& of) {
    WrongSettings settings;
    settings.advantages = change;
    Batch batch = given;
    batch.token_inputs[inputs::kAdvantages] = wrong_advantages(batch, settings);
    const std::vector<double> changed = row_facts(batch, Layout::kCompletions).advantages;
    if (changed.empty() || changed == facts.advantages) return;
    const bool whitened = change.kind == AdvantageChange::Kind::kWhitened;
    facts.other_advantages.push_back(
        {whitened ? "advantages-normalised" : "advantages-centred",
         fmt::format("the given advantages are {} again, over {}",
                     whitened ? "centred and divided by their deviation" : "centred", of),
         changed});
  };
  for (const auto kind : {AdvantageChange::Kind::kCentred, AdvantageChange::Kind::kWhitened}) {
    add({kind, 0, false, 0.0}, "all rows");
    add({kind, 0, true, 0.0}, "all tokens");
    for (int64_t group = 2; group <= sequences / 2; ++group) {
      if (sequences % group != 0) continue;
      add({kind, group, false, 1e-4}, fmt::format("groups of {} rows", group));
    }
  }
}

/// Means of chunks that weigh all tokens of a row alike.
void add_means(RowFacts& facts, const Batch& batch, Layout layout) {
  const at::Tensor scored = scored_indices(batch);
  if ((layout != Layout::kLabels && layout != Layout::kCompletions) || scored.numel() == 0) return;
  for (const Cut& cut : cuts_of(batch,
                                {Cut::Along::kColumns, Cut::Along::kSequence, Cut::Along::kStream,
                                 Cut::Along::kScored, Cut::Along::kFlat},
                                {})) {
    at::Tensor of_tokens = at::zeros({batch.size()}, at::kDouble);
    of_tokens.index_copy_(0, scored, normaliser_weights(batch, scored, cut));
    OtherAdvantages other{
        "mean-of-means-" + short_text(cut), "the loss is the mean of the means of " + long_text(cut), {}};
    bool alike = true, any = false;
    for (size_t i = 0; i + 1 < batch.offsets.size() && alike; ++i) {
      const int64_t begin = batch.offsets[i], end = batch.offsets[i + 1];
      const at::Tensor own =
          of_tokens.slice(0, begin, end).masked_select(batch.targets.slice(0, begin, end).ne(kNoTarget));
      other.of_sequences.push_back(own.numel() > 0 ? own[0].item<double>() : 1.0);
      alike = own.numel() == 0 || at::allclose(own, own[0].expand_as(own), 1e-12);
      any = any || std::abs(other.of_sequences.back() - other.of_sequences.front()) > 1e-12;
    }
    if (alike && any) facts.other_weights.push_back(std::move(other));
  }
}

}  // namespace

RowFacts row_facts(const Batch& batch, Layout layout) {
  RowFacts facts;
  if (batch.packed) facts.unit = "document";
  facts.pairs = has_pairs(layout);
  const at::Tensor row = batch.padded_indices.div(std::max<int64_t>(batch.padded_columns, 1), "floor");
  const auto advantages = batch.token_inputs.find(inputs::kAdvantages);
  bool one_a_row = advantages != batch.token_inputs.end();
  for (size_t i = 0; i + 1 < batch.offsets.size(); ++i) {
    const int64_t begin = batch.offsets[i], end = batch.offsets[i + 1];
    const at::Tensor scored = batch.targets.slice(0, begin, end).ne(kNoTarget);
    facts.scored.push_back(static_cast<double>(scored.sum().item<int64_t>()));
    facts.rows.push_back(end > begin ? row[begin].item<int64_t>()
                                     : (facts.rows.empty() ? 0 : facts.rows.back()));
    if (!one_a_row) continue;
    const at::Tensor own = advantages->second.slice(0, begin, end).masked_select(scored);
    facts.advantages.push_back(own.numel() > 0 ? own[0].item<double>() : 0.0);
    one_a_row = own.numel() == 0 || own.eq(own[0]).all().item<bool>();
  }
  if (!one_a_row) facts.advantages.clear();
  return facts;
}

std::string permutation_text(const std::vector<size_t>& from) {
  const size_t n = from.size();
  const std::string text = "the advantages (or rewards) are those of other rows: ";
  const size_t by = (from[0] + n) % n;
  bool rotated = by != 0, reversed = true;
  for (size_t i = 0; i < n; ++i) {
    rotated = rotated && from[i] == (i + by) % n;
    reversed = reversed && from[i] == n - 1 - i;
  }
  if (rotated) return text + fmt::format("row i has those of row i + {} (modulo {})", by, n);
  if (reversed) return text + "they are in reverse order";
  std::vector<std::string> moved;
  for (size_t i = 0; i < n; ++i) {
    if (from[i] != i) moved.push_back(fmt::format("row {} has those of row {}", i, from[i]));
  }
  if (moved.size() > 12) moved.resize(12), moved.emplace_back("...");
  return text + fmt::format("{}", fmt::join(moved, ", "));
}

std::string list_text(const std::string& unit, const std::vector<int64_t>& numbers) {
  if (numbers.size() == 1) return fmt::format("{} {}", unit, numbers.front());
  const bool in_a_row = numbers.back() - numbers.front() == std::ssize(numbers) - 1;
  if (in_a_row && numbers.size() > 2)
    return fmt::format("{}s {} to {}", unit, numbers.front(), numbers.back());
  const size_t shown = std::min<size_t>(numbers.size(), 12);
  std::string text;
  for (size_t i = 0; i < shown; ++i) {
    text += fmt::format("{}{}", i == 0 ? "" : i + 1 == numbers.size() ? " and " : ", ", numbers[i]);
  }
  return fmt::format("{}s {}{}", unit, text, shown < numbers.size() ? ", ..." : "");
}

void add_other_weights(RowFacts& facts, const Batch& batch, Layout layout) {
  add_advantages(facts, batch);
  add_means(facts, batch, layout);
}

std::optional<RowWords> accumulated_rows(RowFacts facts, RowWeights weights) {
  if (facts.pairs && weights.values.size() % 2 == 0) {  // both of a pair count alike
    const size_t half = weights.values.size() / 2;
    for (size_t i = 0; i < half; ++i) {
      if (!(std::abs(weights.values[i] / weights.values[half + i] - 1.0) <= 1e-4)) return std::nullopt;
    }
    weights.values.resize(half);
    weights.deviations.resize(half);
    facts.scored.assign(half, 1.0);
    facts.unit = "pair";
  }
  const size_t all = weights.values.size();
  double scored = 0.0;
  for (const double own : facts.scored) scored += own;
  const auto known = [&](double value) { return std::isfinite(value) && value > 0.0; };
  if (all < 3 || !std::all_of(weights.values.begin(), weights.values.end(), known) ||
      !std::all_of(facts.scored.begin(), facts.scored.end(), known))
    return std::nullopt;
  for (const bool means : {false, true}) {  // of tokens, or of each row's own
    std::vector<double> times, errors;
    for (size_t i = 0; i < all; ++i) {
      const double base = means ? scored / (static_cast<double>(all) * facts.scored[i]) : 1.0;
      times.push_back(weights.values[i] / base);
      errors.push_back(4.0 * weights.deviations[i] / weights.values[i] + kSameLength);
    }
    const auto same = [&](size_t i, double expected) {
      return std::abs(times[i] / expected - 1.0) <= errors[i];
    };
    const std::string of =
        means ? fmt::format(", where each {}'s loss is the mean over its own tokens", facts.unit) : "";
    // The last two say what the ratio is.
    const double ratio = times[all - 1] / times[all - 2];
    bool geometric = std::abs(ratio - 1.0) > 1e-3;
    for (size_t i = 0; i + 1 < all; ++i)
      geometric = geometric && same(i, times[all - 1] * std::pow(ratio, -static_cast<double>(all - 1 - i)));
    if (geometric)
      return RowWords{
          "accumulated-anew",
          fmt::format(
              "{0}s are accumulated as micro-batches that fade: each counts {1:.6g} times as much as the one "
              "before it, as where all that is accumulated is {2} {3:.6g} with every further one{4}",
              facts.unit, ratio, ratio > 1.0 ? "divided by" : "multiplied by",
              ratio > 1.0 ? ratio : 1.0 / ratio, of),
          1.0};
    for (size_t one = 0; one < all; ++one) {
      const double others = times[one == 0 ? 1 : 0], more = times[one] / others;
      bool alike = std::abs(more - 1.0) > 1e-3;
      for (size_t i = 0; i < all; ++i) alike = alike && (i == one || same(i, others));
      const double whole = more > 1.0 ? more : 1.0 / more;
      if (!alike || std::abs(whole - std::round(whole)) > 16.0 * errors[one] * whole) continue;
      return RowWords{
          "one-micro-batch-otherwise",
          fmt::format(
              "{0} {1}, a micro-batch, counts {2} what each other one does{3}: its gradient is {4} by the "
              "number of accumulated micro-batches",
              facts.unit, one,
              more > 1.0 ? fmt::format("{:g} times", std::round(whole))
                         : fmt::format("1/{:g} of", std::round(whole)),
              of, more > 1.0 ? "not divided" : "divided once more"),
          1.0};
    }
  }
  return std::nullopt;
}

std::optional<RowWords> shifted_advantages(const RowFacts& facts, const RowWeights& weights) {
  const size_t all = facts.advantages.size();
  double most = 0.0;
  for (const double own : facts.advantages) most = std::max(most, std::abs(own));
  for (size_t group = all; group >= 2; --group) {
    if (all % group != 0) continue;
    std::vector<std::string> texts;
    bool alike = most > 0.0;
    for (size_t first = 0; first < all && alike; first += group) {
      const auto less = [&](size_t i) { return facts.advantages[i] * (1.0 - weights.values[i]); };
      std::string zero;
      for (size_t i = first; i < first + group; ++i) {
        const double error = std::abs(facts.advantages[i]) * 4.0 * weights.deviations[i] + kSameLength * most;
        alike = alike && std::isfinite(weights.values[i]) && facts.advantages[i] != 0.0 &&
                std::abs(less(i) - less(first)) <= error;
        if (std::abs(weights.values[i] * facts.advantages[i]) <= error)
          zero = fmt::format(", which is row {}'s", i);
      }
      texts.push_back(fmt::format("rows {} to {} by {:.6g}{}", first, first + group - 1, less(first), zero));
    }
    if (alike)
      return RowWords{
          "advantages-shifted",
          fmt::format("advantages are those that are given less a number of each group of {} rows: another "
                      "baseline than the group's mean ({})",
                      group, fmt::join(texts, ", ")),
          1.0};
  }
  return std::nullopt;
}

std::optional<RowWords> clipped_rows(const RowFacts& facts, const RowWeights& weights,
                                     const std::vector<double>& lengths) {
  double first = 0.0, number = 0.0;
  for (size_t i = 0; i < weights.values.size(); ++i) {
    if (!std::isfinite(weights.values[i])) continue;
    const double own = weights.values[i] * lengths[i];
    const double error = 4.0 * weights.deviations[i] * lengths[i] + kSameLength * own;
    if (!(own > 0.0)) return std::nullopt;
    if (number == 0.0) first = own;
    if (std::abs(own - first) > error) return std::nullopt;
    number += 1.0;
  }
  if (number < 2.0) return std::nullopt;
  return RowWords{
      "rows-clipped",
      fmt::format("each {0}'s gradient is clipped by itself, before they are added: all have the same norm, "
                  "{1:.4g} (a norm of {2:.4g} where they are averaged)",
                  facts.unit, first, first * number),
      1.0};
}

}  // namespace streambp::verify
