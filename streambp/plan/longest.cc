#include "streambp/plan/longest.h"

#include <algorithm>
#include <utility>

#include "streambp/error.h"
#include "streambp/plan/offload.h"
#include "streambp/runtime/bytes.h"

namespace streambp::plan {
namespace {

/// Lengths and their peaks on both sides of a budget.
class Enclosure {
 public:
  Enclosure(const Budget& budget, int64_t resolution, const Prediction& shortest)
      : budget_(budget), resolution_(resolution), below_(shortest) {}

  void add(const Prediction& prediction) {
    if (budget_.holds(prediction)) {
      before_ = std::exchange(below_, prediction);
    } else {
      above_ = prediction;
    }
  }

  int64_t resolution() const { return std::max<int64_t>(1, below_.seq_len / resolution_); }
  bool closed() const {
    return below_.seq_len == kLongest || (above_ && above_->seq_len - below_.seq_len <= resolution());
  }
  const Prediction& below() const { return below_; }
  int64_t gap() const { return above_ ? above_->seq_len - below_.seq_len : 0; }

  /// The next length to try.
  int64_t next(bool halve) const {
    const int64_t low = below_.seq_len;
    if (!above_) {
      // A line through the last two that fit; far beyond them it is no more than a guess.
      constexpr int64_t kStride = 64;
      const int64_t guess = before_ ? on_line(*before_, below_) : 4096;
      return std::clamp(guess, low + resolution(), std::min(low * kStride, kLongest));
    }
    const int64_t high = above_->seq_len;
    if (halve) return low + (high - low) / 2;
    return std::clamp(on_line(below_, *above_), low + resolution(), high - resolution());
  }

 private:
  /// Where the line through two predictions meets the budget.
  int64_t on_line(const Prediction& a, const Prediction& b) const {
    const double share_a = budget_.share(a), share_b = budget_.share(b);
    if (share_b <= share_a) return kLongest;
    const double slope = (share_b - share_a) / static_cast<double>(b.seq_len - a.seq_len);
    const double length = static_cast<double>(a.seq_len) + (1.0 - share_a) / slope;
    return static_cast<int64_t>(std::min(length, static_cast<double>(kLongest)));
  }

  Budget budget_;
  int64_t resolution_;
  Prediction below_;                  // the longest that fits
  std::optional<Prediction> before_;  // the one that fitted before it
  std::optional<Prediction> above_;   // the shortest that does not
};

}  // namespace

int64_t usual_margin(int64_t bytes, c10::DeviceType device) {
  constexpr int64_t kContext = 1'000'000'000;
  constexpr int64_t kBetweenBlocks = 50;  // one part in so many
  return device == c10::kCUDA ? kContext + bytes / kBetweenBlocks : 0;
}

int64_t less_margin(int64_t bytes, std::optional<int64_t> margin, c10::DeviceType device) {
  const int64_t left = margin.value_or(usual_margin(bytes, device));
  if (left >= bytes) {
    throw InputError("budget {}: a margin of {} leaves nothing; expected a larger budget or a smaller margin",
                     format_bytes(bytes), format_bytes(left));
  }
  return bytes - left;
}

LongestFit longest(Predictor& predictor, TrainingStep step, const Settings& settings, const Budget& budget,
                   int64_t resolution) {
  // A line that has not closed the interval by then is not one.
  constexpr int kOnLine = 8;
  LongestFit found;
  const auto predict = [&](int64_t seq_len) {
    ++found.evaluations;
    step.seq_len = seq_len;
    return fit_offload(predictor, step, settings, budget, OffloadGoal::kBalanced).prediction;
  };
  found.settings = settings;
  found.at_shortest = predict(kShortest);
  if (!budget.holds(found.at_shortest)) return found;
  Enclosure enclosure(budget, resolution, found.at_shortest);
  while (!enclosure.closed()) enclosure.add(predict(enclosure.next(found.evaluations > kOnLine)));
  step.seq_len = enclosure.below().seq_len;
  const OffloadFit chosen = fit_offload(predictor, step, settings, budget, OffloadGoal::kFewest);
  found.settings = chosen.settings;
  found.at_longest = chosen.prediction;
  found.seq_len = enclosure.below().seq_len;
  found.resolution = enclosure.gap();
  return found;
}

LongestFit longest(const Workload& workload, const Settings& settings, const Budget& budget) {
  Predictor predictor(complete_setup(workload), workload.device);
  return longest(predictor, workload.step, settings, budget);
}

}  // namespace streambp::plan
