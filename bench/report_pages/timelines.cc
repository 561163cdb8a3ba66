#include "bench/report_pages/timelines.h"

#include <algorithm>
#include <charconv>

#include "bench/report_pages/csv.h"

namespace streambp::bench {
namespace {

struct Point {
  double time = 0.0, total = 0.0;
};

std::optional<double> number(const std::string& text) {
  double value = 0.0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

/// "# name: value" at the head of the file.
std::map<std::string, std::string> description(std::string_view text) {
  std::map<std::string, std::string> about;
  for (size_t begin = 0; begin < text.size() && text[begin] == '#';) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const std::string_view line = text.substr(begin, end - begin);
    if (const size_t colon = line.find(": "); colon != std::string_view::npos && colon > 2)
      about[std::string(line.substr(2, colon - 2))] = line.substr(colon + 2);
    begin = end + 1;
  }
  return about;
}

void thin(const std::vector<Point>& points, size_t most, Timeline& timeline) {
  const size_t stretch = std::max<size_t>(1, (points.size() + most - 1) / most);
  const double first = points.front().time, last = points.back().time;
  for (size_t begin = 0; begin < points.size(); begin += stretch) {
    const auto from = points.begin() + static_cast<ptrdiff_t>(begin);
    const auto to = points.begin() + static_cast<ptrdiff_t>(std::min(begin + stretch, points.size()));
    const auto [low, high] =
        std::minmax_element(from, to, [](const Point& a, const Point& b) { return a.total < b.total; });
    for (const auto& point : {std::min(low, high), std::max(low, high)}) {
      timeline.time.push_back(last > first ? (point->time - first) / (last - first) : 0.0);
      timeline.total.push_back(point->total);
    }
  }
}

}  // namespace

std::string Timeline::key() const {
  std::string key;
  for (const char* name : {"model", "objective", "method", "seq_len", "batch", "dtype", "device"}) {
    const auto found = about.find(name);
    key += (found == about.end() ? "" : found->second) + "\n";
  }
  return key;
}

std::optional<Timeline> read_timeline(std::string_view text, const std::string& file, size_t most) {
  constexpr size_t kFirstPurpose = 3;
  const std::vector<std::vector<std::string>> rows = csv_rows(text);
  if (rows.size() < 2 || rows.front().size() <= kFirstPurpose) return std::nullopt;
  const std::vector<std::string>& header = rows.front();
  if (header[0] != "event" || header[1] != "seconds" || header[2] != "spans") return std::nullopt;
  Timeline timeline;
  timeline.file = file;
  timeline.about = description(text);
  std::vector<Point> points;
  size_t peak = 0;
  for (size_t i = 1; i < rows.size(); ++i) {
    if (rows[i].size() != header.size()) return std::nullopt;
    const std::optional<double> time = number(rows[i][1].empty() ? rows[i][0] : rows[i][1]);
    Point point{time.value_or(0.0), 0.0};
    for (size_t k = kFirstPurpose; k < header.size(); ++k) {
      const std::optional<double> bytes = number(rows[i][k]);
      if (!bytes || !time) return std::nullopt;
      point.total += *bytes;
    }
    points.push_back(point);
    if (point.total > points[peak].total) peak = points.size() - 1;
  }
  timeline.phase_at_peak = rows[peak + 1][2];
  for (size_t k = kFirstPurpose; k < header.size(); ++k)
    timeline.at_peak[header[k]] = number(rows[peak + 1][k]).value_or(0.0);
  thin(points, most, timeline);
  return timeline;
}

}  // namespace streambp::bench
