// What `streambp-bench ranks` prints and writes of its runs.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "bench/cli/records.h"
#include "bench/cli/table.h"
#include "bench/ranks/ranks_longest.h"
#include "bench/ranks/ranks_published.h"
#include "bench/ranks/ranks_run.h"
#include "bench/records/known_records.h"
#include "bench/sweep/progress.h"

namespace streambp::bench {

/// A record for each run, as soon as it is done, and a table of all of them at the end (or, with `is_json`,
/// the records). One rank alone has it.
class RanksReport {
 public:
  /// `bench` outlives it. `resumes`: what --out has a record of is shown and not run; else there must be no
  /// records. Throws InputError for records that can't be read and a folder that can't be written.
  RanksReport(const Bench& bench, bool is_json, bool resumes, const Rates& rates);

  /// Whether --resume finds a record of the run, which is then shown again, or ranks that had to be started
  /// again find one of their own.
  bool knows(const Bench& bench, const Cell& cell, const Sharing& sharing, int64_t ranks);

  /// Before a run.
  void begin(const Cell& cell, const Sharing& sharing, int64_t ranks);

  /// `recorder`: of its last step; empty: none was asked for.
  void add(const Bench& bench, const Cell& cell, const RanksRun& run, int64_t ranks, bool is_longest,
           std::optional<Recorder>& recorder);

  /// `longest`: nothing where not even the shortest sequence fits, which is said and not recorded.
  void add_longest(const Bench& bench, const Cell& cell, const std::optional<LongestOnRanks>& longest,
                   const Sharing& sharing, int64_t ranks);

  /// After the last run. Returns the exit code: of those that are shown, kExitCheckFailed where one failed,
  /// else kExitOutOfMemory where a rank ran out.
  int print();

 private:
  /// The record that ranks of this run have made before they were started again; null: none.
  const nlohmann::json* of_this_run(const nlohmann::json& configuration) const;
  /// Of a cell that is run or known: the exit code is that of all.
  void count(const nlohmann::json& record);
  void add_overlap(const Cell& cell, const Sharing& sharing, const Communication& overlap);
  /// A line of the table, or of JSON.
  void show(const nlohmann::json& record);

  const SweepOptions& options_;
  bool is_json_;
  RecordFile file_;
  KnownRecords known_;
  bool resumes_;
  bool ran_out_ = false;
  bool failed_ = false;
  bool caught_up_ = false;       // with what ranks had printed before they were started again
  std::optional<size_t> first_;  // record of this run, where ranks have been started again
  Table table_;
  std::vector<std::string> overlaps_;  // what went on behind passes, a line for each run
  PublishedRows published_;
  Rates rates_;
  ProgressLine progress_;
};

}  // namespace streambp::bench
