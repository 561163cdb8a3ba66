#include "bench/report_pages/svg.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <fmt/format.h>
#include <set>

#include "bench/report_pages/axis.h"

namespace streambp::bench {
namespace {

constexpr double kWidth = 420.0, kHeight = 290.0;
constexpr double kLeft = 62.0, kRight = 14.0, kTop = 30.0, kBottom = 44.0;

/// What is drawn: axes reach to powers of ten around it, and beyond a double there are none.
bool is_drawn(double value) {
  return value >= 1e-300 && value <= 1e300;
}

struct Purpose {
  const char* name;
  const char* fill;
};

/// From what stays to what comes and goes with a chunk, in Okabe and Ito's colours and tints of them.
constexpr std::array<Purpose, 20> kPurposes{{{"weights", "#bdbdbd"},
                                             {"gradients", "#8f8f8f"},
                                             {"master weights", "#a3a3a3"},
                                             {"optimizer", "#6e6e6e"},
                                             {"batch", "#dddddd"},
                                             {"other", "#cfcfcf"},
                                             {"teacher", "#b2a48c"},
                                             {"layer inputs", "#0072b2"},
                                             {"keys and values", "#56b4e9"},
                                             {"latent keys and values", "#86cdf2"},
                                             {"key and value gradients", "#9adbc5"},
                                             {"recurrent states", "#1b7fa0"},
                                             {"attention outputs", "#f0e442"},
                                             {"attention", "#e69f00"},
                                             {"MLP", "#009e73"},
                                             {"activations", "#d8a0c0"},
                                             {"chunk", "#cc79a7"},
                                             {"head chunk", "#b98ce0"},
                                             {"logits", "#d55e00"},
                                             {"kernel workspace", "#4d4d4d"}}};
constexpr size_t kResidentPurposes = 4;

std::string begin_svg(const char* name, const std::string& title, double height) {
  return fmt::format(
      "<svg class=\"{}\" viewBox=\"0 0 {:.0f} {:.0f}\" role=\"img\" aria-label=\"{}\">"
      "<text class=\"t\" x=\"8\" y=\"16\">{}</text>",
      name, kWidth, height, html_text(title), html_text(title));
}

/// A mark of its own for each colour.
std::string mark_shape(size_t colour, double x, double y) {
  const char* const paths[] = {"m0-4.5l4.5 8h-9z",      "m-3.6-3.6h7.2v7.2h-7.2z", "",
                               "m0-5l5 5-5 5-5-5z",     "m0 4.5l4.5-8h-9z",        "m-4.5-1.3h9v2.6h-9z",
                               "m-1.3-4.5h2.6v9h-2.6z", "m-4 0l4-2 4 2-4 2z"};
  const char* const path = paths[colour % kSeriesColours];
  if (*path == '\0') return fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"4\"/>", x, y);
  return fmt::format("<path d=\"M{:.1f} {:.1f}{}\"/>", x, y, path);
}

std::string linked(const std::string& anchor, const std::string& text, const std::string& shape) {
  const std::string inner = fmt::format("<title>{}</title>{}", html_text(text), shape);
  if (anchor.empty()) return fmt::format("<g class=\"pt\">{}</g>", inner);
  return fmt::format("<a class=\"pt\" href=\"#{}\">{}</a>", anchor, inner);
}

/// The frame of a chart: where a length and a value come to lie.
struct Frame {
  Axis x, y;

  double left_of(double length) const { return kLeft + x.share(length) * (kWidth - kLeft - kRight); }
  double top_of(double value) const {
    return kHeight - kBottom - y.share(value) * (kHeight - kTop - kBottom);
  }
};

std::string axes_text(const Frame& frame, Quantity quantity) {
  std::string out = "<g class=\"ax\">";
  for (const double value : frame.y.ticks) {
    const double top = frame.top_of(value);
    out += fmt::format(
        "<path d=\"M{:.0f} {:.1f}H{:.0f}\"/><text x=\"{:.0f}\" y=\"{:.1f}\" text-anchor=\"end\">{}</text>",
        kLeft, top, kWidth - kRight, kLeft - 5.0, top + 4.0, quantity_text(quantity, value));
  }
  for (const double length : frame.x.ticks) {
    const double left = frame.left_of(length);
    out += fmt::format(
        "<path d=\"M{:.1f} {:.0f}v4\"/><text x=\"{:.1f}\" y=\"{:.0f}\" text-anchor=\"middle\">{}</text>",
        left, kHeight - kBottom, left, kHeight - kBottom + 17.0, length_text(length));
  }
  return out + fmt::format("<text x=\"{:.0f}\" y=\"{:.0f}\" text-anchor=\"middle\">tokens</text></g>",
                           0.5 * (kLeft + kWidth - kRight), kHeight - 8.0);
}

/// The band of the repeats, the curve, its points, and what ran out of memory.
std::string series_text(const Frame& frame, const ChartSeries& series) {
  std::string curve, upper, lower, marks;
  bool spread = false;
  for (const ChartPoint& point : series.points) {
    const double x = frame.left_of(point.length), y = frame.top_of(point.value);
    curve += fmt::format("{}{:.1f} {:.1f}", curve.empty() ? "M" : "L", x, y);
    upper += fmt::format("{}{:.1f} {:.1f}", upper.empty() ? "M" : "L", x, frame.top_of(point.high));
    lower = fmt::format("L{:.1f} {:.1f}", x, frame.top_of(point.low)) + lower;
    spread = spread || point.high > point.low;
    marks += linked(point.anchor, point.text, mark_shape(series.colour, x, y));
  }
  for (const ChartPoint& point : series.lost) {
    const std::string cross = fmt::format("<path class=\"x\" d=\"M{:.1f} {:.1f}m-4-4l8 8m0-8l-8 8\"/>",
                                          frame.left_of(point.length), kTop + 4.0);
    marks += linked(point.anchor, point.text, cross);
  }
  std::string out = fmt::format("<g class=\"s s{}\">", series.colour % kSeriesColours);
  if (spread) out += fmt::format("<path class=\"b\" d=\"{}{}z\"/>", upper, lower);
  if (series.points.size() > 1) out += fmt::format("<path class=\"l\" d=\"{}\"/>", curve);
  return out + marks + "</g>";
}

}  // namespace

std::string quantity_text(Quantity quantity, double value) {
  if (quantity == Quantity::kSeconds) return value == 0.0 ? "0 s" : fmt::format("{:.3g} s", value);
  constexpr std::pair<const char*, double> kUnits[] = {{"TB", 1e12}, {"GB", 1e9}, {"MB", 1e6}, {"KB", 1e3}};
  for (const auto& [unit, size] : kUnits) {
    if (std::abs(value) >= size) return fmt::format("{:.4g} {}", value / size, unit);
  }
  return fmt::format("{:.4g} B", value);
}

std::string line_chart(const std::string& title, Quantity quantity, const std::vector<ChartSeries>& series) {
  std::set<double> lengths;
  double least = 0.0, most = 0.0;
  for (const ChartSeries& one : series) {
    for (const ChartPoint& point : one.points) {
      for (const double value : {point.length, point.low, point.value, point.high})
        if (!is_drawn(value)) return "";
      lengths.insert(point.length);
      least = least > 0.0 ? std::min(least, point.low) : point.low;
      most = std::max(most, point.high);
    }
    for (const ChartPoint& point : one.lost) lengths.insert(point.length);
  }
  if (!(least > 0.0)) return "";
  std::string out;
  for (const bool logarithmic : {true, false}) {
    const Frame frame{length_axis(lengths, logarithmic),
                      logarithmic ? logarithmic_axis(least, most) : linear_axis(most)};
    out += begin_svg(logarithmic ? "log" : "lin", title, kHeight) + axes_text(frame, quantity);
    for (const ChartSeries& one : series) out += series_text(frame, one);
    out += "</svg>";
  }
  return out;
}

std::string stacked_bars(const std::string& title, const std::vector<Bar>& bars) {
  constexpr double kStep = 42.0, kBarLeft = 8.0;
  double most = 0.0;
  for (const Bar& bar : bars) {
    double total = 0.0;
    for (const BarPart& part : bar.parts) total += part.bytes;
    most = std::max(most, total);
  }
  if (!is_drawn(most)) return "";
  std::string out = begin_svg("bars", title, 28.0 + kStep * static_cast<double>(bars.size()));
  double top = 26.0;
  for (const Bar& bar : bars) {
    double total = 0.0, left = kBarLeft;
    std::string shapes;
    for (const BarPart& part : bar.parts) {
      const double width = part.bytes / most * (kWidth - 2.0 * kBarLeft);
      total += part.bytes;
      if (width >= 0.3) {
        shapes += fmt::format(
            "<rect class=\"pt\" x=\"{:.1f}\" width=\"{:.1f}\" fill=\"{}\"><title>{}: {}</title></rect>", left,
            width, purpose_fill(part.purpose), html_text(part.purpose),
            quantity_text(Quantity::kBytes, part.bytes));
      }
      left += width;
    }
    // The style sheet has the bars' height.
    const std::string element =
        bar.anchor.empty() ? std::string("g") : fmt::format("a href=\"#{}\"", bar.anchor);
    out +=
        fmt::format("<{} transform=\"translate(0 {:.0f})\"><text x=\"{:.0f}\" y=\"-4\">{}: {}</text>{}</{}>",
                    element, top + 14.0, kBarLeft, html_text(bar.name),
                    quantity_text(Quantity::kBytes, total), shapes, bar.anchor.empty() ? "g" : "a");
    top += kStep;
  }
  return out + "</svg>";
}

std::string timeline_chart(const std::string& title, const std::vector<TimelineCurve>& curves) {
  double most = 0.0;
  for (const TimelineCurve& curve : curves) {
    for (const double bytes : curve.bytes) most = std::max(most, bytes);
  }
  if (!is_drawn(most)) return "";
  const Frame frame{linear_axis(1.0), linear_axis(most)};
  std::string out = begin_svg("time", title, kHeight) + "<g class=\"ax\">";
  for (const double value : frame.y.ticks) {
    const double top = frame.top_of(value);
    out += fmt::format(
        "<path d=\"M{:.0f} {:.1f}H{:.0f}\"/><text x=\"{:.0f}\" y=\"{:.1f}\" text-anchor=\"end\">{}</text>",
        kLeft, top, kWidth - kRight, kLeft - 5.0, top + 4.0, quantity_text(Quantity::kBytes, value));
  }
  out += fmt::format(
      "<text x=\"{:.0f}\" y=\"{:.0f}\" text-anchor=\"middle\">of the pass, begin to end</text></g>",
      0.5 * (kLeft + kWidth - kRight), kHeight - 8.0);
  for (const TimelineCurve& curve : curves) {
    std::string path;
    for (size_t i = 0; i < curve.time.size(); ++i)
      path += fmt::format("{}{:.1f} {:.1f}", i == 0 ? "M" : "L", frame.left_of(curve.time[i]),
                          frame.top_of(curve.bytes[i]));
    out += fmt::format("<g class=\"s s{}\"><title>{}</title><path class=\"l\" d=\"{}\"/></g>",
                       curve.colour % kSeriesColours, html_text(curve.name), path);
  }
  return out + "</svg>";
}

std::string purpose_fill(const std::string& purpose) {
  const size_t rank = purpose_rank(purpose);
  return rank < kPurposes.size() ? kPurposes[rank].fill : "#aaaaaa";
}

bool is_resident(const std::string& purpose) {
  return purpose_rank(purpose) < kResidentPurposes;
}

size_t purpose_rank(const std::string& purpose) {
  const auto found = std::find_if(kPurposes.begin(), kPurposes.end(),
                                  [&](const Purpose& known) { return purpose == known.name; });
  return static_cast<size_t>(found - kPurposes.begin());
}

std::string legend_item(const LegendEntry& entry) {
  if (!entry.fill.empty())
    return fmt::format("<span class=\"key\"><i style=\"background:{}\"></i>{}</span> ", entry.fill,
                       html_text(entry.name));
  return fmt::format(
      "<button type=\"button\" class=\"key s s{}\" aria-pressed=\"true\"><svg viewBox=\"-6 -6 12 "
      "12\">{}</svg>{}</button> ",
      entry.colour % kSeriesColours, mark_shape(entry.colour, 0.0, 0.0), html_text(entry.name));
}

}  // namespace streambp::bench
