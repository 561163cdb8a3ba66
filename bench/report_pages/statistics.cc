#include "bench/report_pages/statistics.h"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <fmt/ranges.h>

namespace streambp::bench {
namespace {

/// The probability that fewer than k of `n` values lie below the median, for k = 1, 2, ...
class Below {
 public:
  explicit Below(size_t n) : n_(n), power_(-static_cast<int>(n)) {}

  double next() {
    sum_ += std::ldexp(term_, power_);
    term_ *= static_cast<double>(n_ - k_) / static_cast<double>(k_ + 1);
    ++k_;
    int more = 0;  // 0.5^n alone is 0 from 1,075 values on
    term_ = std::frexp(term_, &more);
    power_ += more;
    return sum_;
  }

 private:
  size_t n_, k_ = 0;
  double term_ = 1.0;  // times 2^power_
  int power_;
  double sum_ = 0.0;
};

/// The length at which a straight line through the logarithms of both points is at 1.
double crossing(const RelativeCost& a, const RelativeCost& b) {
  const double at = std::log(a.ratio) / (std::log(a.ratio) - std::log(b.ratio));
  return std::exp(std::log(a.length) + at * (std::log(b.length) - std::log(a.length)));
}

/// Two digits: an interpolated length has no more.
std::string rounded(double length) {
  const double unit = std::pow(10.0, std::floor(std::log10(length)) - 1.0);
  return fmt::format("{:.0f}", std::round(length / unit) * unit);
}

}  // namespace

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : 0.5 * (values[middle - 1] + values[middle]);
}

double geometric_mean(const std::vector<double>& ratios) {
  double sum = 0.0;
  for (const double ratio : ratios) sum += std::log(ratio);
  return std::exp(sum / static_cast<double>(ratios.size()));
}

MedianInterval median_interval(std::vector<double> values) {
  constexpr double kCoverage = 0.95;
  std::sort(values.begin(), values.end());
  const size_t n = values.size();
  Below below(n);
  size_t k = 1;
  double coverage = 1.0 - 2.0 * below.next();
  while (2 * (k + 1) <= n) {
    const double narrower = 1.0 - 2.0 * below.next();
    if (!(narrower >= kCoverage)) break;
    coverage = narrower;
    ++k;
  }
  return {median(values), values[k - 1], values[n - k], std::max(0.0, coverage), n};
}

RatioInterval ratio_interval(const std::vector<double>& values, const std::vector<double>& base) {
  const MedianInterval a = median_interval(values), b = median_interval(base);
  return {a.median / b.median, a.low / b.high, a.high / b.low};
}

MedianInterval paired_interval(const std::vector<double>& values, const std::vector<double>& base) {
  std::vector<double> ratios;
  for (size_t i = 0; i < std::min(values.size(), base.size()); ++i) ratios.push_back(values[i] / base[i]);
  return median_interval(std::move(ratios));
}

bool is_known(const MedianInterval& interval, double within) {
  return 0.5 * (interval.high - interval.low) <= within * interval.median;
}

const char* change_name(Change change) {
  switch (change) {
    case Change::kSame:
      return "SAME";
    case Change::kBetter:
      return "BETTER";
    case Change::kWorse:
      return "WORSE";
    case Change::kAmbiguous:
      break;
  }
  return "AMBIGUOUS";
}

Change judge(const RatioInterval& ratio, double threshold) {
  if (ratio.low > 1.0 + threshold) return Change::kWorse;
  if (ratio.high < 1.0 - threshold) return Change::kBetter;
  const bool within = ratio.low >= 1.0 - threshold && ratio.high <= 1.0 + threshold;
  return within ? Change::kSame : Change::kAmbiguous;
}

std::string cheaper_text(const std::vector<RelativeCost>& costs) {
  if (costs.empty()) return "";
  const auto cheaper = [](const RelativeCost& cost) { return cost.ratio < 1.0; };
  if (std::all_of(costs.begin(), costs.end(), cheaper)) return "at every length";
  if (std::none_of(costs.begin(), costs.end(), cheaper)) return "at none";
  std::vector<std::string> parts;
  if (cheaper(costs.front())) parts.push_back("at the shortest");
  for (size_t i = 1; i < costs.size(); ++i) {
    if (cheaper(costs[i - 1]) == cheaper(costs[i])) continue;
    parts.push_back(fmt::format("{} about {}", cheaper(costs[i]) ? "from" : "up to",
                                rounded(crossing(costs[i - 1], costs[i]))));
  }
  return fmt::format("{}", fmt::join(parts, ", "));
}

}  // namespace streambp::bench
