// The tiles of scores that a tile of queries needs: which keys they are of, and which of them a query sees.
// For attention.cc alone, as vector.h.
#pragma once

#include "streambp/ops/cpu/attention.h"
#include "streambp/ops/cpu/products.h"

namespace streambp::cpu::STREAMBP_ISA {

/// Keys of a tile: they, their values and a panel's scores stay near the first cache.
inline constexpr int64_t kKeys = 72;
/// Where no key is left: after all of them.
inline constexpr int64_t kNoKey = INT64_MAX;

/// Some keys of a block, and the queries that the block is about.
template <typename S>
struct KeyTile {
  const KeyBlock<S>& from;
  int64_t first;  // key of the block
  int64_t count;
  int64_t query, query_end;  // of the run, within the tile of queries
  int64_t next;              // no later tile has keys before this one, which is of the run

  const ScoreBlock& block() const { return from.block; }
  /// The key of the run that follows the last one.
  int64_t end() const { return block().key + first + count; }
};

/// Columns of a tile of queries that one product holds: queries of one query head.
struct Panel {
  int64_t column;   // of the first query
  int64_t query;    // of the run
  int64_t queries;  // that there are
  int vectors;      // that hold them
  bool is_cut;      // not every query sees every key
};

/// Queries [query, query + queries) of a run, `size` columns for each query head.
template <typename S>
class QueryTile {
  using T = Wide<S>;
  static constexpr int64_t kColumns = kTileColumns<T>;

 public:
  const AttentionRun<S>& run;
  int64_t size;
  int64_t query = 0;
  int64_t queries = 0;

  /// Calls body(tile) for tiles of all keys that the queries see, block by block.
  template <typename Body>
  void for_each_key_tile(Body body) const {
    for (int64_t b = block_from(0), later; b < run.block_count; b = later) {
      later = block_from(b + 1);
      const int64_t later_key = later < run.block_count ? run.blocks[later].block.key : kNoKey;
      const ScoreBlock& block = run.blocks[b].block;
      const int64_t first = at_least(query, block.query);
      const int64_t end = at_most(query + queries, block.query + block.queries);
      int64_t key = 0, key_end = block.keys;
      if (block.visible == Visible::kCausal) key_end = end - block.query;
      if (block.visible == Visible::kFromOwn) key = first - block.query;
      for (; key < key_end; key += kKeys) {
        const int64_t count = at_most(kKeys, key_end - key);
        const int64_t next = key + count < key_end ? block.key + key + count : kNoKey;
        body(KeyTile<S>{.from = run.blocks[b],
                        .first = key,
                        .count = count,
                        .query = first,
                        .query_end = end,
                        .next = at_most(next, later_key)});
      }
    }
  }

  /// Calls body(panel) for the panels that see any key of the tile.
  template <typename Body>
  void for_each_panel(const KeyTile<S>& tile, Body body) const {
    const ScoreBlock& block = tile.block();
    for (int64_t group = 0; group < run.groups; ++group) {
      for (int64_t first = 0; first < queries; first += kColumns) {
        const int64_t count = at_most(kColumns, queries - first);
        const int64_t own = query + first;
        const int64_t begin = at_least(own, tile.query), end = at_most(own + count, tile.query_end);
        if (begin >= end) continue;
        bool is_cut = begin > own || end < own + count;
        if (block.visible == Visible::kCausal) {
          if (end - block.query <= tile.first) continue;
          is_cut |= tile.first + tile.count - 1 > begin - block.query;
        } else if (block.visible == Visible::kFromOwn) {
          if (begin - block.query >= tile.first + tile.count) continue;
          is_cut |= tile.first < end - 1 - block.query;
        }
        body(Panel{.column = group * size + first,
                   .query = own,
                   .queries = count,
                   .vectors = static_cast<int>((count + kWidth<T> - 1) / kWidth<T>),
                   .is_cut = is_cut});
      }
    }
  }

 private:
  /// The first block from `b` on that is about any of the queries, or the number of blocks.
  int64_t block_from(int64_t b) const {
    for (; b < run.block_count; ++b) {
      const ScoreBlock& block = run.blocks[b].block;
      if (block.query < query + queries && block.query + block.queries > query) break;
    }
    return b;
  }
};

/// Puts `hidden` among scores [keys, kTileColumns] where a query of the panel does not see a key of the tile.
template <typename S, typename T>
static void hide(const KeyTile<S>& tile, const Panel& panel, T* scores, T hidden) {
  const ScoreBlock& block = tile.block();
  const auto within = [&](int64_t query) { return at_least(0, at_most(query - panel.query, panel.queries)); };
  for (int64_t i = 0; i < tile.count; ++i) {
    const int64_t own = block.query + tile.first + i;  // the query whose own key this is
    int64_t first = within(tile.query), end = within(tile.query_end);
    if (block.visible == Visible::kCausal) first = at_least(first, within(own));
    if (block.visible == Visible::kFromOwn) end = at_most(end, within(own + 1));
    T* const row = scores + i * kTileColumns<T>;
    for (int64_t q = 0; q < first; ++q) row[q] = hidden;
    for (int64_t q = end; q < panel.queries; ++q) row[q] = hidden;
  }
}

}  // namespace streambp::cpu::STREAMBP_ISA
