// Loops over a row, a register at a time: loads and stores that widen and narrow, and the rest of a row that
// does not fill a register. For the kernels' own .cc files, as vector.h.
#pragma once

#include "streambp/ops/cpu/storage.h"

namespace streambp::cpu::STREAMBP_ISA {

/// A register's worth of a row, from number `i` on.
struct FullVector {
  int64_t i;

  template <typename S>
  Vector<Wide<S>> load(const S* row) const {
    return widen(row + i);
  }
  template <typename S>
  void store(S* row, Vector<Wide<S>> v) const {
    narrow(row + i, v);
  }
};

/// The last `count` numbers of a row, fewer than a register's worth; zeros stand for the others.
struct TailVector {
  int64_t i;
  int64_t count;

  template <typename S>
  Vector<Wide<S>> load(const S* row) const {
    S padded[kWidth<Wide<S>>] = {};
    __builtin_memcpy(padded, row + i, static_cast<size_t>(count) * sizeof(S));
    return widen(padded);
  }
  template <typename S>
  void store(S* row, Vector<Wide<S>> v) const {
    S padded[kWidth<Wide<S>>];
    narrow(padded, v);
    __builtin_memcpy(row + i, padded, static_cast<size_t>(count) * sizeof(S));
  }
};

/// Calls body(at) for a row of `size` numbers of arithmetic W.
template <typename W, typename Body>
static inline void over(int64_t size, Body body) {
  int64_t i = 0;
  for (; i + kWidth<W> <= size; i += kWidth<W>) body(FullVector{i});
  if (i < size) body(TailVector{i, size - i});
}

/// The sum of body(at) over a row. What a tail adds must be zero where its loads are. Four sums, as
/// one would wait for the additions' latency.
template <typename W, typename Body>
static inline W sum_over(int64_t size, Body body) {
  Vector<W> sums[4] = {};
  int64_t i = 0;
  for (; i + 4 * kWidth<W> <= size; i += 4 * kWidth<W>)
    for (int part = 0; part < 4; ++part) sums[part] += body(FullVector{i + part * kWidth<W>});
  for (; i + kWidth<W> <= size; i += kWidth<W>) sums[0] += body(FullVector{i});
  if (i < size) sums[1] += body(TailVector{i, size - i});
  return sum_of<W>((sums[0] + sums[1]) + (sums[2] + sums[3]));
}

}  // namespace streambp::cpu::STREAMBP_ISA
