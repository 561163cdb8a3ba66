// What repeats of a measurement say: medians, and intervals that hold without assuming a distribution.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

namespace streambp::bench {

/// The middle value, or the mean of the two in the middle. `values` must not be empty.
double median(std::vector<double> values);

/// Of ratios, all positive: by which factor they change in the mean. `ratios` must not be empty.
double geometric_mean(const std::vector<double>& ratios);

/// The median and an interval of order statistics around it.
struct MedianInterval {
  double median = 0.0;
  double low = 0.0, high = 0.0;
  double coverage = 0.0;  // of the true median, whatever the distribution; 0 for one value
  size_t count = 0;
};

/// The narrowest symmetric pair of order statistics that covers the median with at least 95 %; of fewer than
/// 6 values, which no such pair does, the lowest and the highest, with what they cover (75 % for 3). `values`
/// must not be empty.
MedianInterval median_interval(std::vector<double> values);

/// A ratio of two medians, with the lowest and the highest that their intervals permit.
struct RatioInterval {
  double ratio = 0.0;
  double low = 0.0, high = 0.0;
};

/// Of the median of `values` to that of `base`; both must be positive and not empty.
RatioInterval ratio_interval(const std::vector<double>& values, const std::vector<double>& base);

/// Of methods that take turns: the interval of the ratio of each round's times, which a machine that slows
/// down for a while slows alike. Rounds that only one of them has are left out; there must be one that both
/// have.
MedianInterval paired_interval(const std::vector<double>& values, const std::vector<double>& base);

/// Whether the interval is known to `within` of its median, on either side of its middle.
bool is_known(const MedianInterval& interval, double within);

/// Fewest repeats on either side with which a ratio of times is judged at all.
inline constexpr size_t kFewestJudged = 3;

enum class Change { kSame, kBetter, kWorse, kAmbiguous };

/// "SAME", "BETTER", "WORSE", "AMBIGUOUS".
const char* change_name(Change change);

/// Of a cost that was 1 and is `ratio`: better or worse where the whole interval is below 1 - `threshold` or
/// above 1 + `threshold`, the same where all of it lies between them, else ambiguous.
Change judge(const RatioInterval& ratio, double threshold);

/// A curve of costs relative to another's, by length.
struct RelativeCost {
  double length = 0.0;
  double ratio = 0.0;
};

/// "at every length", "at none", or from (and to) which lengths the ratio is below 1: between two lengths the
/// crossing is interpolated in the logarithms. `costs` by ascending length; "" where there are none.
std::string cheaper_text(const std::vector<RelativeCost>& costs);

}  // namespace streambp::bench
