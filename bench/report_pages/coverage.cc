// What a report covers and what it says of exactness, the paper and the machine.
#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <map>
#include <set>

#include "bench/report_pages/report_sections.h"
#include "bench/report_pages/statistics.h"

namespace streambp::bench {
namespace {

using nlohmann::json;

/// Lengths that some series of a group has and another lacks, where the group is meant as a grid: at least
/// half of it is there.
void add_missing(const ReportGroup& group, std::vector<Entry>& lines, size_t& count) {
  std::set<int64_t> lengths;
  for (const ReportSeries& series : group.series) {
    for (const ReportCell* cell : series.cells) lengths.insert(cell->seq_len);
  }
  if (2 * group.cell_count() < lengths.size() * group.series.size()) return;
  for (const ReportSeries& series : group.series) {
    std::vector<std::string> missing;
    for (const int64_t length : lengths) {
      const bool there = std::any_of(series.cells.begin(), series.cells.end(),
                                     [&](const ReportCell* cell) { return cell->seq_len == length; });
      if (!there) missing.push_back(length_text(static_cast<double>(length)));
    }
    if (missing.empty()) continue;
    count += missing.size();
    lines.push_back(
        fmt::format("No record: {}: {} at {} tokens", group.title, series.label, fmt::join(missing, ", ")));
  }
}

std::string file_list(const ReportCells& cells) {
  std::vector<std::string> names;
  for (const std::string& file : cells.files) names.push_back(folder_name(file));
  return fmt::format("{} file{}: {}", names.size(), names.size() == 1 ? "" : "s", fmt::join(names, ", "));
}

Entry bad_line(const BadLine& bad) {
  Entry line(fmt::format("{}:{}: {}", bad.file, bad.line, bad.why));
  line.mark = Mark::kBad;
  return line;
}

/// The most of an error first; a value that is no number before all.
bool larger(const std::optional<double>& a, const std::optional<double>& b) {
  if (std::isnan(a.value_or(0.0)) || std::isnan(b.value_or(0.0)))
    return std::isnan(a.value_or(0.0)) && !std::isnan(b.value_or(0.0));
  return a.value_or(-1.0) > b.value_or(-1.0);
}

ReportTable gradient_table(const ReportCells& cells) {
  ReportTable table{"Gradients against the float64 truth, the worst parameter of each cell",
                    {"model", "method", "tokens", "dtype", "relative error", "worst parameter", "records"},
                    {},
                    false};
  std::vector<const ReportCell*> found;
  for (const ReportCell& cell : cells.cells) {
    if (cell.gradient_error) found.push_back(&cell);
  }
  std::stable_sort(found.begin(), found.end(), [](const ReportCell* a, const ReportCell* b) {
    return larger(a->gradient_error, b->gradient_error);
  });
  for (const ReportCell* cell : found) {
    Entry records;
    records.links = {record_link(*cell->records.front())};
    table.rows.push_back(
        {"",
         {cell->model, cell->label, Entry::number(fmt::format("{}", cell->seq_len)), cell->dtype,
          Entry::number(fmt::format("{:.2e}", *cell->gradient_error)), cell->worst_parameter, records}});
  }
  return table;
}

ReportTable verdict_table(const ReportCells& cells) {
  ReportTable table{"Verdicts of streambp-verify compare, the largest errors first",
                    {"model", "recipe", "tokens", "planted", "verdict", "worst error",
                     "relative to the noise", "at", "record"},
                    {},
                    true};
  std::vector<const ReportRecord*> found = cells.verdicts;
  std::stable_sort(found.begin(), found.end(), [](const ReportRecord* a, const ReportRecord* b) {
    return larger(number_of(a->record, "worst_error"), number_of(b->record, "worst_error"));
  });
  for (const ReportRecord* from : found) {
    const json& record = from->record;
    const auto number = [&](const char* member, fmt::format_string<const double&> format) {
      const auto value = number_of(record, member);
      return Entry::number(value ? fmt::format(format, *value) : "-");
    };
    Entry verdict = text_of(record, "verdict");
    if (const auto expected = record.find("expected"); expected != record.end() && expected->is_boolean())
      verdict.mark = expected->get<bool>() ? Mark::kGood : Mark::kBad;
    Entry link;
    link.links = {record_link(*from)};
    table.rows.push_back({"",
                          {text_of(record, "model"), text_of(record, "recipe"), number("seq_len", "{:.0f}"),
                           text_of(record, "planted"), verdict, number("worst_error", "{:.2e}"),
                           number("ratio", "{:.2f}"), text_of(record, "at"), link}});
  }
  return table;
}

}  // namespace

double loss_limit(const std::string& dtype) {
  if (dtype == "float64") return 1e-12;
  return dtype == "float32" ? 1e-5 : 3e-2;
}

LossDifference loss_difference(const std::vector<ReportGroup>& groups) {
  LossDifference worst;
  for (const ReportGroup& group : groups) {
    for (const ReportSeries& series : group.series) {
      for (const ReportCell* cell : series.cells) {
        const ReportCell* const base = group.base_of(*cell);
        if (base == nullptr || base == cell || !cell->good() || !cell->loss || !base->loss) continue;
        const double scale = std::max(std::abs(*base->loss), 1e-300);
        const double difference = std::abs(*cell->loss - *base->loss) / scale;
        ++worst.compared;
        worst.within = worst.within && difference <= loss_limit(cell->dtype);
        if (worst.cell == nullptr || !(difference <= worst.difference)) {
          worst.difference = difference;
          worst.cell = cell;
        }
      }
    }
  }
  return worst;
}

ReportSection coverage_section(const ReportCells& cells, const std::vector<ReportGroup>& groups) {
  std::map<std::string, size_t> statuses;
  std::map<std::string, std::vector<Entry>> reasons;
  size_t superseded = 0, skipped = 0, missing = 0;
  std::vector<Entry> lines;
  for (const ReportCell& cell : cells.cells) {
    ++statuses[cell.status];
    superseded += cell.superseded;
    if (cell.good()) continue;
    const bool not_run = cell.error.starts_with("not run");
    skipped += not_run;
    Entry line(fmt::format("{}{}: {}, {}, {} tokens: {}", cell.status_words, not_run ? ", skipped" : "",
                           cell.model, cell.label, length_text(static_cast<double>(cell.seq_len)),
                           cell.error.empty() ? "no reason recorded" : cell.error));
    line.mark = cell.status == "oom" ? Mark::kUnsure : Mark::kBad;
    line.links = {record_link(*cell.records.back())};
    lines.push_back(std::move(line));
  }
  for (const ReportGroup& group : groups) add_missing(group, lines, missing);
  size_t failed = 0;
  for (const auto& [status, count] : statuses) {
    if (status != "ok" && status != "oom") failed += count;
  }
  ReportSection section{"coverage", "Coverage", {}};
  section.blocks.push_back(
      fmt::format("{} of {} cells are good, {} ran out of memory ({} of them skipped after a shorter length "
                  "had), {} failed, {} have no "
                  "record. {} earlier records are superseded by later ones of their cells. {}.",
                  statuses["ok"], cells.cells.size() + missing, statuses["oom"], skipped, failed, missing,
                  superseded, file_list(cells)));
  if (!cells.verdicts.empty() || !cells.others.empty())
    section.blocks.push_back(
        fmt::format("{} records are verdicts on gradients; {} are neither cells nor verdicts (without "
                    "method or seq_len) and are not shown.",
                    cells.verdicts.size(), cells.others.size()));
  for (const BadLine& bad : cells.bad) lines.push_back(bad_line(bad));
  if (!cells.bad.empty())
    section.blocks.push_back(
        fmt::format("{} lines are no records and are left out; each is named below.", cells.bad.size()));
  if (!lines.empty()) section.blocks.push_back(MarkedLines{lines});
  return section;
}

ReportSection exactness_section(const ReportCells& cells, const std::vector<ReportGroup>& groups) {
  ReportSection section{"exactness", "Exactness", {}};
  const LossDifference losses = loss_difference(groups);
  if (losses.cell != nullptr) {
    Entry line(
        fmt::format("Losses of {} cells against the base's of the same run and length: the largest relative "
                    "difference is {:.1e} ({}, "
                    "{} tokens, {}; limit of that dtype {:.0e})",
                    losses.compared, losses.difference, losses.cell->label, losses.cell->seq_len,
                    losses.cell->dtype, loss_limit(losses.cell->dtype)));
    line.mark = losses.within ? Mark::kGood : Mark::kBad;
    section.blocks.push_back(MarkedLines{{line}});
  }
  ReportTable gradients = gradient_table(cells), verdicts = verdict_table(cells);
  if (!gradients.rows.empty()) section.blocks.push_back(std::move(gradients));
  if (!verdicts.rows.empty()) section.blocks.push_back(std::move(verdicts));
  if (section.blocks.empty())
    section.blocks.push_back(
        "These records hold neither losses to compare nor gradients. Gradients are compared by "
        "streambp-verify sweep "
        "(every method with standard), goldens (with Hugging Face's) and compare (with anybody's).");
  return section;
}

ReportSection paper_section(const std::vector<PaperRow>& rows) {
  ReportSection section{"paper", "The paper's cells", {}};
  std::map<std::string, size_t> verdicts;
  ReportTable table{"",
                    {"table", "section", "row", "column", "run as", "unit", "published", "predicted",
                     "measured", "verdict"},
                    {},
                    true};
  for (const PaperRow& row : rows) {
    TableRow cells;
    for (const char* name : {"table", "section", "row", "column", "way", "unit", "published", "predicted",
                             "measured", "verdict"}) {
      const auto found = row.columns.find(name);
      cells.cells.emplace_back(found == row.columns.end() ? "" : found->second);
    }
    Entry& verdict = cells.cells.back();
    ++verdicts[verdict.text];
    if (verdict.text == "reproduced" || verdict.text == "better") verdict.mark = Mark::kGood;
    if (verdict.text == "contradicted") verdict.mark = Mark::kBad;
    table.rows.push_back(std::move(cells));
  }
  std::vector<std::string> counts;
  for (const auto& [verdict, count] : verdicts) counts.push_back(fmt::format("{} {}", count, verdict));
  section.blocks.push_back(
      fmt::format("{} cells: {}. What was assumed stands in paper.md of the same folder.", rows.size(),
                  fmt::join(counts, ", ")));
  section.blocks.push_back(std::move(table));
  return section;
}

ReportSection environment_section(const ReportCells& cells) {
  struct Seen {
    size_t cells = 0;
    std::string first, last;
  };
  std::map<std::vector<std::string>, Seen> machines;
  size_t modified = 0;
  std::vector<Entry> warnings;
  constexpr double kNoise = 0.1;
  for (const ReportCell& cell : cells.cells) {
    const json& record = cell.records.back()->record;
    const json environment = record.value("environment", json::object());
    std::vector<std::string> row;
    for (const char* name : {"cpu", "gpu", "cores", "threads", "torch", "compiler", "commit"}) {
      const json value = environment.is_object() ? environment.value(name, json()) : json();
      std::string text = value.is_string() ? value.get<std::string>() : value.is_null() ? "" : value.dump();
      row.push_back(std::string_view(name) == "commit" ? text.substr(0, 12) : text);
    }
    Seen& seen = machines[row];
    ++seen.cells;
    const std::string date = environment.is_object() ? text_of(environment, "date") : "";
    if (seen.first.empty() || date < seen.first) seen.first = date;
    seen.last = std::max(seen.last, date);
    modified += environment.is_object() && environment.value("modified", json()) == true;
    if (cell.seconds.size() < 2) continue;
    const auto [low, high] = std::minmax_element(cell.seconds.begin(), cell.seconds.end());
    if (*high - *low <= kNoise * *cell.seconds_median) continue;
    Entry line(fmt::format(
        "Noise: {}, {}, {} tokens: repeats from {:.3g} to {:.3g} s, {:.0f} % of the median apart", cell.model,
        cell.label, cell.seq_len, *low, *high, 100.0 * (*high - *low) / *cell.seconds_median));
    line.mark = Mark::kUnsure;
    warnings.push_back(std::move(line));
  }
  if (modified > 0) {
    Entry line(fmt::format("{} cells were run with sources that differ from their commit", modified));
    line.mark = Mark::kUnsure;
    warnings.push_back(std::move(line));
  }
  ReportSection section{"environment", "Environment", {}};
  ReportTable table{
      "",
      {"CPU", "GPU", "cores", "threads", "torch", "compiler", "commit", "cells", "first", "last"},
      {},
      false};
  for (const auto& [row, seen] : machines) {
    TableRow line;
    for (const std::string& text : row) line.cells.emplace_back(text);
    line.cells.push_back(Entry::number(fmt::format("{}", seen.cells)));
    line.cells.emplace_back(seen.first);
    line.cells.emplace_back(seen.last);
    table.rows.push_back(std::move(line));
  }
  section.blocks.push_back(std::move(table));
  if (!warnings.empty()) section.blocks.push_back(MarkedLines{warnings});
  return section;
}

}  // namespace streambp::bench
