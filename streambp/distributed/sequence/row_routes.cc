#include "streambp/distributed/sequence/row_routes.h"

#include <algorithm>

#include "streambp/backprop/streamed/key_values.h"

namespace streambp {
namespace {

/// The rows of `pieces`, and those that they look at.
RowRanges rows_with_seen(const std::vector<Piece>& pieces, int64_t window) {
  RowRanges rows;
  for (const Piece& piece : pieces) {
    const int64_t first = first_seen(piece.begin, piece.sequence_begin, window);
    if (!rows.empty() && first <= rows.back().end) {
      rows.back().end = piece.end;
    } else {
      rows.push_back({first, piece.end});
    }
  }
  return rows;
}

}  // namespace

RowRanges rows_of(const std::vector<Piece>& pieces) {
  RowRanges rows;
  for (const Piece& piece : pieces) rows.push_back({piece.begin, piece.end});
  return rows;
}

RowRanges shared_rows(const RowRanges& a, const RowRanges& b) {
  RowRanges shared;
  for (size_t i = 0, k = 0; i < a.size() && k < b.size();) {
    const RowRange both{std::max(a[i].begin, b[k].begin), std::min(a[i].end, b[k].end)};
    if (both.begin < both.end) shared.push_back(both);
    if (a[i].end < b[k].end) {
      ++i;
    } else {
      ++k;
    }
  }
  return shared;
}

RowRanges in_ranges_of(const RowRanges& ranges, int64_t most) {
  RowRanges cut;
  for (const RowRange& range : ranges) {
    for (int64_t begin = range.begin; begin < range.end; begin += most)
      cut.push_back({begin, std::min(begin + most, range.end)});
  }
  return cut;
}

std::vector<RowExchange> row_exchanges(int64_t rank, const std::vector<RowRanges>& sent,
                                       const std::vector<RowRanges>& received, int64_t most) {
  const auto ranks = static_cast<int64_t>(sent.size());
  std::vector<RowExchange> all;
  for (int64_t step = 1; step < ranks; ++step) {
    const int64_t to = (rank + step) % ranks, from = (rank - step + ranks) % ranks;
    const RowRanges out = in_ranges_of(sent[static_cast<size_t>(to)], most);
    const RowRanges in = in_ranges_of(received[static_cast<size_t>(from)], most);
    for (size_t i = 0; i < std::max(out.size(), in.size()); ++i)
      all.push_back({to, from, i < out.size() ? out[i] : RowRange{}, i < in.size() ? in[i] : RowRange{}});
  }
  return all;
}

RowRoutes::RowRoutes(const SequenceSplit& split, int64_t rank, int64_t window)
    : all_(rows_with_seen(split.pieces(rank), window)), starts_{0} {
  for (const RowRange& range : all_) starts_.push_back(starts_.back() + range.size());
  const RowRanges own = rows_of(split.pieces(rank));
  for (int64_t other = 0; other < split.ranks(); ++other) {
    const std::vector<Piece>& pieces = split.pieces(other);
    const bool is_other = other != rank;
    seen_.push_back(is_other ? shared_rows(rows_of(pieces), all_) : RowRanges{});
    lent_.push_back(is_other ? shared_rows(own, rows_with_seen(pieces, window)) : RowRanges{});
  }
}

int64_t RowRoutes::index_of(int64_t row) const {
  const auto after = std::upper_bound(all_.begin(), all_.end(), row,
                                      [](int64_t at, const RowRange& range) { return at < range.begin; });
  const auto i = static_cast<size_t>(after - all_.begin()) - 1;
  return starts_[i] + row - all_[i].begin;
}

bool RowRoutes::is_lent(const RowRange& rows) const {
  return std::any_of(lent_.begin(), lent_.end(),
                     [&](const RowRanges& ranges) { return !shared_rows(ranges, {rows}).empty(); });
}

bool RowRoutes::lends() const {
  return std::any_of(lent_.begin(), lent_.end(), [](const RowRanges& ranges) { return !ranges.empty(); });
}

}  // namespace streambp
