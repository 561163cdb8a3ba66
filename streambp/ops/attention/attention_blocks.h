// Which scores a run of tokens needs, as few rectangles and triangles as cover them exactly.
#pragma once

#include <cstdint>
#include <vector>

namespace streambp {

/// Which keys a query of a block sees.
enum class Visible {
  kAll,      // every key: queries that come after all keys
  kCausal,   // as many queries as keys; query i sees keys 0..i
  kFromOwn,  // as many queries as keys; query i sees keys i and later: those that leave a window one by one
};

/// Queries [query, query + queries) against keys [key, key + keys), both counted from the run's first token:
/// keys of the prefix have negative indices.
struct ScoreBlock {
  int64_t query = 0;
  int64_t queries = 0;
  int64_t key = 0;
  int64_t keys = 0;
  Visible visible = Visible::kAll;
};

/// How many pairs of a query and a key of the block see each other.
int64_t visible_pairs(const ScoreBlock& block);

/// The blocks of one sequence's `rows` tokens after `prefix` earlier ones, where each token sees itself and,
/// with a window, the window - 1 tokens before it (0: all of them). A block's keys are in the prefix or among
/// the rows, never in both. Every query's first block is causal and shows it itself.
///
/// A window's band is cut into tiles of at most `window` queries [s, e). What such a tile sees is a causal
/// square on itself, a rectangle on the keys [e - window, s) that all of its queries see, and the triangle of
/// the keys [s - window + 1, e - window) that leave the window one after another. No score outside the band
/// is computed.
std::vector<ScoreBlock> score_blocks(int64_t rows, int64_t prefix, int64_t window);

/// The blocks of the same rows against keys [key, key_end) alone, all of them before the rows: key_end <= 0.
std::vector<ScoreBlock> earlier_blocks(int64_t rows, int64_t key, int64_t key_end, int64_t window);

}  // namespace streambp
