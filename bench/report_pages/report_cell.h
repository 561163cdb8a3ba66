// Records as the cells of a report: what was run, what it took, and which lines say so.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "bench/report_pages/document.h"

namespace streambp::bench {

/// A line of a results.jsonl.
struct ReportRecord {
  std::string file;  // absolute
  size_t line = 0;   // from 1
  nlohmann::json record;
  std::string own;     // settings of its method that are not the default (own_settings_text)
  nlohmann::json run;  // what decides its figures and is no setting of its method (run_settings)
};

/// A line that is no record, or one with a member that is not what it has to be.
struct BadLine {
  std::string file;
  size_t line = 0;
  std::string why;
};

/// A row of the table that `streambp-bench paper` writes (cells.csv): its columns by name, and its file.
struct PaperRow {
  std::string file;
  std::map<std::string, std::string> columns;
};

/// The lines of some files (bench/records/report_lines.h reads them).
struct ReportLines {
  std::vector<ReportRecord> records;
  std::vector<BadLine> bad;
  std::vector<std::string> files;  // absolute
  std::vector<PaperRow> paper;
};

/// One cell: a configuration with its length. Records that are single repeats (scripts/compare_hf.py) are one
/// cell; of others with the same configuration in one file the last one is.
struct ReportCell {
  std::string id;                            // its anchor in the page
  std::vector<const ReportRecord*> records;  // the last one decides
  size_t superseded = 0;                     // earlier records that it stands for
  std::string model, objective, dtype, device, kind;
  std::string method, label;                // the method; with its settings
  std::string status, status_words, error;  // the words are status_text()
  int64_t seq_len = 0, batch = 0;
  std::optional<double> peak, resident, memory;  // bytes; memory is the peak beyond what was resident
  std::vector<double> seconds;
  std::optional<double> seconds_median, loss, tokens_per_second, percent_of_gemm;
  std::map<std::string, double> by_purpose;  // bytes at the peak
  std::optional<double> gradient_error;
  std::string worst_parameter;
  nlohmann::json identity;  // all that has to be equal for two cells of two folders to be compared
  std::string run;          // a name for all that cells of one chart share

  bool good() const { return status == "ok"; }
  bool measured() const { return kind == "measured"; }
};

/// What a report has been given.
struct ReportCells {
  std::vector<ReportCell> cells;
  std::vector<const ReportRecord*> verdicts;  // of streambp-verify compare: `verdict`, `worst_error`
  std::vector<const ReportRecord*> others;    // neither
  std::vector<BadLine> bad;
  std::vector<std::string> files;
  std::vector<PaperRow> paper;
};

/// `lines`, which has to outlive the result, as cells in the order of their first lines.
ReportCells report_cells(const ReportLines& lines);

/// The member as a number; nothing where it is absent or none.
std::optional<double> number_of(const nlohmann::json& record, const char* member);
/// The member as text; "" where it is absent or none.
std::string text_of(const nlohmann::json& record, const char* member);

/// The status of a record: "ok", or "oom, needs at least 1.23 GB" where that is known.
std::string status_text(const nlohmann::json& record);

/// The command that measures this cell alone: that of its sweep, for its length, batch, objective and method;
/// else the recorded one; "" where there is none.
std::string cell_command(const ReportCell& cell);

/// "compare-2048/results.jsonl:3", linked to the file.
FileLink record_link(const ReportRecord& record);

/// The name of the folder of a results.jsonl.
std::string folder_name(const std::string& file);

/// A setting in a few words, such as "threads 2"; nothing where it is off.
std::string in_words(const std::string& name, const nlohmann::json& value);

}  // namespace streambp::bench
