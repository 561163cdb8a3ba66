// Causal attention of a run of tokens on the CPU, forward and backward, over any set of score blocks in one
// call.
//
// The scores of a tile are kept transposed, keys as rows and queries as columns: a row's softmax is then a
// column's, so that maxima and sums run along registers and never across one, and neither keys nor values are
// ever rearranged. Only the queries (and the gradient of the output) of a tile are, once for all keys that
// they see. (The forward pass is FlashAttention's online softmax, Dao et al., 2022, arXiv 2205.14135; the
// backward pass takes the probabilities from the log-sum-exps.)
#pragma once

#include <cstdint>

#include "streambp/ops/attention/attention_blocks.h"
#include "streambp/ops/cpu/number.h"

namespace streambp::cpu {

/// Keys and values that some of a run's queries see. Heads lie next to each other, rows `..._row` numbers
/// apart.
template <typename S>
struct KeyBlock {
  ScoreBlock block;
  const S* keys = nullptr;  // of the block's first key, first head
  int64_t key_row = 0;
  const S* values = nullptr;
  int64_t value_row = 0;
  Wide<S>* d_keys = nullptr;  // [keys, K, E], contiguous, added to; null: nobody wants them
  Wide<S>* d_values = nullptr;
};

/// Queries of one sequence and everything that they see. Numbers are stored as S and computed with as
/// Wide<S>.
template <typename S>
struct AttentionRun {
  int64_t queries = 0;
  int64_t key_heads = 1;
  int64_t groups = 1;     // query heads of a key head
  int64_t head_size = 0;  // a multiple of kHeadSizeStep
  double scale = 1.0;
  const S* q = nullptr;  // rows q_row apart
  int64_t q_row = 0;
  const KeyBlock<S>* blocks = nullptr;
  int64_t block_count = 0;
  S* output = nullptr;             // [queries, H, E], contiguous; read by the backward pass
  S* remainder = nullptr;          // the same of AttentionBlock::remainder; null: there is none
  Wide<S>* log_sum_exp = nullptr;  // [queries, H], contiguous; read by the backward pass
  const S* d_output = nullptr;     // rows d_output_row apart
  int64_t d_output_row = 0;
  S* d_q = nullptr;  // [queries, H, E], contiguous
};

/// Whose turn it is to add to the gradients of keys and values. A tile of queries adds to those of the keys
/// that it sees, from the first key on, and to each after the next tile of queries has: whichever threads run
/// the tiles, the sums are taken in one order, from the last query to the first.
struct KeyTurn {
  int64_t* done = nullptr;        // nothing more comes from this tile for keys before this one
  const int64_t* next = nullptr;  // the same of the next tile of queries; null: this is the last one
  void (*wait)(const int64_t* next, int64_t key) = nullptr;  // returns once *next >= key
};

/// Heads of another size are not served.
inline constexpr int64_t kHeadSizeStep = 16;

template <typename S>
struct AttentionKernels {
  /// Queries of one call.
  int64_t (*query_tile)(int64_t groups) = nullptr;
  /// Numbers of workspace that a thread needs for `forward` or `backward`.
  int64_t (*workspace)(int64_t head_size, int64_t groups) = nullptr;
  /// Output and log-sum-exps of queries [query, query + query_tile) of the heads of one key head.
  void (*forward)(const AttentionRun<S>& run, int64_t key_head, int64_t query, Wide<S>* workspace) = nullptr;
  /// The gradients of the same queries, and what they add to those of the keys and values that they see.
  /// Blocks are sorted by their first key.
  void (*backward)(const AttentionRun<S>& run, int64_t key_head, int64_t query, const KeyTurn& turn,
                   Wide<S>* workspace) = nullptr;
};

}  // namespace streambp::cpu
