// The cells of a report as charts have them: of one run, by series, each relative to checkpointing.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "bench/report_pages/report_cell.h"

namespace streambp::bench {

/// Cells that differ in their length alone.
struct ReportSeries {
  std::string label;
  size_t colour = 0;  // a number of its own in its group; 0 to 2 are standard, checkpoint, streambp
  std::vector<const ReportCell*> cells;  // by length
};

/// Cells of one run: model, objective, dtype, device, batch, machine and the settings that are not a
/// method's.
struct ReportGroup {
  std::string title;
  std::vector<ReportSeries> series;
  const ReportSeries* base = nullptr;  // checkpoint, else hf-checkpoint, standard or hf-standard; null: none

  /// The good cell with the base's label and the length of `cell`: of the same file, where that has one, else
  /// of another file of the same commit (of `base`, where that is one); null where there is none.
  const ReportCell* base_of(const ReportCell& cell) const;
  /// The label of the series that a cell is in.
  std::string label_of(const ReportCell& cell) const;
  size_t cell_count() const;
};

/// All groups, in the order of their first cells. `cells` has to outlive them.
std::vector<ReportGroup> report_groups(const ReportCells& cells);

}  // namespace streambp::bench
