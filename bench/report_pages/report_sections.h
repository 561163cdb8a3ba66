// The sections of a report of one set of folders.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "bench/report_pages/document.h"
#include "bench/report_pages/groups.h"

namespace streambp::bench {

/// The whole report; `made` is its last line.
Document report_document(const ReportCells& cells, const std::string& made);

/// In a line each: whether gradients and losses agree, which method is smallest and fastest at the longest
/// length and against what, and how much was not measured.
std::vector<Entry> report_verdict(const ReportCells& cells, const std::vector<ReportGroup>& groups);

/// How many cells are good, ran out of memory, failed or are missing, and why.
ReportSection coverage_section(const ReportCells& cells, const std::vector<ReportGroup>& groups);
/// Memory and time against length, a chart of each for every run with more than one length.
ReportSection length_section(const std::vector<ReportGroup>& groups);
/// What the bytes of the peak are for.
ReportSection purpose_section(const std::vector<ReportGroup>& groups);
/// From which length on a method is smaller or faster than the base.
ReportSection crossover_section(const std::vector<ReportGroup>& groups);
/// Errors of gradients with the worst parameter, verdicts, and differences of losses.
ReportSection exactness_section(const ReportCells& cells, const std::vector<ReportGroup>& groups);
ReportSection paper_section(const std::vector<PaperRow>& rows);
/// Machines and versions, with warnings: noise, sources that differ from their commit.
ReportSection environment_section(const ReportCells& cells);
/// A bar of a plot (document.h): what the bytes of `by_purpose` are for, named `name`, leading to `anchor`.
nlohmann::json purpose_bar(const std::string& name, const std::string& anchor,
                           const std::map<std::string, double>& by_purpose);
/// Every cell with its command and its records.
ReportSection cells_section(const ReportCells& cells, const std::vector<ReportGroup>& groups);

/// How far the losses of one dtype may differ, relative to the base's, for their methods to agree: what sums
/// in another order may do.
double loss_limit(const std::string& dtype);

/// The largest relative difference of a loss from the base's of its run and length, and whose it is.
struct LossDifference {
  double difference = 0.0;
  const ReportCell* cell = nullptr;  // null: no two losses to compare
  bool within = true;                // all within the limits of their dtypes
  size_t compared = 0;
};
LossDifference loss_difference(const std::vector<ReportGroup>& groups);

}  // namespace streambp::bench
