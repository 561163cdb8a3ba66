// The charts of a report, and its table of all cells.
#include <algorithm>
#include <fmt/format.h>
#include <limits>
#include <map>
#include <set>

#include "bench/report_pages/axis.h"
#include "bench/report_pages/report_sections.h"
#include "bench/report_pages/statistics.h"
#include "bench/report_pages/svg.h"

namespace streambp::bench {
namespace {

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

/// The points of a series: of bytes, or of seconds with the spread of the repeats.
ChartSeries chart_series(const ReportGroup& group, const ReportSeries& series, Quantity quantity) {
  ChartSeries drawn{series.label, series.colour, {}, {}};
  for (const ReportCell* cell : series.cells) {
    const auto length = static_cast<double>(cell->seq_len);
    const std::string where = fmt::format("{}, {} tokens", series.label, length_text(length));
    if (cell->status == "oom")
      drawn.lost.push_back(
          {length, 0.0, 0.0, 0.0, cell->id,
           where + ": " + (cell->status_words == "oom" ? "out of memory" : cell->status_words)});
    const bool timed = quantity == Quantity::kSeconds;
    const std::optional<double>& value = timed ? cell->seconds_median : cell->memory;
    if (!cell->good() || !value || !(*value > 0.0)) continue;
    ChartPoint point{length, *value,   *value,
                     *value, cell->id, fmt::format("{}: {}", where, quantity_text(quantity, *value))};
    if (timed) {
      const auto [low, high] = std::minmax_element(cell->seconds.begin(), cell->seconds.end());
      point.low = *low;
      point.high = *high;
      if (cell->seconds.size() > 1)
        point.text += fmt::format(" ({:.3g} to {:.3g}, {} repeats)", *low, *high, cell->seconds.size());
    }
    if (const ReportCell* base = group.base_of(*cell); base != nullptr && base != cell) {
      if (const auto ratio = ratio_to(value, timed ? base->seconds_median : base->memory))
        point.text += fmt::format(", {:.3f} x {}", *ratio, group.base->label);
    }
    drawn.points.push_back(std::move(point));
  }
  return drawn;
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
             {Entry(length_text(static_cast<double>(length)), static_cast<double>(length)), series.label,
              Entry(cell->good() ? bytes_text(cell->memory) : cell->status, cell->memory.value_or(0.0)),
              Entry(ratio_text(memory), memory.value_or(0.0)),
              Entry(seconds_text(cell->seconds_median), cell->seconds_median.value_or(0.0)),
              Entry(ratio_text(time), time.value_or(0.0))}});
      }
    }
  }
  return table;
}

/// The bars of the longest length at which the most cells are good.
std::vector<const ReportCell*> cells_at_best_length(const ReportGroup& group) {
  std::map<int64_t, std::vector<const ReportCell*>> by_length;
  for (const ReportSeries& series : group.series) {
    for (const ReportCell* cell : series.cells) {
      if (!cell->by_purpose.empty() && cell->good()) by_length[cell->seq_len].push_back(cell);
    }
  }
  std::vector<const ReportCell*> best;
  for (const auto& [length, cells] : by_length) {
    if (cells.size() >= best.size()) best = cells;
  }
  return best;
}

Chart purpose_chart(const ReportGroup& group, const std::vector<const ReportCell*>& cells) {
  Chart chart;
  chart.caption =
      fmt::format("{}: {} tokens", group.title, length_text(static_cast<double>(cells.front()->seq_len)));
  chart.figures = {"", {"method", "purpose", "bytes", "share"}, {}, false};
  std::vector<Bar> bars;
  std::set<std::pair<size_t, std::string>> purposes;
  for (const ReportCell* cell : cells) {
    Bar bar{cell->label, cell->id, {}};
    double total = 0.0;
    for (const auto& [purpose, bytes] : cell->by_purpose) total += bytes;
    for (const auto& [purpose, bytes] : cell->by_purpose) {
      if (!(bytes > 0.0)) continue;
      bar.parts.push_back({purpose, bytes});
      purposes.emplace(purpose_rank(purpose), purpose);
    }
    std::stable_sort(bar.parts.begin(), bar.parts.end(), [](const BarPart& a, const BarPart& b) {
      return purpose_rank(a.purpose) < purpose_rank(b.purpose);
    });
    for (const BarPart& part : bar.parts)
      chart.figures.rows.push_back(
          {"",
           {cell->label, part.purpose, Entry(bytes_text(part.bytes), part.bytes),
            Entry(fmt::format("{:.1f} %", 100.0 * part.bytes / total), part.bytes / total)}});
    bars.push_back(std::move(bar));
  }
  for (const auto& [rank, purpose] : purposes) chart.legend.push_back({purpose, 0, purpose_fill(purpose)});
  const std::string all = stacked_bars("All that is alive at the peak", bars);
  for (Bar& bar : bars)
    std::erase_if(bar.parts, [](const BarPart& part) { return is_resident(part.purpose); });
  for (const std::string& svg : {stacked_bars("Beyond weights, gradients and optimizer", bars), all}) {
    if (!svg.empty()) chart.svgs.push_back(svg);
  }
  return chart;
}

void add_crossover(const ReportGroup& group, const ReportSeries& series, ReportTable& table) {
  std::vector<RelativeCost> memory, time;
  for (const ReportCell* cell : series.cells) {
    const ReportCell* const base = group.base_of(*cell);
    if (base == nullptr || !cell->good()) continue;
    const auto length = static_cast<double>(cell->seq_len);
    if (const auto ratio = ratio_to(cell->memory, base->memory)) memory.push_back({length, *ratio});
    if (const auto ratio = ratio_to(cell->seconds_median, base->seconds_median))
      time.push_back({length, *ratio});
  }
  if (memory.empty() && time.empty()) return;
  const auto last = [](const std::vector<RelativeCost>& costs) {
    return costs.empty() ? Entry("-") : Entry(fmt::format("{:.3f}", costs.back().ratio), costs.back().ratio);
  };
  const auto text = [](const std::vector<RelativeCost>& costs) {
    return costs.empty() ? std::string("-") : cheaper_text(costs);
  };
  table.rows.push_back(
      {"",
       {group.title, series.label, group.base->label, text(memory), last(memory), text(time), last(time),
        Entry(length_text(memory.empty() ? time.back().length : memory.back().length),
              memory.empty() ? time.back().length : memory.back().length)}});
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
    return value ? Entry(fmt::format(format, *value), *value) : Entry("-", -1.0);
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
  return {
      cell.id,
      {cell.model, cell.objective, Entry(fmt::format("{}", cell.seq_len), static_cast<double>(cell.seq_len)),
       Entry(fmt::format("{}", cell.batch), static_cast<double>(cell.batch)), cell.method,
       settings_words(cell), Entry(bytes_text(cell.memory), cell.memory.value_or(-1.0)),
       optional(memory, "{:.3f}"),
       Entry(seconds_text(cell.seconds_median), cell.seconds_median.value_or(-1.0)), repeats,
       optional(time, "{:.3f}"), optional(cell.tokens_per_second, "{:.0f}"),
       optional(cell.percent_of_gemm, "{:.1f}"), optional(cell.loss, "{:.6f}"), status, source}};
}

}  // namespace

std::string bytes_text(const std::optional<double>& bytes) {
  return bytes ? quantity_text(Quantity::kBytes, *bytes) : "-";
}

std::string seconds_text(const std::optional<double>& seconds) {
  return seconds ? quantity_text(Quantity::kSeconds, *seconds) : "-";
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
    for (const Quantity quantity : {Quantity::kBytes, Quantity::kSeconds}) {
      std::vector<ChartSeries> series;
      for (const ReportSeries& one : group.series) series.push_back(chart_series(group, one, quantity));
      const std::string svg = line_chart(
          quantity == Quantity::kBytes ? "Memory beyond weights and gradients" : "Time of one pass", quantity,
          series);
      if (!svg.empty()) chart.svgs.push_back(svg);
    }
    if (chart.svgs.empty()) continue;
    ++drawn;
    for (const ReportSeries& one : group.series) chart.legend.push_back({one.label, one.colour, ""});
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
  std::vector<std::pair<const ReportGroup*, std::vector<const ReportCell*>>> found;
  for (const ReportGroup& group : groups) {
    std::vector<const ReportCell*> cells = cells_at_best_length(group);
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
      "At which lengths a method is below the base; crossings are interpolated between two lengths",
      {"run", "method", "base", "smaller", "memory x base", "faster", "time x base", "at tokens"},
      {},
      false};
  for (const ReportGroup& group : groups) {
    for (const ReportSeries& series : group.series) {
      if (&series != group.base) add_crossover(group, series, table);
    }
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
