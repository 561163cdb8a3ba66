// What changed from one folder of records to another.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "bench/report_pages/document.h"
#include "bench/report_pages/report_cell.h"
#include "bench/report_pages/statistics.h"
#include "bench/report_pages/timelines.h"

namespace streambp::bench {

/// One side of a comparison; `name` is what the report calls it.
struct DiffSide {
  std::string name;
  ReportCells cells;
  std::vector<Timeline> timelines;
};

/// A ratio of memory that is the same: an allocator's peak has no noise, but for what a few bytes round to.
inline constexpr double kSameMemory = 0.005;

/// A cell of both sides, with the second's figures relative to the first's.
struct CellChange {
  const ReportCell *before = nullptr, *after = nullptr;
  std::optional<double> memory;       // the ratio of the peaks beyond what is resident
  std::optional<RatioInterval> time;  // none with fewer than kFewestJudged repeats on a side
  Change memory_change = Change::kSame, time_change = Change::kSame;
  Change change = Change::kSame;  // of all: worse before ambiguous before better before same
  std::string why;                // what decided, with its numbers
};

/// A cell of one side only, and how the nearest cell of the other side differs.
struct UnmatchedCell {
  const ReportCell* cell = nullptr;
  std::string nearest;
};

struct RecordDiff {
  std::vector<CellChange> changes;
  std::vector<UnmatchedCell> only_before, only_after;

  size_t count(Change change) const;
};

/// Cells are the same where all that decides their figures is: model, objective, dtype, device, length,
/// batch, method and settings, but not the machine, the commit, the number of repeats or a memory limit. A
/// cell is worse where it no longer runs, where its loss differs by more than rounding (loss_limit), where
/// its memory grew by more than kSameMemory, or where the whole interval of the ratio of its times lies above
/// 1 + `threshold`; better likewise; ambiguous where the interval crosses a limit or repeats are too few.
/// Both sides have to outlive the result.
RecordDiff diff_records(const DiffSide& before, const DiffSide& after, double threshold);

/// The report of it.
Document diff_document(const DiffSide& before, const DiffSide& after, double threshold,
                       const std::string& made);

}  // namespace streambp::bench
