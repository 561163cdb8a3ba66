#include "streambp/ops/attention/attention_blocks.h"

#include <algorithm>

namespace streambp {
namespace {

/// Collects blocks and leaves out empty ones.
class Blocks {
 public:
  explicit Blocks(int64_t prefix) : first_key_(-prefix) {}

  void causal(int64_t begin, int64_t rows) { add({begin, rows, begin, rows, Visible::kCausal}); }

  /// Keys [key, key_end), as far as there are any.
  void rectangle(int64_t query, int64_t queries, int64_t key, int64_t key_end) {
    key = std::max(key, first_key_);
    add({query, queries, key, key_end - key, Visible::kAll});
  }

  /// Query query + a sees key key + b where a <= b < size. Where the sequence begins within the triangle, its
  /// first queries see all keys that are left.
  void triangle(int64_t query, int64_t key, int64_t size) {
    const int64_t missing = std::clamp<int64_t>(first_key_ - key, 0, size);
    rectangle(query, missing, key, key + size);
    add({query + missing, size - missing, key + missing, size - missing, Visible::kFromOwn});
  }

  std::vector<ScoreBlock> all() && { return std::move(blocks_); }

 private:
  void add(const ScoreBlock& block) {
    if (block.queries > 0 && block.keys > 0) blocks_.push_back(block);
  }

  int64_t first_key_;
  std::vector<ScoreBlock> blocks_;
};

}  // namespace

int64_t visible_pairs(const ScoreBlock& block) {
  if (block.visible == Visible::kAll) return block.queries * block.keys;
  return block.queries * (block.queries + 1) / 2;
}

std::vector<ScoreBlock> score_blocks(int64_t rows, int64_t prefix, int64_t window) {
  Blocks blocks(prefix);
  const int64_t tile = window == 0 ? rows : std::min(window, rows);
  for (int64_t begin = 0; begin < rows; begin += tile) {
    const int64_t end = std::min(begin + tile, rows);
    blocks.causal(begin, end - begin);
    if (window == 0) {
      blocks.rectangle(begin, end - begin, -prefix, begin);
    } else {
      blocks.rectangle(begin, end - begin, end - window, begin);
      blocks.triangle(begin, begin - window + 1, end - begin - 1);
    }
  }
  return std::move(blocks).all();
}

std::vector<ScoreBlock> earlier_blocks(int64_t rows, int64_t key, int64_t key_end, int64_t window) {
  if (window > 0) key = std::max(key, 1 - window);
  if (key >= key_end) return {};
  Blocks blocks(-key);
  if (window == 0) {
    blocks.rectangle(0, rows, key, key_end);
  } else {
    // All keys leave the window of the queries after these, one after another.
    const int64_t all = std::min(rows, key + window);
    blocks.rectangle(0, all, key, key_end);
    const int64_t rest = std::min(rows - all, key_end - key - 1);  // queries that see some of them
    blocks.triangle(all, key + 1, rest);
    blocks.rectangle(all, rest, key + 1 + rest, key_end);
  }
  return std::move(blocks).all();
}

}  // namespace streambp
