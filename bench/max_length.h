// The longest sequence that fits a budget.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>

#include "bench/predict.h"

namespace streambp::bench {

/// Where the search begins and ends, in tokens of a sequence.
inline constexpr int64_t kShortest = 16;
inline constexpr int64_t kLongest = int64_t{1} << 24;

/// How many bytes there are.
struct Budget {
  int64_t device = 0;
  int64_t host = 0;  // for what is kept off the device; 0: as much as is asked for

  /// The larger share of the two that a pass takes: it fits with 1 or less.
  double share(const Prediction& prediction) const {
    const auto part = [](int64_t bytes, int64_t of) {
      return static_cast<double>(bytes) / static_cast<double>(of);
    };
    return std::max(part(prediction.peak_bytes, device),
                    host > 0 ? part(prediction.host_peak_bytes, host) : 0.0);
  }
  bool holds(const Prediction& prediction) const { return share(prediction) <= 1.0; }
};

/// What was found for a method and its settings.
struct LongestFit {
  Cell cell;  // its length is the longest that fits, 0 where none does
  std::optional<Prediction> at_longest;
  Prediction at_shortest;  // of kShortest tokens: what is needed whatever the length
  int64_t resolution = 0;  // a sequence longer by this does not fit; 0: kLongest fits
  int evaluations = 0;     // passes on the meta device

  bool fits() const { return at_longest.has_value(); }
};

/// The longest sequence for which `cell` needs no more than `budget`, to a token, or the `resolution`th part
/// of the length where that is more. The peak is nearly linear in the length: the search follows the line
/// through the two lengths that enclose the budget and halves the interval where that does not close it.
LongestFit find_longest(Predictor& predictor, const Cell& cell, const Budget& budget,
                        int64_t resolution = 1000);

/// "33.1 GB: weights 16.4 GB, gradients 16.4 GB, ...", the largest first.
std::string describe(const std::map<std::string, int64_t>& breakdown);

}  // namespace streambp::bench
