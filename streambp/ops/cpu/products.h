// Small matrix products that stay in the first caches, for kernels made of them. Included by kernels' own .cc
// files only: see vector.h.
#pragma once

#include "streambp/ops/cpu/vector.h"

namespace streambp::cpu::STREAMBP_ISA {

static constexpr int64_t at_least(int64_t a, int64_t b) {
  return a > b ? a : b;
}
static constexpr int64_t at_most(int64_t a, int64_t b) {
  return a < b ? a : b;
}

/// Rows and vectors of the result that one product holds in registers: with one vector of b for each column
/// and one broadcast number of a they fill the register file (32 of AVX-512, 16 elsewhere).
inline constexpr int kTileRows = 6;
inline constexpr int kTileVectors = STREAMBP_VECTOR_BYTES == 64 ? 4 : 2;

/// sum = a b for a [kRows, depth], whose number (m, k) lies at a[m * a_row + k * a_column], and b [depth,
/// kVectors * kWidth] with rows b_row apart.
template <typename T, int kRows, int kVectors>
[[gnu::always_inline]] static inline void product(int64_t depth, const T* a, int64_t a_row, int64_t a_column,
                                                  const T* b, int64_t b_row,
                                                  Vector<T> (&sum)[kRows][kVectors]) {
  for (int64_t k = 0; k < depth; ++k) {
    Vector<T> row[kVectors];
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) row[v] = load(b + k * b_row + v * kWidth<T>);
#pragma GCC unroll 8
    for (int m = 0; m < kRows; ++m) {
      const Vector<T> factor = broadcast(a[m * a_row + k * a_column]);
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) sum[m][v] += factor * row[v];
    }
  }
}

/// c += a b, or c = a b, for kRows rows of c, c_row apart.
template <bool kAdds, typename T, int kRows, int kVectors>
static inline void product_rows(int64_t depth, const T* a, int64_t a_row, int64_t a_column, const T* b,
                                int64_t b_row, T* c, int64_t c_row) {
  Vector<T> sum[kRows][kVectors];
#pragma GCC unroll 8
  for (int m = 0; m < kRows; ++m)
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) sum[m][v] = kAdds ? load(c + m * c_row + v * kWidth<T>) : Vector<T>{};
  product<T, kRows, kVectors>(depth, a, a_row, a_column, b, b_row, sum);
#pragma GCC unroll 8
  for (int m = 0; m < kRows; ++m)
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) store(c + m * c_row + v * kWidth<T>, sum[m][v]);
}

/// Calls body(row, Number<rows>) for tiles of kTileRows rows and one of those that are left.
template <int kRows>
struct Number {
  static constexpr int value = kRows;
};
template <int kLargest, typename Body>
[[gnu::always_inline]] static inline void call_with(int rows, Body body) {
  if constexpr (kLargest > 0) {
    if (rows == kLargest) return body(Number<kLargest>{});
    call_with<kLargest - 1>(rows, body);
  }
}
template <typename Body>
[[gnu::always_inline]] static inline void for_each_row_tile(int64_t rows, Body body) {
  int64_t row = 0;
  for (; row + kTileRows <= rows; row += kTileRows) body(row, Number<kTileRows>{});
  const int rest = static_cast<int>(rows - row);
  if (rest > 0) call_with<kTileRows - 1>(rest, [&](auto count) { body(row, count); });
}

/// Columns of a tile as wide as the registers hold.
template <typename T>
inline constexpr int64_t kTileColumns = kTileVectors* kWidth<T>;

/// Calls body(column, Number<vectors>) for tiles of kTileColumns columns and one of those that are left;
/// `columns` is a multiple of kWidth.
template <typename T, typename Body>
[[gnu::always_inline]] static inline void for_each_column_tile(int64_t columns, Body body) {
  for (int64_t column = 0; column < columns; column += kTileColumns<T>) {
    const int64_t left = (columns - column) / kWidth<T>;
    call_with<kTileVectors>(static_cast<int>(at_most(left, kTileVectors)),
                            [&](auto vectors) { body(column, vectors); });
  }
}

/// c [rows, columns] += a [rows, depth] b [depth, columns], where `columns` is a multiple of kWidth.
template <typename T>
static void add_product(int64_t rows, int64_t columns, int64_t depth, const T* a, int64_t a_row,
                        int64_t a_column, const T* b, int64_t b_row, T* c, int64_t c_row) {
  for_each_column_tile<T>(columns, [&](int64_t column, auto vectors) {
    for_each_row_tile(rows, [&](int64_t row, auto count) {
      product_rows<true, T, decltype(count)::value, decltype(vectors)::value>(
          depth, a + row * a_row, a_row, a_column, b + column, b_row, c + row * c_row + column, c_row);
    });
  });
}

}  // namespace streambp::cpu::STREAMBP_ISA
