#include "streambp/ops/cpu/attention.h"

#include "streambp/ops/cpu/products.h"
#include "streambp/ops/cpu/storage.h"

namespace streambp::cpu::STREAMBP_ISA {
namespace {

/// Keys of a tile: they, their values and a panel's scores stay near the first cache.
constexpr int64_t kKeys = 72;
/// A tile of queries is cut into panels of as many columns as a product holds in registers. So many panels
/// (of all query heads together) share each tile of keys.
constexpr int64_t kPanels = 4;

/// One key head's part of a run: a tile of queries after another, each against all that it sees.
template <typename S>
class HeadPass {
  using T = Wide<S>;
  static constexpr int64_t kColumns = kTileVectors * kWidth<T>;

 public:
  /// Queries of a tile, of each query head.
  static int64_t query_tile(int64_t groups) { return panels_of(groups) * kColumns; }

  static int64_t workspace(int64_t head_size, int64_t groups) {
    const int64_t panels = groups * panels_of(groups);
    return panels * kColumns * (5 * head_size + 3) + 2 * kKeys * kColumns + 4 * kKeys * head_size;
  }

  HeadPass(const AttentionRun<S>& run, int64_t key_head, T* workspace)
      : run_(run), key_head_(key_head), size_(run.head_size), tile_(query_tile(run.groups)) {
    const auto take = [&](int64_t numbers) {
      T* const taken = workspace;
      workspace += numbers;
      return taken;
    };
    const int64_t columns = run.groups * tile_;
    transposed_q_ = take(columns * size_);
    transposed_d_ = take(columns * size_);
    rows_ = take(columns * size_);
    q_ = take(columns * size_);
    d_ = take(columns * size_);
    largest_ = take(columns);
    sum_ = take(columns);
    delta_ = take(columns);
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
    for_each_key_tile([&](const KeyTile& tile) {
      for_each_panel(tile, [&](const Panel& panel) {
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
    });
  }

  /// The gradients of all tiles.
  void backward() {
    for (int64_t query = 0; query < run_.queries; query += tile_) backward(query);
  }

 private:
  /// Some keys of a block, and the queries that the block is about.
  struct KeyTile {
    ScoreBlock block;
    int64_t first;  // key of the block
    int64_t count;
    int64_t query, query_end;  // of the run, within the tile of queries
  };

  /// Columns of the tile of queries that one product holds: queries of one query head.
  struct Panel {
    int64_t column;   // of the first query
    int64_t query;    // of the run
    int64_t queries;  // that there are
    int vectors;      // that hold them
    bool is_cut;      // not every query sees every key
  };

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
      for (int64_t i = 0; i < queries_; ++i)
        body(group * tile_ + i, (query_ + i) * heads() + key_head_ * run_.groups + group);
  }

  /// The tile that begins with `query`: brings the queries into columns, scaled for powers of 2.
  void set_queries(int64_t query) {
    query_ = query;
    queries_ = at_most(tile_, run_.queries - query);
    columns_ = run_.groups * tile_;
    fill(rows_, columns_ * size_, T{0});
    for (int64_t group = 0; group < run_.groups; ++group)
      transpose(run_.q, run_.q_row, group, static_cast<T>(run_.scale * kLog2OfE), transposed_q_);
  }

  /// Turns the rows of a query head into the columns of its panels, [size, kColumns] each, times `scale`.
  /// Columns that are left are zeros.
  void transpose(const S* rows, int64_t row, int64_t group, T scale, T* transposed) const {
    rows += query_ * row + (key_head_ * run_.groups + group) * size_;
    for (int64_t first = 0; first < queries_; first += kColumns) {
      T* const panel = transposed + (group * tile_ + first) * size_;
      const int64_t count = at_most(kColumns, queries_ - first);
      for (int64_t e = 0; e < size_; ++e) {
        T* const column = panel + e * kColumns;
        for (int64_t i = 0; i < count; ++i) column[i] = to_wide(rows[(first + i) * row + e]) * scale;
        for (int64_t i = count; i < kColumns; ++i) column[i] = 0;
      }
    }
  }

  /// Calls body(tile) for tiles of everything that the queries see; their keys and values lie in keys_ and
  /// values_.
  template <typename Body>
  void for_each_key_tile(Body body) {
    for (int64_t b = 0; b < run_.block_count; ++b) {
      const KeyBlock<S>& from = run_.blocks[b];
      const ScoreBlock& block = from.block;
      const int64_t query = at_least(query_, block.query);
      const int64_t query_end = at_most(query_ + queries_, block.query + block.queries);
      if (query >= query_end) continue;
      int64_t key = 0, key_end = block.keys;
      if (block.visible == Visible::kCausal) key_end = query_end - block.query;
      if (block.visible == Visible::kFromOwn) key = query - block.query;
      for (; key < key_end; key += kKeys) {
        const int64_t count = at_most(kKeys, key_end - key);
        gather(from.keys + key * from.key_row + key_head_ * size_, from.key_row, count, keys_);
        gather(from.values + key * from.value_row + key_head_ * size_, from.value_row, count, values_);
        from_ = &from;
        body(KeyTile{block, key, count, query, query_end});
      }
    }
  }

  /// Rows next to each other: those of one head lie far apart, where they would fall on each other in the
  /// cache.
  void gather(const S* rows, int64_t row, int64_t count, T* to) const {
    for (int64_t i = 0; i < count; ++i)
      for (int64_t e = 0; e < size_; e += kWidth<T>) store(to + i * size_ + e, widen(rows + i * row + e));
  }

  /// Calls body(panel) for the panels that see any key of the tile.
  template <typename Body>
  void for_each_panel(const KeyTile& tile, Body body) const {
    for (int64_t group = 0; group < run_.groups; ++group) {
      for (int64_t first = 0; first < queries_; first += kColumns) {
        const int64_t queries = at_most(kColumns, queries_ - first);
        const int64_t query = query_ + first;
        const int64_t begin = at_least(query, tile.query), end = at_most(query + queries, tile.query_end);
        if (begin >= end) continue;
        bool is_cut = begin > query || end < query + queries;
        if (tile.block.visible == Visible::kCausal) {
          if (end - tile.block.query <= tile.first) continue;
          is_cut |= tile.first + tile.count - 1 > begin - tile.block.query;
        } else if (tile.block.visible == Visible::kFromOwn) {
          if (begin - tile.block.query >= tile.first + tile.count) continue;
          is_cut |= tile.first < end - 1 - tile.block.query;
        }
        body(Panel{group * tile_ + first, query, queries,
                   static_cast<int>((queries + kWidth<T> - 1) / kWidth<T>), is_cut});
      }
    }
  }

  /// products [keys, kColumns] = rows [keys, size] times the panel's columns of `transposed`.
  void multiply(const KeyTile& tile, const Panel& panel, const T* rows, const T* transposed,
                T* products) const {
    call_with<kTileVectors>(panel.vectors, [&](auto vectors) {
      for_each_row_tile(tile.count, [&](int64_t key, auto count) {
        product_rows<false, T, decltype(count)::value, decltype(vectors)::value>(
            size_, rows + key * size_, size_, 1, transposed + panel.column * size_, kColumns,
            products + key * kColumns, kColumns);
      });
    });
  }

  /// Puts `hidden` where a query does not see a key.
  void hide(const KeyTile& tile, const Panel& panel, T* scores, T hidden) const {
    const auto within = [&](int64_t query) {
      return at_least(0, at_most(query - panel.query, panel.queries));
    };
    for (int64_t i = 0; i < tile.count; ++i) {
      const int64_t own = tile.block.query + tile.first + i;  // the query whose own key this is
      int64_t first = within(tile.query), end = within(tile.query_end);
      if (tile.block.visible == Visible::kCausal) first = at_least(first, within(own));
      if (tile.block.visible == Visible::kFromOwn) end = at_most(end, within(own + 1));
      T* const row = scores + i * kColumns;
      for (int64_t q = 0; q < first; ++q) row[q] = hidden;
      for (int64_t q = end; q < panel.queries; ++q) row[q] = hidden;
    }
  }

  /// One step of the online softmax: scores become powers relative to the new maxima, and what has been
  /// summed so far is scaled to those.
  template <int kVectors>
  void online_softmax_step(const KeyTile& tile, const Panel& panel) {
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

  void backward(int64_t query) {
    set_queries(query);
    for (int64_t group = 0; group < run_.groups; ++group) {
      const int64_t head = (key_head_ * run_.groups + group) * size_;
      transpose(run_.d_output, run_.d_output_row, group, T{1}, transposed_d_);
      gather(run_.q + query * run_.q_row + head, run_.q_row, queries_, q_ + group * tile_ * size_);
      gather(run_.d_output + query * run_.d_output_row + head, run_.d_output_row, queries_,
             d_ + group * tile_ * size_);
    }
    fill(largest_, columns_, T{0});
    fill(delta_, columns_, T{0});
    for_each_row([&](int64_t column, int64_t row) {
      largest_[column] = run_.log_sum_exp[row] * static_cast<T>(kLog2OfE);
      delta_[column] = dot(d_ + column * size_, run_.output + row * size_);
    });
    for_each_key_tile([&](const KeyTile& tile) {
      const bool wants_keys = from_->d_keys != nullptr;
      if (wants_keys) {
        fill(d_keys_, tile.count * size_, T{0});
        fill(d_values_, tile.count * size_, T{0});
      }
      for_each_panel(tile, [&](const Panel& panel) {
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
        add_rows(d_keys_, tile, from_->d_keys);
        add_rows(d_values_, tile, from_->d_values);
      }
    });
    for_each_row([&](int64_t column, int64_t row) {
      store_row(rows_ + column * size_, T{1}, run_.d_q + row * size_);
    });
  }

  void add_rows(const T* rows, const KeyTile& tile, T* to) const {
    to += (tile.first * run_.key_heads + key_head_) * size_;
    for (int64_t i = 0; i < tile.count; ++i, to += run_.key_heads * size_)
      for (int64_t e = 0; e < size_; e += kWidth<T>) store(to + e, load(to + e) + load(rows + i * size_ + e));
  }

  void store_row(const T* row, T factor, S* to) const {
    for (int64_t e = 0; e < size_; e += kWidth<T>) narrow(to + e, load(row + e) * factor);
  }

  T dot(const T* a, const S* b) const {
    Vector<T> sum = {};
    for (int64_t e = 0; e < size_; e += kWidth<T>) sum += load(a + e) * widen(b + e);
    return sum_of<T>(sum);
  }

  /// Scores become probabilities; their gradients become those of the products of queries and keys.
  template <int kVectors>
  void differentiate(const KeyTile& tile, const Panel& panel) const {
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
  int64_t tile_;  // queries of a tile, of each query head
  int64_t query_ = 0, queries_ = 0, columns_ = 0;
  const KeyBlock<S>* from_ = nullptr;
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
void backward(const AttentionRun<S>& run, int64_t key_head, Wide<S>* workspace) {
  HeadPass<S>(run, key_head, workspace).backward();
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
