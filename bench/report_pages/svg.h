// Drawings in SVG. Colours, marks and dashes of series come from the page's style sheet by their number,
// those of purposes are fixed; every point and bar has a text of its own (<title>) and may lead to an anchor
// of the page.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "bench/report_pages/document.h"

namespace streambp::bench {

/// Series that a style sheet tells apart.
inline constexpr size_t kSeriesColours = 8;

enum class Quantity { kBytes, kSeconds };

/// "152 MB", "2.31 s".
std::string quantity_text(Quantity quantity, double value);

struct ChartPoint {
  double length = 0.0, value = 0.0;
  double low = 0.0, high = 0.0;  // spread of the repeats; both `value` where there is one only
  std::string anchor, text;
};

struct ChartSeries {
  std::string name;
  size_t colour = 0;               // below kSeriesColours
  std::vector<ChartPoint> points;  // by ascending length
  std::vector<ChartPoint> lost;    // lengths that ran out of memory: drawn at the top
};

/// `quantity` against length, twice: on logarithmic axes and on linear ones from 0, for the page to show one
/// of them. Empty where no series has a point with a positive length and value.
std::string line_chart(const std::string& title, Quantity quantity, const std::vector<ChartSeries>& series);

struct BarPart {
  std::string purpose;
  double bytes = 0.0;
};

struct Bar {
  std::string name, anchor;
  std::vector<BarPart> parts;  // from the left
};

/// Horizontal bars in one scale.
std::string stacked_bars(const std::string& title, const std::vector<Bar>& bars);

/// One of two runs over time.
struct TimelineCurve {
  std::string name;
  size_t colour = 0;
  std::vector<double> time;   // from 0 to 1
  std::vector<double> bytes;  // live then
};

/// Live bytes of runs over their passes, on one scale.
std::string timeline_chart(const std::string& title, const std::vector<TimelineCurve>& curves);

/// The colour of a purpose of memory ("layer inputs", "logits"); grey for one that is not known.
std::string purpose_fill(const std::string& purpose);
/// Whether `purpose` is there before the pass, for all of it.
bool is_resident(const std::string& purpose);
/// Ascending from what stays to what comes and goes with a chunk; unknown ones last.
size_t purpose_rank(const std::string& purpose);

/// A button of a legend that shows and hides a series, or a text for a purpose.
std::string legend_item(const LegendEntry& entry);

}  // namespace streambp::bench
