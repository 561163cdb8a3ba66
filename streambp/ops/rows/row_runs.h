// Work on rows by runs, which bounds what its intermediate tensors take.
#pragma once

#include <algorithm>
#include <cstdint>

#include <ATen/ATen.h>

#include "streambp/ops/dry_run.h"

namespace streambp {

/// Calls body(begin, rows) for runs of at most `most` rows of x, in order; in a dry run one stands for all
/// that are as large.
template <typename Body>
void for_each_row_run(const at::Tensor& x, int64_t most, Body body) {
  const int64_t rows = x.size(0);
  for (int64_t begin = 0; begin < rows;) {
    const int64_t count = std::min(most, rows - begin);
    body(begin, count);
    begin += count * steps_in_one(x.device(), std::max<int64_t>(1, (rows - begin) / most));
  }
}

}  // namespace streambp
