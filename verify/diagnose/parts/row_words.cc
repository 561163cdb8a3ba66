#include "verify/diagnose/parts/row_words.h"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <tuple>

#include "streambp/objective/terms.h"

namespace streambp::verify {
namespace {

/// How far a weight may be from what it is taken for: so many of its deviations, or this share.
constexpr double kWeightDeviations = 4.0;
constexpr double kWeightRounding = 1e-6;

class RowReading {
 public:
  RowReading(const RowFacts& facts, const RowWeights& weights) : facts_(facts), weights_(weights) {}

  std::vector<RowWords> words() {
    if (facts_.advantages_alone) {
      advantages();
      return found_.empty() ? std::vector<RowWords>{scaled_advantages()} : std::move(found_);
    }
    missing();
    micro_batches();
    by_length();
    if (found_.empty()) by_power_of_length();
    if (found_.empty()) {
      for (const OtherAdvantages& other : facts_.other_weights) {
        if (const auto factor = factor_of(other.of_sequences))
          add(other.name, other.sentence, other.of_sequences, *factor, *factor);
      }
    }
    several_times();
    advantages();
    if (found_.empty()) {
      if (auto accumulated = accumulated_rows(facts_, weights_)) found_.push_back(std::move(*accumulated));
    }
    if (found_.empty()) found_.push_back(as_they_are());
    return std::move(found_);
  }

 private:
  size_t size() const { return weights_.values.size(); }
  bool known(size_t i) const { return std::isfinite(weights_.values[i]); }

  bool is(size_t i, double expected) const {
    if (!known(i)) return true;
    return std::abs(weights_.values[i] - expected) <=
           std::max(kWeightDeviations * weights_.deviations[i],
                    kWeightRounding * std::max(std::abs(expected), largest()));
  }

  double largest() const {
    double most = 0.0;
    for (const double value : weights_.values) {
      if (std::isfinite(value)) most = std::max(most, std::abs(value));
    }
    return most;
  }

  /// The factor with which the weights are such multiples; nothing where they aren't.
  std::optional<double> factor_of(const std::vector<double>& pattern) const {
    double product = 0.0, square = 0.0;
    for (size_t i = 0; i < size(); ++i) {
      if (!known(i)) continue;
      const double trust = 1.0 / std::pow(std::max(weights_.deviations[i], 1e-12), 2);
      product += trust * weights_.values[i] * pattern[i];
      square += trust * pattern[i] * pattern[i];
    }
    if (!(square > 0.0) || product == 0.0) return std::nullopt;
    double factor = product / square;
    for (const double whole : {1.0, std::round(factor)}) {
      if (whole != 0.0 &&
          std::abs(factor - whole) <= std::max(kWeightDeviations / std::sqrt(square), kWeightRounding))
        factor = whole;
    }
    for (size_t i = 0; i < size(); ++i) {
      if (!is(i, factor * pattern[i])) return std::nullopt;
    }
    return factor;
  }

  /// `times`: by what `pattern` gives the weights; `factor`: what of that the sentence doesn't say.
  void add(std::string name, std::string sentence, std::vector<double> pattern, double times, double factor) {
    for (double& weight : pattern) weight *= times;
    found_.push_back({std::move(name), std::move(sentence), factor, std::move(pattern)});
  }

  double sum_of_scored(const std::vector<bool>& chosen) const {
    double sum = 0.0;
    for (size_t i = 0; i < size(); ++i) sum += chosen[i] ? facts_.scored[i] : 0.0;
    return sum;
  }

  /// Some are not there, the others are all there.
  void missing() {
    std::vector<int64_t> gone;
    std::vector<double> pattern(size(), 1.0);
    std::vector<bool> kept(size(), true);
    for (size_t i = 0; i < size(); ++i) {
      if (!known(i) || !is(i, 0.0)) continue;
      gone.push_back(static_cast<int64_t>(i));
      pattern[i] = 0.0;
      kept[i] = false;
    }
    const size_t left = size() - gone.size();
    if (gone.empty() || left == 0) return;
    std::optional<double> factor = factor_of(pattern);
    std::string what = missing_text(gone);
    if (!factor) {  // those that are left may count by means of their own
      micro_batches(kept, what);
      return;
    }
    const double times = *factor;
    const double own = sum_of_scored(kept), all = sum_of_scored(std::vector<bool>(size(), true));
    const double steps = std::round(static_cast<double>(size()) / static_cast<double>(left));
    const auto close = [&](double to) { return std::abs(*factor / to - 1.0) <= tolerance(); };
    if (own > 0.0 && own < all && close(all / own)) {
      what += fmt::format(", divided by their own {:g} labels instead of {:g}", own, all);
      factor = 1.0;
    } else if (own > 0.0 && own < all && close(all / own / steps)) {
      what += fmt::format(", divided by their own {:g} labels and by {:g} steps instead of {:g} labels", own,
                          steps, all);
      factor = 1.0;
    }
    add("rows-missing", what, pattern, times, *factor);
  }

  double tolerance() const {
    double least = 1e300;
    for (size_t i = 0; i < size(); ++i) {
      if (known(i) && weights_.values[i] != 0.0)
        least = std::min(least, weights_.deviations[i] / std::abs(weights_.values[i]));
    }
    return std::max(kWeightDeviations * least, kWeightRounding);
  }

  std::string missing_text(const std::vector<int64_t>& gone) const {
    const auto all = static_cast<int64_t>(size()), count = static_cast<int64_t>(gone.size());
    const int64_t left = all - count;
    const bool begins = gone.front() == 0 && gone.back() == count - 1;
    const bool ends = gone.front() == left && gone.back() == all - 1;
    if (facts_.pairs && 2 * count == all && (begins || ends)) {
      return fmt::format("the {} completions are missing: only the {} ones are in these gradients",
                         begins ? "chosen" : "rejected", begins ? "rejected" : "chosen");
    }
    if (facts_.pairs) {
      std::vector<int64_t> pairs;
      for (const int64_t i : gone) {
        if (i < all / 2 && std::find(gone.begin(), gone.end(), i + all / 2) != gone.end()) pairs.push_back(i);
      }
      if (2 * std::ssize(pairs) == count) return part_text("pair", pairs, all / 2);
    }
    return part_text(facts_.unit, gone, all);
  }

  static std::string part_text(const std::string& unit, const std::vector<int64_t>& gone, int64_t all) {
    const auto count = static_cast<int64_t>(gone.size());
    const int64_t left = all - count;
    std::string text = fmt::format("{} {} missing", list_text(unit, gone), gone.size() == 1 ? "is" : "are");
    const bool begins = gone.front() == 0 && gone.back() == count - 1;
    const bool ends = gone.front() == left && gone.back() == all - 1;
    if ((begins || ends) && left > 0 && count >= left && all % left == 0) {
      text += fmt::format(": only the {} of {} micro-batches is in these gradients",
                          begins ? "last" : "first", all / left);
    } else if (begins && count == 1) {
      text += ": the first one is left out";
    }
    return text;
  }

  /// Whole numbers of times.
  void several_times() {
    double least = std::numeric_limits<double>::infinity();
    for (size_t i = 0; i < size(); ++i) {
      if (known(i) && !is(i, 0.0)) least = std::min(least, std::abs(weights_.values[i]));
    }
    if (!std::isfinite(least)) return;
    std::vector<double> pattern(size(), 1.0);
    std::map<int64_t, std::vector<int64_t>> by_times;
    for (size_t i = 0; i < size(); ++i) {
      if (!known(i)) continue;
      pattern[i] = std::round(weights_.values[i] / least);
      if (std::abs(pattern[i]) > 64.0) return;
      by_times[static_cast<int64_t>(pattern[i])].push_back(static_cast<int64_t>(i));
    }
    if (by_times.size() < 2 || by_times.contains(0) || by_times.begin()->first < 0) return;
    if (2 * by_times.begin()->second.size() < size()) return;  // most are there once
    const std::optional<double> factor = factor_of(pattern);
    if (!factor) return;
    std::vector<std::string> texts;
    for (const auto& [times, numbers] : by_times) {
      if (times != 1)
        texts.push_back(fmt::format("{} {} there {}", list_text(facts_.unit, numbers),
                                    numbers.size() == 1 ? "is" : "are",
                                    times == 2 ? "twice" : fmt::format("{} times", times)));
    }
    add("rows-repeated", fmt::format("{}", fmt::join(texts, ", ")), pattern, *factor, *factor);
  }

  /// Micro-batches of `rows` rows, each divided by its own labels, of those that are `kept`.
  struct Means {
    std::vector<double> pattern;
    double number = 0.0;  // of micro-batches with a label
  };

  Means means_of(int64_t rows, const std::vector<bool>& kept) const {
    std::map<int64_t, double> labels;
    for (size_t i = 0; i < size(); ++i) {
      if (kept[i]) labels[facts_.rows[i] / rows] += facts_.scored[i];
    }
    Means means{std::vector<double>(size(), 0.0), 0.0};
    for (const auto& [number, count] : labels) means.number += count > 0.0 ? 1.0 : 0.0;
    const double all = sum_of_scored(std::vector<bool>(size(), true));
    for (size_t i = 0; i < size(); ++i) {
      const double own = kept[i] ? labels[facts_.rows[i] / rows] : 0.0;
      if (own > 0.0) means.pattern[i] = all / (means.number * own);
    }
    return means;
  }

  void micro_batches(const std::vector<bool>& kept, const std::string& before) {
    const int64_t last = facts_.rows.empty() ? 0 : *std::max_element(facts_.rows.begin(), facts_.rows.end());
    const bool everything = std::find(kept.begin(), kept.end(), false) == kept.end();
    std::vector<std::vector<double>> seen{std::vector<double>(size(), 1.0)};
    for (int64_t rows = 1; rows <= last; ++rows) {
      const Means means = means_of(rows, kept);
      const auto same = [&](const std::vector<double>& other) {
        return std::equal(other.begin(), other.end(), means.pattern.begin(),
                          [](double a, double b) { return std::abs(a - b) <= 1e-12 * std::abs(a); });
      };
      if (std::any_of(seen.begin(), seen.end(), same)) continue;
      seen.push_back(means.pattern);
      std::optional<double> factor = factor_of(means.pattern);
      if (!factor) continue;
      const double times = *factor;
      const std::string of = rows == 1 ? "single rows" : fmt::format("micro-batches of {} rows", rows);
      std::string text = fmt::format("the loss is the mean of the means of {}", of);
      if (means.number > 1.0 && std::abs(*factor / means.number - 1.0) <= tolerance()) {
        text = fmt::format(
            "the loss is the sum of the means of {}: each is divided by its own labels, and the {:g} of them "
            "are not averaged",
            of, means.number);
        factor = 1.0;
      }
      add(everything ? fmt::format("mean-of-means-{}-rows", rows) : "rows-missing",
          before.empty() ? text : before + "; of the others " + text, means.pattern, times, *factor);
    }
  }

  void micro_batches() { micro_batches(std::vector<bool>(size(), true), ""); }

  /// Rows that should weigh the same weigh as much as they have scored tokens.
  void by_length() {
    const double all = sum_of_scored(std::vector<bool>(size(), true));
    if (!(all > 0.0)) return;
    std::vector<double> pattern;
    for (const double scored : facts_.scored) pattern.push_back(scored * static_cast<double>(size()) / all);
    if (std::all_of(pattern.begin(), pattern.end(), [&](double p) { return p == pattern.front(); })) return;
    if (const auto factor = factor_of(pattern))
      add("rows-by-length", "rows count by their scored tokens: terms are averaged over all tokens at once",
          pattern, *factor, *factor);
  }

  /// Rows that count by another power of their scored tokens, in a mean of that weight.
  void by_power_of_length() {
    std::set<double> lengths(facts_.scored.begin(), facts_.scored.end());
    lengths.erase(0.0);
    if (lengths.size() < 3) return;  // two would fit any power
    for (const auto& [power, text] :
         {std::pair{-0.5, "divided by the square root of"},
          std::pair{0.5, "multiplied by the square root of"}, std::pair{-2.0, "divided by the square of"}}) {
      double all = 0.0, weighted = 0.0;
      std::vector<double> pattern;
      for (const double scored : facts_.scored) {
        pattern.push_back(scored > 0.0 ? std::pow(scored, power) : 0.0);
        all += scored;
        weighted += scored * pattern.back();
      }
      for (double& weight : pattern) weight *= all / weighted;
      if (const auto factor = factor_of(pattern))
        add(fmt::format("rows-by-length-to-{:g}", 1.0 + power),
            fmt::format("each {}'s loss is {} its scored tokens", facts_.unit, text), pattern, *factor,
            *factor);
    }
  }

  /// The advantages that are in effect, times their weights.
  void advantages() {
    if (facts_.advantages.empty()) return;
    std::vector<size_t> from(size());
    std::vector<bool> used(size(), false);
    bool permuted = true, changed = false;
    const auto fits = [&](size_t i, double advantage) {
      return facts_.advantages[i] == 0.0 ? is(i, advantage) : is(i, advantage / facts_.advantages[i]);
    };
    for (size_t i = 0; i < size() && permuted; ++i) {
      std::optional<size_t> found;
      for (size_t step = 0; step < size(); ++step) {
        const size_t j = (i + step) % size();
        if (!used[j] && fits(i, facts_.advantages[j])) {
          found = j;
          break;
        }
      }
      permuted = found.has_value();
      if (!found) break;
      used[*found] = true;
      from[i] = *found;
      changed = changed || facts_.advantages[*found] != facts_.advantages[i];
    }
    const auto weights_by = [&](const std::vector<double>& advantages) {
      std::vector<double> all = advantages;
      for (size_t i = 0; i < size(); ++i) {
        if (facts_.advantages[i] != 0.0) all[i] /= facts_.advantages[i];
      }
      return all;
    };
    if (permuted && changed) {
      std::vector<double> theirs;
      for (const size_t i : from) theirs.push_back(facts_.advantages[i]);
      add("advantages-of-other-rows", permutation_text(from), weights_by(theirs), 1.0, 1.0);
    }
    for (const OtherAdvantages& other : facts_.other_advantages) {
      bool all = true;
      for (size_t i = 0; i < size(); ++i) all = all && fits(i, other.of_sequences[i]);
      if (all) add(other.name, other.sentence, weights_by(other.of_sequences), 1.0, 1.0);
    }
  }

  /// Those of one sign are 0, and the others are right.
  bool of_one_sign(double sign) const {
    bool any = false;
    for (size_t i = 0; i < size(); ++i) {
      const bool gone = facts_.advantages[i] * sign < 0.0;
      any = any || (gone && known(i));
      if (!is(i, gone ? 0.0 : 1.0)) return false;
    }
    return any;
  }

  /// Each row's own, times a number.
  RowWords scaled_advantages() const {
    for (const auto& [sign, name, text] :
         {std::tuple{1.0, "negative", "less than 0"}, std::tuple{-1.0, "positive", "more than 0"}}) {
      if (facts_.advantages.size() == size() && of_one_sign(sign))
        return {fmt::format("no-{}-advantages", name),
                fmt::format("{} advantages are missing: rows whose advantage is {} have none (clamped at 0)",
                            name, text),
                1.0};
    }
    if (auto shifted = shifted_advantages(facts_, weights_)) return std::move(*shifted);
    std::vector<std::string> texts;
    for (size_t i = 0; i < size() && texts.size() < 16; ++i) {
      if (known(i))
        texts.push_back(fmt::format("row {}'s by {:.6g}", i, is(i, 0.0) ? 0.0 : weights_.values[i]));
    }
    return {"advantages-scaled",
            fmt::format(
                "advantages are not those that are given, and the rest of the loss is right: {} (as where "
                "groups are divided by their deviation or not)",
                fmt::join(texts, ", ")),
            1.0};
  }

  RowWords as_they_are() const {
    std::vector<std::string> texts;
    for (size_t i = 0; i < size() && texts.size() < 16; ++i) {
      if (known(i)) texts.push_back(fmt::format("{}: {:.4g}", i, weights_.values[i]));
    }
    return {kRowsWeighted,
            fmt::format("{}s don't count alike: each is right but for a factor, {}{}", facts_.unit,
                        fmt::join(texts, ", "), texts.size() < size() ? ", ..." : ""),
            1.0};
  }

  const RowFacts& facts_;
  const RowWeights& weights_;
  std::vector<RowWords> found_;
};

}  // namespace

std::vector<RowWords> words_for(const RowFacts& facts, const RowWeights& weights) {
  return RowReading(facts, weights).words();
}

}  // namespace streambp::verify
