// The records of folders, for a report.
#pragma once

#include <string>
#include <vector>

#include "bench/report_pages/report_cell.h"
#include "bench/report_pages/timelines.h"

namespace streambp::bench {

/// Every line of `folders`: of a folder its results.jsonl, or where it has none those of the folders below
/// it, by path; a file is one itself. A line that is no record, or has a member of the wrong type, is a bad
/// one, a torn last line too. With them the table of the paper's cells (cells.csv of `paper --out`). Throws
/// InputError where there is no file or it can't be read.
ReportLines read_report_lines(const std::vector<std::string>& folders);

/// The timelines (sweep --timeline) among the CSV files of `folder` itself, by name.
std::vector<Timeline> read_timelines(const std::string& folder);

}  // namespace streambp::bench
