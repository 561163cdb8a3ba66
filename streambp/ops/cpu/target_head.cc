#include "streambp/ops/cpu/target_head.h"

#include "streambp/ops/cpu/log_odds.h"
#include "streambp/ops/cpu/products.h"
#include "streambp/ops/cpu/storage.h"

namespace streambp::cpu::STREAMBP_ISA {
namespace {

/// Vocabulary entries of a tile: its exponentials and weights stay in the second cache.
constexpr int64_t kTile = 96;
/// Numbers of hidden states that a product of logits takes at a time: they stay in the first cache.
constexpr int64_t kDepth = 128;

template <typename T>
int64_t padded(int64_t rows) {
  return (rows + kTileColumns<T> - 1) / kTileColumns<T> * kTileColumns<T>;
}

template <typename T>
int64_t column_count(int64_t rows) {
  return padded<T>(rows) + kHeadInputStep;
}

template <typename T>
int64_t copy_size(int64_t rows, int64_t size) {
  return at_least(padded<T>(rows) * size, rows * padded<T>(size));
}

template <typename T>
int64_t workspace(int64_t rows, int64_t size) {
  return 3 * padded<T>(rows) + kTile * (padded<T>(size) + column_count<T>(rows));
}

/// Asks for rows that the next product will read or add to: they come from far, and a product is long.
template <typename T>
void fetch(const T* from, int64_t rows, int64_t stride, int64_t count) {
  constexpr int64_t kLine = 64 / static_cast<int64_t>(sizeof(T));
  for (int64_t row = 0; row < rows; ++row)
    for (int64_t i = 0; i < count; i += kLine) __builtin_prefetch(from + row * stride + i, 0, 3);
}

/// Rows [rows, size] by panels of kTileColumns columns, one panel's rows side by side, `height` to a panel.
template <typename T>
void to_panels(const T* x, int64_t rows, int64_t size, int64_t height, T* panels) {
  for (int64_t row = 0; row < rows; ++row) {
    for_each_column_tile<T>(size, [&](int64_t column, auto vectors) {
      for (int v = 0; v < decltype(vectors)::value; ++v)
        store(panels + column * height + row * kTileColumns<T> + v * kWidth<T>,
              load(x + row * size + column + v * kWidth<T>));
    });
  }
}

/// Panels of kTileColumns rows of x, [size, kTileColumns] each; zeros stand for rows that are not there.
template <typename T>
void copy(const HeadOperands<T>& op) {
  for (int64_t first = 0; first < op.rows; first += kTileColumns<T>) {
    T* const panel = op.columns + first * op.size;
    const int64_t count = at_most(kTileColumns<T>, op.rows - first);
    for (int64_t d = 0; d < op.size; ++d)
      for (int64_t i = 0; i < kTileColumns<T>; ++i)
        panel[d * kTileColumns<T> + i] = i < count ? op.x[(first + i) * op.size + d] : T{0};
  }
  if (op.panels != nullptr) to_panels(op.x, op.rows, op.size, op.rows, op.panels);
}

/// The logits of vocabulary entries [begin, end).
template <typename T>
void multiply(const HeadOperands<T>& op, int64_t begin, int64_t end, T* logits, int64_t stride) {
  for (int64_t d = 0; d < op.size; d += kDepth) {
    const int64_t depth = at_most(kDepth, op.size - d);
    for (int64_t column = 0; column < op.rows; column += kTileColumns<T>) {
      const T* const panel = op.columns + column * op.size + d * kTileColumns<T>;
      for_each_row_tile(end - begin, [&](int64_t i, auto count) {
        constexpr int kRows = decltype(count)::value;
        const T* const weight = op.weight + (begin + i) * op.size + d;
        T* const to = logits + i * stride + column;
        if (column == 0 && begin + i + 2 * kRows <= end)
          fetch(weight + kRows * op.size, kRows, op.size, depth);
        if (d == 0) {
          product_rows<false, T, kRows, kTileVectors>(depth, weight, op.size, 1, panel, kTileColumns<T>, to,
                                                      stride);
        } else {
          product_rows<true, T, kRows, kTileVectors>(depth, weight, op.size, 1, panel, kTileColumns<T>, to,
                                                     stride);
        }
      });
    }
  }
}

/// Turns a tile of logits into exponentials relative to their columns' largest so far, `largest`, and sums
/// them.
/// `shares`: by what exponentials of earlier tiles are to be multiplied, so that they are relative to that
/// one too. Returns whether any share is not 1.
template <typename T>
bool online_softmax_step(T* logits, int64_t count, int64_t columns, int64_t stride, double scale, T* largest,
                         T* sums, T* shares) {
  const T factor = static_cast<T>(scale * kLog2OfE);
  bool is_new = false;
  for (int64_t column = 0; column < columns; column += kWidth<T>) {
    T* const first = logits + column;
    const Vector<T> before = load(largest + column);
    Vector<T> most = before, sum = {};
    for (int64_t i = 0; i < count; ++i) {
      const Vector<T> logit = load(first + i * stride);
      most = logit > most ? logit : most;
    }
    for (int64_t i = 0; i < count; ++i) {
      T* const numbers = first + i * stride;
      const Vector<T> power = exp2_of<T>((load(numbers) - most) * factor);
      store(numbers, power);
      sum += power;
    }
    store(shares + column, exp2_of<T>((before - most) * factor));
    for (int64_t i = column; i < column + kWidth<T>; ++i) is_new |= shares[i] != 1;
    store(largest + column, most);
    store(sums + column, sum);
  }
  return is_new;
}

/// A tile, and where what is known of it lies.
template <typename T>
struct VocabularyTile {
  int64_t first, last;  // vocabulary entries
  T *numbers, *largest, *sums;

  /// `own`: a tile's numbers, where they are not kept.
  VocabularyTile(const HeadOperands<T>& op, int64_t tile, int64_t stride, T* own = nullptr)
      : first(tile * kTile),
        last(at_most(first + kTile, op.vocabulary)),
        numbers(op.exponentials == nullptr ? own : op.exponentials + first * stride),
        largest(op.sums + 2 * tile * stride),
        sums(largest + stride) {}

  /// Calls body(row, number) for the rows whose target is in the tile.
  template <typename Body>
  void for_each_target(const HeadOperands<T>& op, int64_t stride, Body body) const {
    for (int64_t row = 0; row < op.rows; ++row) {
      const int64_t target = op.targets[row];
      if (target >= first && target < last) body(row, numbers[(target - first) * stride + row]);
    }
  }
};

/// A thread's part of the pass over all tiles.
template <typename T>
class Forward {
 public:
  Forward(const HeadOperands<T>& op, T* workspace)
      : op_(op), stride_(column_count<T>(op.rows)), columns_(padded<T>(op.rows)), shares_(workspace) {
    workspace += columns_;
    weight_ = workspace;
    workspace += kTile * padded<T>(op.size);
    exponentials_ = workspace;
  }

  void run(int64_t index, const HeadShare<T>& share, double* target_logits) {
    const VocabularyTile<T> tile(op_, index, stride_, exponentials_);
    multiply(op_, tile.first, tile.last, tile.numbers, stride_);
    tile.for_each_target(op_, stride_, [&](int64_t row, T& logit) {
      target_logits[row] = static_cast<double>(logit);
      logit = kLowest<T>;
    });
    const bool is_new = online_softmax_step(tile.numbers, tile.last - tile.first, columns_, stride_,
                                            op_.scale, share.largest, tile.sums, shares_);
    // Its exponential is 0 already, or 1 where there is no larger logit so far.
    tile.for_each_target(op_, stride_, [&](int64_t row, T& power) {
      tile.sums[row] -= power;
      power = 0;
    });
    for (int64_t column = 0; column < columns_; column += kWidth<T>)
      store(tile.largest + column, load(share.largest + column));
    if (share.sum == nullptr) return;
    if (is_new) scale_rows(share.sum);
    add_to_sum(tile, share.sum);
  }

 private:
  void scale_rows(T* rows) const {
    for (int64_t row = 0; row < op_.rows; ++row) {
      if (shares_[row] == 1) continue;
      T* const one = rows + row * op_.size;
      for (int64_t d = 0; d < op_.size; d += kWidth<T>) store(one + d, load(one + d) * shares_[row]);
    }
  }

  void add_to_sum(const VocabularyTile<T>& tile, T* sum) {
    const int64_t count = tile.last - tile.first;
    to_panels(op_.weight + tile.first * op_.size, count, op_.size, kTile, weight_);
    for_each_column_tile<T>(op_.size, [&](int64_t column, auto vectors) {
      for_each_row_tile(op_.rows, [&](int64_t row, auto rows) {
        product_rows<true, T, decltype(rows)::value, decltype(vectors)::value>(
            count, tile.numbers + row, 1, stride_, weight_ + column * kTile, kTileColumns<T>,
            sum + row * op_.size + column, op_.size);
      });
    });
  }

  const HeadOperands<T>& op_;
  int64_t stride_;
  int64_t columns_;
  T* shares_;        // [columns]
  T* weight_;        // a tile's, by panels
  T* exponentials_;  // a tile's, where they are not kept
};

template <typename T>
void forward(const HeadOperands<T>& op, const HeadShare<T>& share, double* target_logits, T* workspace,
             int64_t begin, int64_t end) {
  Forward<T> pass(op, workspace);
  for (int64_t column = 0; column < padded<T>(op.rows); ++column) share.largest[column] = kLowest<T>;
  if (share.sum != nullptr)
    for (int64_t i = 0; i < op.rows * op.size; ++i) share.sum[i] = 0;
  for (int64_t index = begin; index < end; ++index) pass.run(index, share, target_logits);
}

template <typename T>
void sum_up(const HeadOperands<T>& op, double* target_logits, int64_t begin, int64_t end) {
  const int64_t stride = column_count<T>(op.rows);
  const int64_t tiles = (op.vocabulary + kTile - 1) / kTile;
  for (int64_t row = begin; row < end; ++row) {
    T largest = op.sums[row];
    for (int64_t tile = 1; tile < tiles; ++tile) {
      const T one = op.sums[2 * tile * stride + row];
      largest = one > largest ? one : largest;
    }
    double sum = 0;
    for (int64_t tile = 0; tile < tiles; ++tile) {
      const T* const of_tile = op.sums + 2 * tile * stride + row;
      sum += static_cast<double>(of_tile[stride]) *
             __builtin_exp((static_cast<double>(of_tile[0]) - static_cast<double>(largest)) * op.scale);
    }
    double* const of_row = op.log_sums + 3 * row;
    of_row[0] = static_cast<double>(largest);
    of_row[1] = __builtin_log(sum);
    const double log_odds = log_odds_of(target_logits[row], of_row, op.scale);
    of_row[2] = complement_of(log_odds);
    if (sum == 0) of_row[1] = 0;  // no others: nothing is divided by their sum
    target_logits[row] = log_probability_of(log_odds);
  }
}

/// A thread's part of the weight's gradient.
template <typename T>
class WeightGradient {
 public:
  WeightGradient(const HeadOperands<T>& op, const double* d_target, T* workspace)
      : op_(op),
        stride_(column_count<T>(op.rows)),
        columns_(padded<T>(op.rows)),
        largest_(workspace),
        log_sum_(largest_ + columns_),
        d_(log_sum_ + columns_) {
    for (int64_t row = 0; row < columns_; ++row) {
      const bool is_there = row < op.rows;
      largest_[row] = is_there ? static_cast<T>(op.log_sums[3 * row]) : T{0};
      log_sum_[row] = is_there ? static_cast<T>(op.log_sums[3 * row + 1]) : T{0};
      d_[row] = is_there ? static_cast<T>(d_target[row] * op.scale * op.log_sums[3 * row + 2]) : T{0};
    }
  }

  void run(int64_t index) {
    const VocabularyTile<T> tile(op_, index, stride_);
    differentiate(tile);
    add(tile);
  }

 private:
  /// Exponentials become the logits' gradients: d (1 - p) (onehot - q) scale, p the target's probability and
  /// q the others' relative to 1 - p.
  void differentiate(const VocabularyTile<T>& tile) {
    const T scale = static_cast<T>(op_.scale);
    for (int64_t column = 0; column < columns_; column += kWidth<T>) {
      const Vector<T> shifted = (load(tile.largest + column) - load(largest_ + column)) * scale;
      const Vector<T> factor = exp_of<T>(shifted - load(log_sum_ + column)) * -load(d_ + column);
      T* const first = tile.numbers + column;
      for (int64_t i = 0; i < tile.last - tile.first; ++i)
        store(first + i * stride_, load(first + i * stride_) * factor);
    }
    tile.for_each_target(op_, stride_, [&](int64_t row, T& number) { number += d_[row]; });
  }

  void add(const VocabularyTile<T>& tile) const {
    const int64_t count = tile.last - tile.first;
    T* const d_weight = op_.d_weight + tile.first * op_.size;
    for_each_column_tile<T>(op_.size, [&](int64_t column, auto vectors) {
      constexpr int kVectors = decltype(vectors)::value;
      for_each_row_tile(count, [&](int64_t i, auto rows) {
        constexpr int kRows = decltype(rows)::value;
        T* const to = d_weight + i * op_.size + column;
        if (i + 2 * kRows <= count) fetch(to + kRows * op_.size, kRows, op_.size, kVectors * kWidth<T>);
        product_rows<true, T, kRows, kVectors>(op_.rows, tile.numbers + i * stride_, stride_, 1,
                                               op_.panels + column * op_.rows, kTileColumns<T>, to, op_.size);
      });
    });
  }

  const HeadOperands<T>& op_;
  int64_t stride_;
  int64_t columns_;
  T *largest_, *log_sum_, *d_;  // [columns]
};

template <typename T>
void add_to_weight(const HeadOperands<T>& op, const double* d_target, T* workspace, int64_t begin,
                   int64_t end) {
  WeightGradient<T> pass(op, d_target, workspace);
  for (int64_t tile = begin; tile < end; ++tile) pass.run(tile);
}

/// d_x = d (1 - p) scale (the target's weight - the mean weight of the others by probability), rounded once.
template <typename T>
void gather(const HeadOperands<T>& op, const double* d_target, const HeadShare<T>* shares,
            int64_t share_count, T* d_x, int64_t begin, int64_t end) {
  constexpr int64_t kBlock = 256;
  double sum[kBlock];
  for (int64_t row = begin; row < end; ++row) {
    const double factor = d_target[row] * op.scale * op.log_sums[3 * row + 2];
    for (int64_t first = 0; first < op.size; first += kBlock) {
      const int64_t count = at_most(kBlock, op.size - first);
      const T* const target = op.weight + op.targets[row] * op.size + first;
      for (int64_t d = 0; d < count; ++d) sum[d] = static_cast<double>(target[d]);
      for (int64_t i = 0; i < share_count; ++i) {
        const double shifted = static_cast<double>(shares[i].largest[row]) - op.log_sums[3 * row];
        const double part = __builtin_exp(shifted * op.scale - op.log_sums[3 * row + 1]);
        const T* const of_share = shares[i].sum + row * op.size + first;
        for (int64_t d = 0; d < count; ++d) sum[d] -= part * static_cast<double>(of_share[d]);
      }
      T* const to = d_x + row * op.size + first;
      for (int64_t d = 0; d < count; ++d) to[d] = static_cast<T>(sum[d] * factor);
    }
  }
}

}  // namespace

template <typename T>
TargetHeadKernels<T> target_head_kernels();
template <typename T>
TargetHeadKernels<T> target_head_kernels() {
  return {kTile,      column_count<T>, copy_size<T>,     workspace<T>, copy<T>,
          forward<T>, sum_up<T>,       add_to_weight<T>, gather<T>};
}
template TargetHeadKernels<float> target_head_kernels();
template TargetHeadKernels<double> target_head_kernels();

}  // namespace streambp::cpu::STREAMBP_ISA
