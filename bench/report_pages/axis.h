// Axes of charts: which range they show and where their lines are.
#pragma once

#include <set>
#include <string>
#include <vector>

namespace streambp::bench {

struct Axis {
  double first = 0.0, last = 1.0;  // the values at both ends
  bool logarithmic = false;
  std::vector<double> ticks;  // within them, ascending

  /// Where a value lies, from 0 to 1.
  double share(double value) const;
};

/// From 0 to at least `most`, which must be positive, with at most 6 round ticks.
Axis linear_axis(double most);
/// From at most `least` to at least `most`, both positive, with ticks at 1, 2 and 5 times powers of ten, or
/// at powers of ten alone where that is enough.
Axis logarithmic_axis(double least, double most);
/// With a tick at each of the lengths, or at fewer of them where they are many. There must be one.
Axis length_axis(const std::set<double>& lengths, bool logarithmic);

/// "8,192"; from 100,000 up "128K" of 1,024 where that is exact.
std::string length_text(double length);

}  // namespace streambp::bench
