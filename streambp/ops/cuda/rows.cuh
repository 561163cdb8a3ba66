// Rows added to the rows of a table that `indices` name, in one order: the gradient of an embedding
// without atomic additions.
#pragma once

#include "streambp/ops/cuda/numbers.cuh"

namespace streambp::cuda {

/// A block for each of the sorted indices; the first of equal ones sums all their rows.
template <typename S, typename G, int kCount>
STREAMBP_GLOBAL void add_rows_of(RowSums<S, G> op) {
  using W = Wide<S>;
  for (int64_t first = block_index(); first < op.count; first += block_count()) {
    const int64_t index = op.indices[first];
    if (first > 0 && op.indices[first - 1] == index) continue;
    int64_t last = first + 1;
    while (last < op.count && op.indices[last] == index) ++last;
    G* const to = op.to + index * op.to_stride;
    for (int64_t i = thread_index() * kCount; i < op.size; i += kThreads * kCount) {
      W sum[kCount];
      load(to + i, sum);
      for (int64_t row = first; row < last; ++row) {
        W numbers[kCount];
        load(op.from + (op.order == nullptr ? row : op.order[row]) * op.from_stride + i, numbers);
        STREAMBP_UNROLL
        for (int k = 0; k < kCount; ++k) sum[k] += numbers[k];
      }
      store(to + i, sum);
    }
  }
}

template <typename S, typename G>
Failure add_rows(const Queue& queue, const RowSums<S, G>& op) {
  const auto run = [&](auto kernel) {
    return launch(queue, kernel, blocks_for(op.count, 1), kThreads, 0, op);
  };
  // A pack of the narrower type has 16 bytes in one of them, and 32 in the other: 4 are 16 in the wider one.
  constexpr int kCount = kPack<G> < kPack<S> ? kPack<G> : kPack<S>;
  const bool in_packs = op.size % kCount == 0 && moves_in_packs<S>(op.from, op.from_stride) &&
                        moves_in_packs<G>(op.to, op.to_stride);
  return in_packs ? run(add_rows_of<S, G, kCount>) : run(add_rows_of<S, G, 1>);
}

}  // namespace streambp::cuda
