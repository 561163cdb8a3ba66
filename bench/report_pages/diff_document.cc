// The report of two folders.
#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <map>
#include <set>

#include "bench/report_pages/diff.h"
#include "bench/report_pages/report_sections.h"

namespace streambp::bench {
namespace {

/// Cells whose peaks are drawn: those that changed most, in bytes.
constexpr size_t kMostPeaks = 12;

Mark mark_of(Change change) {
  switch (change) {
    case Change::kWorse:
      return Mark::kBad;
    case Change::kBetter:
      return Mark::kGood;
    case Change::kAmbiguous:
      return Mark::kUnsure;
    case Change::kSame:
      break;
  }
  return Mark::kNone;
}

Entry verdict_entry(Change change) {
  Entry entry(change_name(change));
  entry.mark = mark_of(change);
  return entry;
}

std::string name_of(const ReportCell& cell) {
  return fmt::format("{}, {}, {}, {} tokens{}", cell.model, cell.objective, cell.label,
                     length_text(static_cast<double>(cell.seq_len)),
                     cell.batch == 1 ? "" : fmt::format(", batch {}", cell.batch));
}

/// What a method's cells changed by in the mean.
ReportTable means_table(const RecordDiff& diff) {
  struct Ratios {
    std::vector<double> memory, time;
    size_t cells = 0;
  };
  std::map<std::vector<std::string>, Ratios> methods;
  for (const CellChange& change : diff.changes) {
    const ReportCell& cell = *change.after;
    Ratios& ratios = methods[{cell.model, cell.objective, cell.label}];
    ++ratios.cells;
    if (change.memory && *change.memory > 0.0) ratios.memory.push_back(*change.memory);
    const std::optional<double>&a = change.before->seconds_median, &b = cell.seconds_median;
    if (a && b && *a > 0.0 && *b > 0.0) ratios.time.push_back(*b / *a);
  }
  ReportTable table{"Geometric means of the ratios over the cells of both, by method",
                    {"model", "objective", "method", "cells", "memory", "of", "time", "of"},
                    {},
                    false};
  for (const auto& [name, ratios] : methods) {
    TableRow row;
    for (const std::string& word : name) row.cells.emplace_back(word);
    row.cells.push_back(Entry::number(fmt::format("{}", ratios.cells)));
    for (const std::vector<double>* of : {&ratios.memory, &ratios.time}) {
      row.cells.push_back(Entry::number(of->empty() ? "-" : fmt::format("{:.4f}", geometric_mean(*of))));
      row.cells.push_back(Entry::number(fmt::format("{}", of->size())));
    }
    table.rows.push_back(std::move(row));
  }
  return table;
}

ReportSection changes_section(const RecordDiff& diff, double threshold) {
  ReportSection section{"changes", "Every cell of both", {}};
  section.blocks.push_back(
      fmt::format("Ratios are the second folder's to the first's. Memory is the same within {} %. Of time, "
                  "the interval is that of order statistics of the "
                  "repeats (their range, of fewer than 6) of both sides: WORSE where all of it is above "
                  "{:.3f}, BETTER where all of it is below {:.3f}, SAME "
                  "where it lies between them, else AMBIGUOUS; as it is with fewer than {} repeats. A cell "
                  "that no longer runs, or whose loss differs by more than "
                  "rounding, is WORSE.",
                  100.0 * kSameMemory, 1.0 + threshold, 1.0 - threshold, kFewestJudged));
  if (!diff.changes.empty()) section.blocks.push_back(means_table(diff));
  ReportTable table{"",
                    {"verdict", "cell", "memory before", "after", "ratio", "memory", "time before", "after",
                     "ratio", "interval", "time", "what decided", "records"},
                    {},
                    true};
  for (const CellChange& change : diff.changes) {
    const std::optional<double>&a = change.before->seconds_median, &b = change.after->seconds_median;
    const bool timed = a && b && *a > 0.0;
    Entry records;
    records.links = {record_link(*change.before->records.back()), record_link(*change.after->records.back())};
    table.rows.push_back(
        {change.after->id,
         {verdict_entry(change.change), name_of(*change.after),
          Entry::number(bytes_text(change.before->memory)), Entry::number(bytes_text(change.after->memory)),
          Entry::number(change.memory ? fmt::format("{:.4f}", *change.memory) : "-"),
          verdict_entry(change.memory_change), Entry::number(seconds_text(a)), Entry::number(seconds_text(b)),
          Entry::number(timed ? fmt::format("{:.3f}", *b / *a) : "-"),
          change.time ? fmt::format("[{:.3f}, {:.3f}]", change.time->low, change.time->high)
                      : std::string("-"),
          timed ? verdict_entry(change.time_change) : Entry("-"), change.why, records}});
  }
  section.blocks.push_back(std::move(table));
  return section;
}

ReportSection unmatched_section(const RecordDiff& diff, const DiffSide& before, const DiffSide& after) {
  ReportSection section{"unmatched", "Cells of one folder only", {}};
  ReportTable table{"", {"in", "cell", "status", "nearest in the other: this / that", "record"}, {}, true};
  for (const auto& [side, cells] :
       {std::pair(&before, &diff.only_before), std::pair(&after, &diff.only_after)}) {
    for (const UnmatchedCell& one : *cells) {
      Entry record;
      record.links = {record_link(*one.cell->records.back())};
      table.rows.push_back({"", {side->name, name_of(*one.cell), one.cell->status, one.nearest, record}});
    }
  }
  if (table.rows.empty())
    section.blocks.push_back("None: every cell is in both.");
  else
    section.blocks.push_back(std::move(table));
  std::vector<Entry> bad;
  for (const DiffSide* side : {&before, &after}) {
    for (const BadLine& line : side->cells.bad)
      bad.push_back(fmt::format("{}:{}: left out: {}", line.file, line.line, line.why));
  }
  if (!bad.empty()) section.blocks.push_back(MarkedLines{bad});
  return section;
}

/// Purposes of two peaks with what they differ by, the largest difference first.
ReportTable purposes_table(const std::map<std::string, double>& before,
                           const std::map<std::string, double>& after) {
  ReportTable table{"", {"purpose", "before", "after", "difference"}, {}, false};
  std::set<std::string> names;
  for (const auto* side : {&before, &after}) {
    for (const auto& [name, bytes] : *side) names.insert(name);
  }
  const auto of = [](const std::map<std::string, double>& side, const std::string& name) {
    const auto found = side.find(name);
    return found == side.end() ? 0.0 : found->second;
  };
  std::vector<std::string> order(names.begin(), names.end());
  const auto difference = [&](const std::string& name) { return of(after, name) - of(before, name); };
  std::stable_sort(order.begin(), order.end(), [&](const std::string& a, const std::string& b) {
    return std::abs(difference(a)) > std::abs(difference(b));
  });
  for (const std::string& name : order) {
    const double a = of(before, name), b = of(after, name);
    table.rows.push_back(
        {"",
         {name, Entry::number(bytes_text(a)), Entry::number(bytes_text(b)),
          Entry::number(fmt::format("{}{}", b >= a ? "+" : "-", bytes_text(std::abs(b - a))))}});
  }
  return table;
}

ReportSection peaks_section(const RecordDiff& diff, const DiffSide& before, const DiffSide& after) {
  ReportSection section{"peaks", "What the peaks differ by", {}};
  std::vector<const CellChange*> changed;
  for (const CellChange& change : diff.changes) {
    if (change.memory_change != Change::kSame && !change.before->by_purpose.empty() &&
        !change.after->by_purpose.empty())
      changed.push_back(&change);
  }
  const auto bytes = [](const CellChange* change) {
    return std::abs(*change->after->memory - *change->before->memory);
  };
  std::stable_sort(changed.begin(), changed.end(),
                   [&](const CellChange* a, const CellChange* b) { return bytes(a) > bytes(b); });
  for (size_t i = 0; i < std::min(changed.size(), kMostPeaks); ++i) {
    const ReportCell &a = *changed[i]->before, &b = *changed[i]->after;
    Chart chart;
    chart.caption = fmt::format("{}: {} became {}", name_of(b), bytes_text(a.memory), bytes_text(b.memory));
    chart.plots.push_back(
        {{"kind", "bars"},
         {"bars", {purpose_bar(before.name, "", a.by_purpose), purpose_bar(after.name, "", b.by_purpose)}}});
    chart.figures = purposes_table(a.by_purpose, b.by_purpose);
    section.blocks.push_back(std::move(chart));
  }
  if (changed.empty()) section.blocks.push_back("No peak with its purposes recorded differs.");
  if (changed.size() > kMostPeaks)
    section.blocks.push_back(
        fmt::format("{} smaller differences are in the table only.", changed.size() - kMostPeaks));
  return section;
}

ReportSection timelines_section(const DiffSide& before, const DiffSide& after) {
  ReportSection section{"timelines", "Memory over time", {}};
  for (const Timeline& a : before.timelines) {
    for (const Timeline& b : after.timelines) {
      if (a.key() != b.key()) continue;
      Chart chart;
      const auto word = [&](const char* name) {
        const auto found = a.about.find(name);
        return found == a.about.end() ? std::string("-") : found->second;
      };
      chart.caption =
          fmt::format("{}, {}, {}, {} tokens: the peak is in '{}' before, in '{}' after", word("model"),
                      word("objective"), word("method"), word("seq_len"), a.phase_at_peak, b.phase_at_peak);
      const auto curve = [](const std::string& name, int colour, const Timeline& of) {
        return nlohmann::json{{"name", name}, {"colour", colour}, {"time", of.time}, {"bytes", of.total}};
      };
      chart.plots.push_back({{"kind", "timeline"},
                             {"title", "Bytes alive over the pass"},
                             {"curves", {curve(before.name, 0, a), curve(after.name, 1, b)}}});
      chart.figures = purposes_table(a.at_peak, b.at_peak);
      section.blocks.push_back(std::move(chart));
    }
  }
  return section;
}

Entry verdict_line(const RecordDiff& diff) {
  Entry line(
      fmt::format("{} cells are in both: {} WORSE, {} AMBIGUOUS, {} BETTER, {} SAME; {} are in the first "
                  "folder only, {} in the second only",
                  diff.changes.size(), diff.count(Change::kWorse), diff.count(Change::kAmbiguous),
                  diff.count(Change::kBetter), diff.count(Change::kSame), diff.only_before.size(),
                  diff.only_after.size()));
  line.mark = diff.count(Change::kWorse) > 0                               ? Mark::kBad
              : diff.count(Change::kAmbiguous) > 0 || diff.changes.empty() ? Mark::kUnsure
                                                                           : Mark::kGood;
  return line;
}

}  // namespace

Document diff_document(const DiffSide& before, const DiffSide& after, double threshold,
                       const std::string& made) {
  constexpr size_t kNamed = 5;
  const RecordDiff diff = diff_records(before, after, threshold);
  Document document;
  document.title = fmt::format("What changed from {} to {}", before.name, after.name);
  document.made = made;
  document.verdict = {verdict_line(diff)};
  for (const CellChange& change : diff.changes) {
    if (change.change != Change::kWorse || document.verdict.size() > kNamed) continue;
    Entry line(fmt::format("WORSE: {}: {}", name_of(*change.after), change.why));
    line.mark = Mark::kBad;
    document.verdict.push_back(std::move(line));
  }
  document.sections = {changes_section(diff, threshold), unmatched_section(diff, before, after),
                       peaks_section(diff, before, after)};
  if (ReportSection section = timelines_section(before, after); !section.blocks.empty())
    document.sections.push_back(std::move(section));
  for (const auto& [side, id] : {std::pair(&before, "before"), std::pair(&after, "after")}) {
    ReportSection section = environment_section(side->cells);
    section.id = id;
    section.title = fmt::format("Environment of {}", side->name);
    document.sections.push_back(std::move(section));
  }
  return document;
}

}  // namespace streambp::bench
