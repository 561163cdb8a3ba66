// How the rows of a run are cut into sequences, for ops that carry something from one row to the next.
#pragma once

#include <cstdint>
#include <vector>

#include "streambp/error.h"

namespace streambp {

/// Throws InputError unless `offsets` cut `rows` rows: 0 first, `rows` last, never descending.
inline void check_offsets(const std::vector<int64_t>& offsets, int64_t rows, const char* op) {
  bool cuts = offsets.size() >= 2 && offsets.front() == 0 && offsets.back() == rows;
  for (size_t i = 1; cuts && i < offsets.size(); ++i) cuts = offsets[i - 1] <= offsets[i];
  if (!cuts) {
    throw InputError("{}: offsets of sequences: expected 0 first, the {} rows last and none that descends",
                     op, rows);
  }
}

}  // namespace streambp
