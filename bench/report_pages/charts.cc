// The charts of a report, and its table of all cells.
#include <algorithm>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <limits>
#include <map>
#include <set>

#include "bench/report_pages/report_sections.h"
#include "bench/report_pages/statistics.h"

namespace streambp::bench {
namespace {

using nlohmann::json;

/// Runs that get charts: a report of more stays under a megabyte, and their figures are in the table.
constexpr size_t kMostCharts = 24;

std::optional<double> ratio_to(const std::optional<double>& value, const std::optional<double>& base) {
  if (!value || !base || !(*base > 0.0)) return std::nullopt;
  return *value / *base;
}

std::string ratio_text(const std::optional<double>& ratio) {
  return ratio ? fmt::format("{:.3f}", *ratio) : "-";
}

std::set<int64_t> lengths_of(const ReportGroup& group) {
  std::set<int64_t> lengths;
  for (const ReportSeries& series : group.series) {
    for (const ReportCell* cell : series.cells) lengths.insert(cell->seq_len);
  }
  return lengths;
}

/// A series as charts.py draws it: bytes, or seconds with the spread of the repeats.
json plotted_series(const ReportSeries& series, bool timed) {
  json points = json::array(), lost = json::array();
  for (const ReportCell* cell : series.cells) {
    if (cell->status == "oom") lost.push_back({{"length", cell->seq_len}, {"anchor", cell->id}});
    const std::optional<double>& value = timed ? cell->seconds_median : cell->memory;
    if (!cell->good() || !value || !(*value > 0.0)) continue;
    json point{{"length", cell->seq_len}, {"value", *value}, {"anchor", cell->id}};
    if (timed) {
      const auto [low, high] = std::minmax_element(cell->seconds.begin(), cell->seconds.end());
      point["low"] = *low;
      point["high"] = *high;
    }
    points.push_back(std::move(point));
  }
  return {{"name", series.label}, {"colour", series.colour}, {"points", points}, {"lost", lost}};
}

/// Memory or time of all series against their lengths; null where there is nothing to draw.
json length_plot(const ReportGroup& group, bool timed) {
  json series = json::array();
  bool drawn = false;
  for (const ReportSeries& one : group.series) {
    series.push_back(plotted_series(one, timed));
    drawn = drawn || !series.back().at("points").empty();
  }
  if (!drawn) return nullptr;
  return {{"kind", "lines"},
          {"title", timed ? "Time of one pass" : "Memory beyond weights and gradients"},
          {"quantity", timed ? "seconds" : "bytes"},
          {"series", series}};
}

ReportTable figures_of(const ReportGroup& group) {
  ReportTable table{"", {"tokens", "method", "memory", "x base", "time", "x base"}, {}, false};
  for (const int64_t length : lengths_of(group)) {
    for (const ReportSeries& series : group.series) {
      for (const ReportCell* cell : series.cells) {
        if (cell->seq_len != length) continue;
        const ReportCell* const base = group.base_of(*cell);
        const auto memory = base == nullptr ? std::nullopt : ratio_to(cell->memory, base->memory);
        const auto time =
            base == nullptr ? std::nullopt : ratio_to(cell->seconds_median, base->seconds_median);
        table.rows.push_back(
            {"",
             {Entry::number(length_text(static_cast<double>(length))), series.label,
              Entry::number(cell->good() ? bytes_text(cell->memory) : cell->status),
              Entry::number(ratio_text(memory)), Entry::number(seconds_text(cell->seconds_median)),
              Entry::number(ratio_text(time))}});
      }
    }
  }
  return table;
}

/// A cell with the name that its series has.
using NamedCell = std::pair<const ReportCell*, std::string>;

/// Those of the longest length at which the most cells are good and say what their bytes are for.
std::vector<NamedCell> cells_at_best_length(const ReportGroup& group) {
  std::map<int64_t, std::vector<NamedCell>> by_length;
  for (const ReportSeries& series : group.series) {
    for (const ReportCell* cell : series.cells) {
      if (!cell->by_purpose.empty() && cell->good())
        by_length[cell->seq_len].emplace_back(cell, series.label);
    }
  }
  std::vector<NamedCell> best;
  for (const auto& [length, cells] : by_length) {
    if (cells.size() >= best.size()) best = cells;
  }
  return best;
}

Chart purpose_chart(const ReportGroup& group, const std::vector<NamedCell>& cells) {
  Chart chart;
  chart.caption = fmt::format("{}: {} tokens", group.title,
                              length_text(static_cast<double>(cells.front().first->seq_len)));
  chart.figures = {"", {"method", "purpose", "bytes", "share"}, {}, false};
  json bars = json::array();
  for (const auto& [cell, name] : cells) {
    bars.push_back(purpose_bar(name, cell->id, cell->by_purpose));
    std::vector<std::pair<std::string, double>> parts(cell->by_purpose.begin(), cell->by_purpose.end());
    std::stable_sort(parts.begin(), parts.end(),
                     [](const auto& a, const auto& b) { return a.second > b.second; });
    double total = 0.0;
    for (const auto& [purpose, bytes] : parts) total += bytes;
    for (const auto& [purpose, bytes] : parts) {
      if (!(bytes > 0.0)) continue;
      chart.figures.rows.push_back({"",
                                    {name, purpose, Entry::number(bytes_text(bytes)),
                                     Entry::number(fmt::format("{:.1f} %", 100.0 * bytes / total))}});
    }
  }
  chart.plots.push_back({{"kind", "bars"}, {"bars", bars}});
  return chart;
}

void add_crossover(const ReportGroup& group, const ReportSeries& series, ReportTable& table) {
  std::vector<RelativeCost> memory, time;
  std::optional<double> last_time;
  std::vector<std::string> bases;
  for (const ReportCell* cell : series.cells) {
    const ReportCell* const base = group.base_of(*cell);
    if (base == nullptr || base == cell || !cell->good()) continue;
    if (const std::string label = group.label_of(*base);
        std::find(bases.begin(), bases.end(), label) == bases.end())
      bases.push_back(label);
    const auto length = static_cast<double>(cell->seq_len);
    if (const auto ratio = ratio_to(cell->memory, base->memory)) memory.push_back({length, *ratio});
    if (const auto ratio = ratio_to(cell->seconds_median, base->seconds_median)) {
      const RatioInterval of = ratio_interval(cell->seconds, base->seconds);
      time.push_back({length, of.low <= 1.0 && of.high >= 1.0 ? 1.0 : *ratio});
      last_time = *ratio;
    }
  }
  if (memory.empty() && time.empty()) return;
  const std::optional<double> last_memory =
      memory.empty() ? std::nullopt : std::optional(memory.back().ratio);
  const auto text = [](const std::vector<RelativeCost>& costs) {
    return costs.empty() ? std::string("-") : cheaper_text(costs);
  };
  table.rows.push_back(
      {"",
       {group.title, series.label, fmt::format("{}", fmt::join(bases, "; ")), text(memory),
        Entry::number(ratio_text(last_memory)), text(time), Entry::number(ratio_text(last_time)),
        Entry::number(length_text(memory.empty() ? time.back().length : memory.back().length))}});
}

std::string settings_words(const ReportCell& cell) {
  return cell.label == cell.method ? ""
                                   : cell.label.substr(std::min(cell.label.size(), cell.method.size() + 2));
}

TableRow cell_row(const ReportGroup& group, const ReportCell& cell) {
  const ReportCell* const base = group.base_of(cell);
  const auto memory = base == nullptr ? std::nullopt : ratio_to(cell.memory, base->memory);
  const auto time = base == nullptr ? std::nullopt : ratio_to(cell.seconds_median, base->seconds_median);
  const auto optional = [](const std::optional<double>& value, fmt::format_string<const double&> format) {
    return Entry::number(value ? fmt::format(format, *value) : "-");
  };
  std::string repeats;
  if (cell.seconds.size() > 1) {
    const auto [low, high] = std::minmax_element(cell.seconds.begin(), cell.seconds.end());
    repeats = fmt::format("{:.3g} to {:.3g} ({})", *low, *high, cell.seconds.size());
  }
  Entry status(cell.status_words);
  status.mark = cell.good() ? Mark::kNone : cell.status == "oom" ? Mark::kUnsure : Mark::kBad;
  Entry source;
  source.command = cell_command(cell);
  source.links = {record_link(*cell.records.back())};
  return {cell.id,
          {cell.model, cell.objective, Entry::number(fmt::format("{}", cell.seq_len)),
           Entry::number(fmt::format("{}", cell.batch)), cell.method, settings_words(cell),
           Entry::number(bytes_text(cell.memory)), optional(memory, "{:.3f}"),
           Entry::number(seconds_text(cell.seconds_median)), repeats, optional(time, "{:.3f}"),
           optional(cell.tokens_per_second, "{:.0f}"), optional(cell.percent_of_gemm, "{:.1f}"),
           optional(cell.loss, "{:.6f}"), status, source}};
}

}  // namespace

json purpose_bar(const std::string& name, const std::string& anchor,
                 const std::map<std::string, double>& by_purpose) {
  return {{"name", name}, {"anchor", anchor}, {"parts", by_purpose}};
}

ReportSection length_section(const std::vector<ReportGroup>& groups) {
  ReportSection section{"lengths", "Memory and time against length", {}};
  section.blocks.push_back(
      "Memory is the allocator's peak beyond weights and gradients; time is the median of the repeats with "
      "a band from the fastest to the slowest. A cross at the top ran out of memory.");
  size_t left_out = 0, drawn = 0;
  for (const ReportGroup& group : groups) {
    if (lengths_of(group).size() < 2) continue;
    if (drawn == kMostCharts) {
      ++left_out;
      continue;
    }
    Chart chart;
    chart.caption = group.title;
    for (const bool timed : {false, true}) {
      if (json plot = length_plot(group, timed); !plot.is_null()) chart.plots.push_back(std::move(plot));
    }
    if (chart.plots.empty()) continue;
    ++drawn;
    chart.figures = figures_of(group);
    section.blocks.push_back(std::move(chart));
  }
  if (drawn == 0) section.blocks.push_back("No run has two lengths: there is no curve to draw.");
  if (left_out > 0)
    section.blocks.push_back(fmt::format("{} runs more are in the table of every cell only.", left_out));
  return section;
}

ReportSection purpose_section(const std::vector<ReportGroup>& groups) {
  ReportSection section{"purposes", "Peak by purpose", {}};
  std::vector<std::pair<const ReportGroup*, std::vector<NamedCell>>> found;
  for (const ReportGroup& group : groups) {
    std::vector<NamedCell> cells = cells_at_best_length(group);
    if (!cells.empty()) found.emplace_back(&group, std::move(cells));
  }
  for (size_t i = 0; i < std::min(found.size(), kMostCharts); ++i)
    section.blocks.push_back(purpose_chart(*found[i].first, found[i].second));
  if (found.empty()) section.blocks.push_back("No record says what its bytes are for.");
  if (found.size() > kMostCharts)
    section.blocks.push_back(
        fmt::format("{} runs more are in the table of every cell only.", found.size() - kMostCharts));
  return section;
}

ReportSection crossover_section(const std::vector<ReportGroup>& groups) {
  ReportSection section{"crossover", "Crossover", {}};
  ReportTable table{
      "At which lengths a method is below the base; crossings are interpolated between two lengths. A time "
      "whose "
      "interval holds 1 is none below it",
      {"run", "method", "base", "smaller", "memory x base", "faster", "time x base", "at tokens"},
      {},
      false};
  for (const ReportGroup& group : groups) {
    for (const ReportSeries& series : group.series) add_crossover(group, series, table);
  }
  if (table.rows.empty())
    section.blocks.push_back("No method is recorded next to checkpoint or standard.");
  else
    section.blocks.push_back(std::move(table));
  return section;
}

ReportSection cells_section(const ReportCells& cells, const std::vector<ReportGroup>& groups) {
  ReportTable table{"",
                    {"model", "objective", "tokens", "batch", "method", "settings", "memory", "x base",
                     "time", "repeats", "x base", "tokens/s", "% GEMM", "loss", "status", "record"},
                    {},
                    true};
  std::map<const ReportCell*, const ReportGroup*> group_of;
  for (const ReportGroup& group : groups) {
    for (const ReportSeries& series : group.series) {
      for (const ReportCell* cell : series.cells) group_of[cell] = &group;
    }
  }
  for (const ReportCell& cell : cells.cells) table.rows.push_back(cell_row(*group_of.at(&cell), cell));
  ReportSection section{"cells", "Every cell", {}};
  section.blocks.push_back(
      "The command runs the cell again, alone; the link leads to the file, its number is the line.");
  section.blocks.push_back(std::move(table));
  return section;
}

Document report_document(const ReportCells& cells, const std::string& made) {
  const std::vector<ReportGroup> groups = report_groups(cells);
  Document document;
  document.title = "StreamBP bench: what exact back-propagation costs";
  document.made = made;
  document.verdict = report_verdict(cells, groups);
  document.sections = {coverage_section(cells, groups), length_section(groups), purpose_section(groups),
                       crossover_section(groups), exactness_section(cells, groups)};
  if (!cells.paper.empty()) document.sections.push_back(paper_section(cells.paper));
  document.sections.push_back(environment_section(cells));
  document.sections.push_back(cells_section(cells, groups));
  return document;
}

}  // namespace streambp::bench
