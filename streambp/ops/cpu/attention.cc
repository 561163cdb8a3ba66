#include "streambp/ops/cpu/attention.h"

#include "streambp/ops/cpu/attention_tiles.h"
#include "streambp/ops/cpu/products.h"
#include "streambp/ops/cpu/storage.h"

namespace streambp::cpu::STREAMBP_ISA {
namespace {

/// A tile of queries is cut into panels of as many columns as a product holds in registers. So many panels
/// (of all query heads together) share each tile of keys.
constexpr int64_t kPanels = 4;

/// One key head's part of a run: a tile of queries against all that it sees.
template <typename S>
class HeadPass {
  using T = Wide<S>;
  using Tile = KeyTile<S>;
  static constexpr int64_t kColumns = kTileColumns<T>;

 public:
  /// Queries of a tile, of each query head.
  static int64_t query_tile(int64_t groups) { return panels_of(groups) * kColumns; }

  static int64_t workspace(int64_t head_size, int64_t groups) {
    const int64_t panels = groups * panels_of(groups);
    return panels * kColumns * (5 * head_size + 3) + 2 * kKeys * kColumns + 4 * kKeys * head_size;
  }

  HeadPass(const AttentionRun<S>& run, int64_t key_head, T* workspace)
      : run_(run),
        key_head_(key_head),
        size_(run.head_size),
        columns_(run.groups * query_tile(run.groups)),
        tile_{run, query_tile(run.groups)} {
    const auto take = [&](int64_t numbers) {
      T* const taken = workspace;
      workspace += numbers;
      return taken;
    };
    transposed_q_ = take(columns_ * size_);
    transposed_d_ = take(columns_ * size_);
    rows_ = take(columns_ * size_);
    q_ = take(columns_ * size_);
    d_ = take(columns_ * size_);
    largest_ = take(columns_);
    sum_ = take(columns_);
    delta_ = take(columns_);
    scores_ = take(kKeys * kColumns);
    d_scores_ = take(kKeys * kColumns);
    keys_ = take(kKeys * size_);
    values_ = take(kKeys * size_);
    d_keys_ = take(kKeys * size_);
    d_values_ = take(kKeys * size_);
  }

  /// Output and log-sum-exps of the tile that begins with `query`.
  void forward(int64_t query) {
    set_queries(query);
    fill(largest_, columns_, -kInfinity<T>);
    fill(sum_, columns_, T{0});
    tile_.for_each_key_tile([&](const Tile& tile) {
      bring(tile);
      tile_.for_each_panel(tile, [&](const Panel& panel) {
        multiply(tile, panel, keys_, transposed_q_, scores_);
        if (panel.is_cut) hide(tile, panel, scores_, -kInfinity<T>);
        call_with<kTileVectors>(
            panel.vectors, [&](auto vectors) { online_softmax_step<decltype(vectors)::value>(tile, panel); });
        add_product<T>(panel.queries, size_, tile.count, scores_, 1, kColumns, values_, size_,
                       rows_ + panel.column * size_, size_);
      });
    });
    for_each_row([&](int64_t column, int64_t row) {
      run_.log_sum_exp[row] = largest_[column] * static_cast<T>(kLn2) + log_of(sum_[column]);
      store_row(rows_ + column * size_, 1 / sum_[column], run_.output + row * size_);
      if (run_.remainder != nullptr)
        store_remainder(rows_ + column * size_, 1 / sum_[column], run_.output + row * size_,
                        run_.remainder + row * size_);
    });
  }

  /// The gradients of the tile that begins with `query`.
  void backward(int64_t query, const KeyTurn& turn) {
    set_queries(query);
    for (int64_t group = 0; group < run_.groups; ++group) {
      const int64_t head = (key_head_ * run_.groups + group) * size_;
      transpose(run_.d_output, run_.d_output_row, group, T{1}, transposed_d_);
      gather(run_.q + query * run_.q_row + head, run_.q_row, tile_.queries, q_ + group * tile_.size * size_);
      gather(run_.d_output + query * run_.d_output_row + head, run_.d_output_row, tile_.queries,
             d_ + group * tile_.size * size_);
    }
    fill(largest_, columns_, T{0});
    fill(delta_, columns_, T{0});
    for_each_row([&](int64_t column, int64_t row) {
      largest_[column] = run_.log_sum_exp[row] * static_cast<T>(kLog2OfE);
      delta_[column] = dot(d_ + column * size_, run_.output + row * size_);
      if (run_.remainder != nullptr) delta_[column] += dot(d_ + column * size_, run_.remainder + row * size_);
    });
    tile_.for_each_key_tile([&](const Tile& tile) {
      bring(tile);
      const bool wants_keys = tile.from.d_keys != nullptr;
      if (wants_keys) {
        fill(d_keys_, tile.count * size_, T{0});
        fill(d_values_, tile.count * size_, T{0});
      }
      tile_.for_each_panel(tile, [&](const Panel& panel) {
        multiply(tile, panel, keys_, transposed_q_, scores_);
        multiply(tile, panel, values_, transposed_d_, d_scores_);
        call_with<kTileVectors>(panel.vectors,
                                [&](auto vectors) { differentiate<decltype(vectors)::value>(tile, panel); });
        if (panel.is_cut) {
          hide(tile, panel, scores_, T{0});
          hide(tile, panel, d_scores_, T{0});
        }
        if (wants_keys) {
          add_product<T>(tile.count, size_, panel.queries, scores_, kColumns, 1, d_ + panel.column * size_,
                         size_, d_values_, size_);
          add_product<T>(tile.count, size_, panel.queries, d_scores_, kColumns, 1, q_ + panel.column * size_,
                         size_, d_keys_, size_);
        }
        add_product<T>(panel.queries, size_, tile.count, d_scores_, 1, kColumns, keys_, size_,
                       rows_ + panel.column * size_, size_);
      });
      if (wants_keys) {
        await(turn, tile);
        add_rows(d_keys_, tile, tile.from.d_keys);
        add_rows(d_values_, tile, tile.from.d_values);
      }
      __atomic_store_n(turn.done, tile.next, __ATOMIC_RELEASE);
    });
    __atomic_store_n(turn.done, kNoKey, __ATOMIC_RELEASE);
    for_each_row([&](int64_t column, int64_t row) {
      store_row(rows_ + column * size_, T{1}, run_.d_q + row * size_);
    });
  }

 private:
  static int64_t panels_of(int64_t groups) { return at_least(1, kPanels / groups); }

  int64_t heads() const { return run_.key_heads * run_.groups; }

  static void fill(T* numbers, int64_t count, T value) {
    for (int64_t i = 0; i < count; ++i) numbers[i] = value;
  }

  /// Calls body(column, row) for each query of the tile and its query heads; row is that of (query, head)
  /// among all of them.
  template <typename Body>
  void for_each_row(Body body) const {
    for (int64_t group = 0; group < run_.groups; ++group)
      for (int64_t i = 0; i < tile_.queries; ++i)
        body(group * tile_.size + i, (tile_.query + i) * heads() + key_head_ * run_.groups + group);
  }

  /// The tile that begins with `query`: brings the queries into columns, scaled for powers of 2.
  void set_queries(int64_t query) {
    tile_.query = query;
    tile_.queries = at_most(tile_.size, run_.queries - query);
    fill(rows_, columns_ * size_, T{0});
    for (int64_t group = 0; group < run_.groups; ++group)
      transpose(run_.q, run_.q_row, group, static_cast<T>(run_.scale * kLog2OfE), transposed_q_);
  }

  /// Turns the rows of a query head into the columns of its panels, [size, kColumns] each, times `scale`.
  /// Columns that are left are zeros.
  void transpose(const S* rows, int64_t row, int64_t group, T scale, T* transposed) const {
    rows += tile_.query * row + (key_head_ * run_.groups + group) * size_;
    for (int64_t first = 0; first < tile_.queries; first += kColumns) {
      T* const panel = transposed + (group * tile_.size + first) * size_;
      const int64_t count = at_most(kColumns, tile_.queries - first);
      for (int64_t e = 0; e < size_; ++e) {
        T* const column = panel + e * kColumns;
        for (int64_t i = 0; i < count; ++i) column[i] = to_wide(rows[(first + i) * row + e]) * scale;
        for (int64_t i = count; i < kColumns; ++i) column[i] = 0;
      }
    }
  }

  /// The tile's keys and values, into keys_ and values_.
  void bring(const Tile& tile) const {
    const KeyBlock<S>& from = tile.from;
    const int64_t head = key_head_ * size_;
    gather(from.keys + tile.first * from.key_row + head, from.key_row, tile.count, keys_);
    gather(from.values + tile.first * from.value_row + head, from.value_row, tile.count, values_);
  }

  /// Rows next to each other: those of one head lie far apart, where they would fall on each other in the
  /// cache.
  void gather(const S* rows, int64_t row, int64_t count, T* to) const {
    for (int64_t i = 0; i < count; ++i)
      for (int64_t e = 0; e < size_; e += kWidth<T>) store(to + i * size_ + e, widen(rows + i * row + e));
  }

  /// products [keys, kColumns] = rows [keys, size] times the panel's columns of `transposed`.
  void multiply(const Tile& tile, const Panel& panel, const T* rows, const T* transposed, T* products) const {
    call_with<kTileVectors>(panel.vectors, [&](auto vectors) {
      for_each_row_tile(tile.count, [&](int64_t key, auto count) {
        product_rows<false, T, decltype(count)::value, decltype(vectors)::value>(
            size_, rows + key * size_, size_, 1, transposed + panel.column * size_, kColumns,
            products + key * kColumns, kColumns);
      });
    });
  }

  /// One step of the online softmax: scores become powers relative to the new maxima, and what has been
  /// summed so far is scaled to those.
  template <int kVectors>
  void online_softmax_step(const Tile& tile, const Panel& panel) {
    T* const largest = largest_ + panel.column;
    T* const sum = sum_ + panel.column;
    Vector<T> now[kVectors], shift[kVectors], total[kVectors];
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) now[v] = load(largest + v * kWidth<T>);
    for (int64_t key = 0; key < tile.count; ++key) {
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) {
        const Vector<T> score = load(scores_ + key * kColumns + v * kWidth<T>);
        now[v] = score > now[v] ? score : now[v];
      }
    }
    bool is_new = false;
    T shares[kColumns];
    for (int v = 0; v < kVectors; ++v) {
      // Columns that have seen nothing yet have scores of -inf, and 0 stands for their largest.
      shift[v] = now[v] == -kInfinity<T> ? Vector<T>{} : now[v];
      const Vector<T> share = exp2_of<T>(load(largest + v * kWidth<T>) - shift[v]);
      total[v] = load(sum + v * kWidth<T>) * share;
      store(shares + v * kWidth<T>, share);
      store(largest + v * kWidth<T>, now[v]);
    }
    for (int64_t key = 0; key < tile.count; ++key) {
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) {
        T* const score = scores_ + key * kColumns + v * kWidth<T>;
        const Vector<T> weight = exp2_of<T>(load(score) - shift[v]);
        store(score, weight);
        total[v] += weight;
      }
    }
    for (int v = 0; v < kVectors; ++v) store(sum + v * kWidth<T>, total[v]);
    for (int64_t i = 0; i < panel.queries; ++i) is_new |= shares[i] != 1;
    if (!is_new) return;
    for (int64_t i = 0; i < panel.queries; ++i) {
      T* const row = rows_ + (panel.column + i) * size_;
      for (int64_t e = 0; e < size_; e += kWidth<T>) store(row + e, load(row + e) * shares[i]);
    }
  }

  /// Waits until the next tile of queries has added what it adds to the gradients of the tile's keys.
  static void await(const KeyTurn& turn, const Tile& tile) {
    if (turn.next != nullptr && __atomic_load_n(turn.next, __ATOMIC_ACQUIRE) < tile.end())
      turn.wait(turn.next, tile.end());
  }

  void add_rows(const T* rows, const Tile& tile, T* to) const {
    to += (tile.first * run_.key_heads + key_head_) * size_;
    for (int64_t i = 0; i < tile.count; ++i, to += run_.key_heads * size_)
      for (int64_t e = 0; e < size_; e += kWidth<T>) store(to + e, load(to + e) + load(rows + i * size_ + e));
  }

  void store_row(const T* row, T factor, S* to) const {
    for (int64_t e = 0; e < size_; e += kWidth<T>) narrow(to + e, load(row + e) * factor);
  }

  /// What storing row * factor in `stored` has left out of it.
  void store_remainder(const T* row, T factor, const S* stored, S* to) const {
    for (int64_t e = 0; e < size_; e += kWidth<T>) narrow(to + e, load(row + e) * factor - widen(stored + e));
  }

  T dot(const T* a, const S* b) const {
    Vector<T> sum = {};
    for (int64_t e = 0; e < size_; e += kWidth<T>) sum += load(a + e) * widen(b + e);
    return sum_of<T>(sum);
  }

  /// Scores become probabilities; their gradients become those of the products of queries and keys.
  template <int kVectors>
  void differentiate(const Tile& tile, const Panel& panel) const {
    const T scale = static_cast<T>(run_.scale);
    Vector<T> log_sum_exp[kVectors], delta[kVectors];
    for (int v = 0; v < kVectors; ++v) {
      log_sum_exp[v] = load(largest_ + panel.column + v * kWidth<T>);
      delta[v] = load(delta_ + panel.column + v * kWidth<T>);
    }
    for (int64_t key = 0; key < tile.count; ++key) {
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) {
        T* const score = scores_ + key * kColumns + v * kWidth<T>;
        T* const d_score = d_scores_ + key * kColumns + v * kWidth<T>;
        const Vector<T> weight = exp2_of<T>(load(score) - log_sum_exp[v]);
        store(score, weight);
        store(d_score, weight * (load(d_score) - delta[v]) * scale);
      }
    }
  }

  const AttentionRun<S>& run_;
  int64_t key_head_;
  int64_t size_;
  int64_t columns_;  // of a tile of queries, all query heads together
  QueryTile<S> tile_;
  T *transposed_q_, *transposed_d_;  // a panel after another, [size, kColumns] each
  T* rows_;                          // [columns, size]: output, or d_q
  T *q_, *d_;                        // [columns, size]: queries and d_output
  T* largest_;                       // [columns]: largest score so far, or log-sum-exp, of powers of 2
  T* sum_;                           // [columns]: of powers so far
  T* delta_;                         // [columns]: d_output . output
  T *scores_, *d_scores_;            // [kKeys, kColumns]
  T *keys_, *values_;                // [kKeys, size]
  T *d_keys_, *d_values_;
};

template <typename S>
void forward(const AttentionRun<S>& run, int64_t key_head, int64_t query, Wide<S>* workspace) {
  HeadPass<S>(run, key_head, workspace).forward(query);
}

template <typename S>
void backward(const AttentionRun<S>& run, int64_t key_head, int64_t query, const KeyTurn& turn,
              Wide<S>* workspace) {
  HeadPass<S>(run, key_head, workspace).backward(query, turn);
}

}  // namespace

template <typename S>
AttentionKernels<S> attention_kernels();
template <typename S>
AttentionKernels<S> attention_kernels() {
  return {HeadPass<S>::query_tile, HeadPass<S>::workspace, forward<S>, backward<S>};
}
template AttentionKernels<float> attention_kernels<float>();
template AttentionKernels<double> attention_kernels<double>();
template AttentionKernels<Bfloat16> attention_kernels<Bfloat16>();

}  // namespace streambp::cpu::STREAMBP_ISA
