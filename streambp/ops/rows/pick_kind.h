// What indexers pick. Without torch: a config says it.
#pragma once

#include <cstdint>

namespace streambp {

/// Rows, or blocks of some: of each row at most `topk`.
struct PickKind {
  int64_t topk = 0;
  int64_t rate = 1;   // rows of a block
  int64_t heads = 1;  // of an indexer that pick topk each
  /// Whether rows see a block from its first row on, and not from its last one on.
  bool are_open = false;

  /// How many the last of `rows` rows of a sequence may see.
  int64_t seen(int64_t rows) const { return (rows + (are_open ? rate - 1 : 0)) / rate; }
  /// Numbers of a row.
  int64_t width() const { return heads * topk; }
};

}  // namespace streambp
