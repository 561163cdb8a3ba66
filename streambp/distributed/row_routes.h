// Which rows ranks send to each other for a layer with attention.
#pragma once

#include <cstdint>
#include <vector>

#include "streambp/distributed/sequence_split.h"

namespace streambp {

/// Rows [begin, end) of a stream.
struct RowRange {
  int64_t begin = 0;
  int64_t end = 0;

  int64_t size() const { return end - begin; }
  bool operator==(const RowRange&) const = default;
};

/// In the order of the stream, with rows between them.
using RowRanges = std::vector<RowRange>;

/// The rows that are in both.
RowRanges shared_rows(const RowRanges& a, const RowRanges& b);

/// The same rows, in ranges of at most `most`.
RowRanges in_ranges_of(const RowRanges& ranges, int64_t most);

/// What one rank has, looks at and lends in layers with one window.
class RowRoutes {
 public:
  RowRoutes() = default;
  /// `window`: of the layers, 0: none.
  RowRoutes(const SequenceSplit& split, int64_t rank, int64_t window);

  /// How many rows the rank has or looks at.
  int64_t size() const { return starts_.empty() ? 0 : starts_.back(); }

  /// Where among those rows row `row` of the whole is.
  int64_t index_of(int64_t row) const;

  /// The other rank's rows that this one looks at, and this one's that the other looks at.
  const RowRanges& seen(int64_t other) const { return seen_[static_cast<size_t>(other)]; }
  const RowRanges& lent(int64_t other) const { return lent_[static_cast<size_t>(other)]; }

  /// Whether another rank looks at any of these rows.
  bool is_lent(const RowRange& rows) const;

  bool lends() const;

 private:
  RowRanges all_;                // those it has or looks at
  std::vector<int64_t> starts_;  // where each range of them begins, and the end
  std::vector<RowRanges> seen_, lent_;
};

}  // namespace streambp
