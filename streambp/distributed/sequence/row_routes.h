// Which rows ranks send to each other for a layer with attention.
#pragma once

#include <cstdint>
#include <vector>

#include "streambp/distributed/sequence/sequence_split.h"

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

/// The rows of pieces.
RowRanges rows_of(const std::vector<Piece>& pieces);

/// One message of a rank to another, and one that it receives at the same time: rows of the whole, none in an
/// empty range.
struct RowExchange {
  int64_t to = 0;
  int64_t from = 0;
  RowRange sent;
  RowRange received;
};

/// How `rank` sends each rank `to` the rows sent[to], at most `most` in a message, and receives
/// received[from] of each, in an order in which all ranks are served: in step k it sends to rank + k and
/// receives from rank - k.
std::vector<RowExchange> row_exchanges(int64_t rank, const std::vector<RowRanges>& sent,
                                       const std::vector<RowRanges>& received, int64_t most);

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

  /// Of each rank the rows that this one looks at, and this one's that it looks at.
  const std::vector<RowRanges>& seen() const { return seen_; }
  const std::vector<RowRanges>& lent() const { return lent_; }

  /// Whether another rank looks at any of these rows.
  bool is_lent(const RowRange& rows) const;

  bool lends() const;

 private:
  RowRanges all_;                // those it has or looks at
  std::vector<int64_t> starts_;  // where each range of them begins, and the end
  std::vector<RowRanges> seen_, lent_;
};

}  // namespace streambp
