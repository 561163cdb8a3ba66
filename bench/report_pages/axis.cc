#include "bench/report_pages/axis.h"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>

namespace streambp::bench {
namespace {

constexpr size_t kMostTicks = 6;
/// Shares of the axis that labels of lengths need to themselves.
constexpr double kLabelWidth = 0.13;

/// The least of 1, 2, 5 times a power of ten that is at least `step`.
double round_step(double step) {
  const double power = std::pow(10.0, std::floor(std::log10(step)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (factor * power >= step * (1.0 - 1e-9)) return factor * power;
  }
  return 10.0 * power;
}

}  // namespace

double Axis::share(double value) const {
  if (logarithmic) return (std::log(value) - std::log(first)) / (std::log(last) - std::log(first));
  return (value - first) / (last - first);
}

Axis linear_axis(double most) {
  const double step = round_step(most / static_cast<double>(kMostTicks - 1));
  Axis axis;
  axis.last = step * std::ceil(most / step * (1.0 - 1e-9));
  for (size_t i = 0; static_cast<double>(i) * step <= axis.last * (1.0 + 1e-9); ++i)
    axis.ticks.push_back(static_cast<double>(i) * step);
  return axis;
}

Axis logarithmic_axis(double least, double most) {
  Axis axis;
  axis.logarithmic = true;
  const bool decades_only = std::log10(most / least) > 2.0;
  std::vector<double> steps;
  const int low = static_cast<int>(std::floor(std::log10(least) + 1e-9));
  const int high = static_cast<int>(std::ceil(std::log10(most) - 1e-9)) + 1;
  for (int power = low; power <= high; ++power) {
    for (const double factor : {1.0, 2.0, 5.0}) {
      if (factor == 1.0 || !decades_only) steps.push_back(factor * std::pow(10.0, power));
    }
  }
  size_t begin = 0, end = 0;
  while (begin + 1 < steps.size() && steps[begin + 1] <= least * (1.0 + 1e-9)) ++begin;
  while (end + 1 < steps.size() && steps[end] < most * (1.0 - 1e-9)) ++end;
  if (end == begin) ++end;
  axis.first = steps[begin];
  axis.last = steps[end];
  axis.ticks.assign(steps.begin() + static_cast<ptrdiff_t>(begin),
                    steps.begin() + static_cast<ptrdiff_t>(end) + 1);
  return axis;
}

Axis length_axis(const std::set<double>& lengths, bool logarithmic) {
  Axis axis;
  axis.logarithmic = logarithmic;
  const double shortest = *lengths.begin(), longest = *lengths.rbegin();
  axis.first = logarithmic ? shortest / 1.12 : 0.0;
  axis.last = logarithmic ? longest * 1.12 : longest * 1.03;
  // From the longest down: on linear axes the short ones are close together.
  double next = 2.0;
  for (auto length = lengths.rbegin(); length != lengths.rend(); ++length) {
    if (next - axis.share(*length) < kLabelWidth) continue;
    axis.ticks.insert(axis.ticks.begin(), *length);
    next = axis.share(*length);
  }
  return axis;
}

std::string length_text(double length) {
  const auto whole = static_cast<long long>(length);
  if (whole >= 100000 && whole % 1024 == 0) return fmt::format("{}K", whole / 1024);
  std::string text = fmt::format("{}", whole);
  for (size_t i = text.size(); i > 3; i -= 3) text.insert(i - 3, ",");
  return text;
}

}  // namespace streambp::bench
