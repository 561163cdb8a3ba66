// Products, triangular systems and decays of one block, for the kernels of the gated delta rule. Included by
// kernels' own .cc files only: see vector.h. Rows of matrices are padded with zeros to whole registers.
#pragma once

#include "streambp/ops/cpu/products.h"
#include "streambp/ops/cpu/recurrent/delta_rule.h"
#include "streambp/ops/cpu/row_loops.h"

namespace streambp::cpu::STREAMBP_ISA {

/// A matrix in memory, or a part of one.
template <typename T>
struct Matrix {
  T* data;
  int64_t row;  // numbers from one row to the next

  T* operator[](int64_t i) const { return data + i * row; }
  Matrix column(int64_t first) const { return {data + first, row}; }
};

/// Memory for one matrix after another. null: to learn the size.
template <typename T>
struct MatrixSpace {
  T* memory;
  int64_t size = 0;  // numbers of all that were taken

  template <typename... Matrices>
  void take(int64_t rows, int64_t columns, Matrices&... matrices) {
    const auto take_one = [&](Matrix<T>& matrix) {
      matrix = {memory == nullptr ? nullptr : memory + size, columns};
      size += rows * columns;
    };
    (take_one(matrices), ...);
  }
};

template <typename T>
static constexpr int64_t padded(int64_t size) {
  return (size + kWidth<T> - 1) / kWidth<T> * kWidth<T>;
}

template <typename T>
static void fill(Matrix<T> a, int64_t rows, int64_t columns, T value) {
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = 0; j < columns; j += kWidth<T>) store(a[i] + j, broadcast(value));
}

/// a's rows times a number each.
template <typename T>
static void scale_rows(Matrix<T> a, int64_t rows, int64_t columns, const T* factors) {
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = 0; j < columns; j += kWidth<T>) store(a[i] + j, load(a[i] + j) * factors[i]);
}

/// sum += rows of a times a number each.
template <typename T>
static void add_scaled_rows(Matrix<T> sum, int64_t rows, int64_t columns, const T* factors, Matrix<T> a) {
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = 0; j < columns; j += kWidth<T>)
      store(sum[i] + j, load(sum[i] + j) + load(a[i] + j) * factors[i]);
}

template <typename T>
static T dot(const T* a, const T* b, int64_t columns) {
  return sum_over<T>(columns, [&](auto at) { return at.load(a) * at.load(b); });
}

/// Exchanges kStep numbers of register i with those of register i + kStep, then half as many.
template <int kStep, typename T>
[[gnu::always_inline]] static inline void transpose_square(Vector<T> (&x)[kWidth<T>]) {
  if constexpr (kStep > 0) {
    using Bits = typename Lanes<T>::Bits;
    Bits first, second;
#pragma GCC unroll 16
    for (int lane = 0; lane < kWidth<T>; ++lane) {
      first[lane] = (lane & kStep) == 0 ? lane : kWidth<T> + lane - kStep;
      second[lane] = (lane & kStep) == 0 ? lane + kStep : kWidth<T> + lane;
    }
#pragma GCC unroll 16
    for (int i = 0; i < kWidth<T>; ++i) {
      if ((i & kStep) != 0) continue;
      const Vector<T> upper = x[i], lower = x[i + kStep];
      x[i] = __builtin_shuffle(upper, lower, first);
      x[i + kStep] = __builtin_shuffle(upper, lower, second);
    }
    transpose_square<kStep / 2, T>(x);
  }
}

/// to = a^T for a [rows, columns]; the rows of both are padded.
template <typename T>
static void transpose(Matrix<T> a, int64_t rows, int64_t columns, Matrix<T> to) {
  for (int64_t i = 0; i < rows; i += kWidth<T>) {
    for (int64_t j = 0; j < columns; j += kWidth<T>) {
      Vector<T> square[kWidth<T>];
      for (int64_t k = 0; k < kWidth<T>; ++k) square[k] = i + k < rows ? load(a[i + k] + j) : Vector<T>{};
      transpose_square<kWidth<T> / 2, T>(square);
      for (int64_t k = 0; k < at_most(kWidth<T>, columns - j); ++k) store(to[j + k] + i, square[k]);
    }
  }
}

/// c [rows, columns] += a b, or = a b; a [rows, depth], b [depth, columns]. `columns` are padded.
template <bool kAdds, typename T>
static void multiply(int64_t rows, int64_t columns, int64_t depth, Matrix<T> a, Matrix<T> b, Matrix<T> c) {
  for_each_column_tile<T>(columns, [&](int64_t column, auto vectors) {
    for_each_row_tile(rows, [&](int64_t row, auto count) {
      product_rows<kAdds, T, decltype(count)::value, decltype(vectors)::value>(
          depth, a[row], a.row, 1, b.data + column, b.row, c[row] + column, c.row);
    });
  });
}

/// The same with a^T for a, a [depth, rows].
template <bool kAdds, typename T>
static void multiply_transposed(int64_t rows, int64_t columns, int64_t depth, Matrix<T> a, Matrix<T> b,
                                Matrix<T> c) {
  for_each_column_tile<T>(columns, [&](int64_t column, auto vectors) {
    for_each_row_tile(rows, [&](int64_t row, auto count) {
      product_rows<kAdds, T, decltype(count)::value, decltype(vectors)::value>(
          depth, a.data + row, 1, a.row, b.data + column, b.row, c[row] + column, c.row);
    });
  });
}

/// The same for lower triangular a [rows, rows], and for its a^T: what is above the diagonal is not read,
/// but for squares on it.
template <bool kAdds, typename T>
static void multiply_lower(int64_t rows, int64_t columns, Matrix<T> a, Matrix<T> b, Matrix<T> c) {
  for_each_column_tile<T>(columns, [&](int64_t column, auto vectors) {
    for_each_row_tile(rows, [&](int64_t row, auto count) {
      product_rows<kAdds, T, decltype(count)::value, decltype(vectors)::value>(
          row + decltype(count)::value, a[row], a.row, 1, b.data + column, b.row, c[row] + column, c.row);
    });
  });
}
template <bool kAdds, typename T>
static void multiply_upper(int64_t rows, int64_t columns, Matrix<T> a, Matrix<T> b, Matrix<T> c) {
  for_each_column_tile<T>(columns, [&](int64_t column, auto vectors) {
    for_each_row_tile(rows, [&](int64_t row, auto count) {
      product_rows<kAdds, T, decltype(count)::value, decltype(vectors)::value>(
          rows - row, a[row] + row, 1, a.row, b[row] + column, b.row, c[row] + column, c.row);
    });
  });
}

/// Rows [first, first + kRows) of solve(): those before are solved.
template <typename T, int kRows, int kVectors>
static void solve_rows(Matrix<T> a, Matrix<T> x, int64_t first) {
  Vector<T> sum[kRows][kVectors];
  for (int m = 0; m < kRows; ++m)
    for (int v = 0; v < kVectors; ++v) sum[m][v] = load(x[first + m] + v * kWidth<T>);
  product<T, kRows, kVectors>(first, a[first], a.row, 1, x.data, x.row, sum);
#pragma GCC unroll 8
  for (int m = 1; m < kRows; ++m)
#pragma GCC unroll 8
    for (int k = 0; k < m; ++k)
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) sum[m][v] += broadcast(a[first + m][first + k]) * sum[k][v];
  for (int m = 0; m < kRows; ++m)
    for (int v = 0; v < kVectors; ++v) store(x[first + m] + v * kWidth<T>, sum[m][v]);
}

/// x = (I - a)^-1 x for a strictly lower triangular a [rows, rows] and x [rows, columns].
template <typename T>
static void solve(int64_t rows, int64_t columns, Matrix<T> a, Matrix<T> x) {
  for_each_column_tile<T>(columns, [&](int64_t column, auto vectors) {
    for_each_row_tile(rows, [&](int64_t row, auto count) {
      solve_rows<T, decltype(count)::value, decltype(vectors)::value>(a, x.column(column), row);
    });
  });
}

/// Rows [first, first + kRows) of solve_transposed() of `rows`: those after are solved.
template <typename T, int kRows, int kVectors>
static void solve_rows_transposed(int64_t rows, Matrix<T> a, Matrix<T> x, int64_t first) {
  const int64_t next = first + kRows;
  Vector<T> sum[kRows][kVectors];
  for (int m = 0; m < kRows; ++m)
    for (int v = 0; v < kVectors; ++v) sum[m][v] = load(x[first + m] + v * kWidth<T>);
  product<T, kRows, kVectors>(rows - next, a[next] + first, 1, a.row, x[next], x.row, sum);
#pragma GCC unroll 8
  for (int m = kRows - 2; m >= 0; --m)
#pragma GCC unroll 8
    for (int k = m + 1; k < kRows; ++k)
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) sum[m][v] += broadcast(a[first + k][first + m]) * sum[k][v];
  for (int m = 0; m < kRows; ++m)
    for (int v = 0; v < kVectors; ++v) store(x[first + m] + v * kWidth<T>, sum[m][v]);
}

/// x = (I - a)^-T x, the same otherwise.
template <typename T>
static void solve_transposed(int64_t rows, int64_t columns, Matrix<T> a, Matrix<T> x) {
  for_each_column_tile<T>(columns, [&](int64_t column, auto vectors) {
    constexpr int kVectors = decltype(vectors)::value;
    int64_t first = rows - kTileRows;
    for (; first >= 0; first -= kTileRows)
      solve_rows_transposed<T, kTileRows, kVectors>(rows, a, x.column(column), first);
    call_with<kTileRows - 1>(static_cast<int>(first + kTileRows), [&](auto count) {
      solve_rows_transposed<T, decltype(count)::value, kVectors>(rows, a, x.column(column), 0);
    });
  });
}

/// Of tokens with these logarithms of decays: decays_ts = e^(G_t - G_s) for s <= t, else 0, and decay_t =
/// e^G_t, G the running sum. `decay` is padded.
template <typename T>
static void set_decays(int64_t rows, const T* log_decay, Matrix<T> decays, T* decay) {
  T exponents[kDeltaBlock];
  const int64_t columns = padded<T>(rows);
  for (int64_t s = 0; s < columns; ++s) exponents[s] = -kInfinity<T>;
  T total = 0;
  for (int64_t t = 0; t < rows; ++t) {
    for (int64_t s = 0; s < columns; ++s) exponents[s] += log_decay[t];
    exponents[t] = 0;
    for (int64_t s = 0; s < columns; s += kWidth<T>) store(decays[t] + s, exp_of<T>(load(exponents + s)));
    total += log_decay[t];
    decay[t] = total;
  }
  for (int64_t t = rows; t < columns; ++t) decay[t] = 0;
  for (int64_t t = 0; t < columns; t += kWidth<T>) store(decay + t, exp_of<T>(load(decay + t)));
}

}  // namespace streambp::cpu::STREAMBP_ISA
