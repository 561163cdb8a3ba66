// The LM head of some rows with one target each, on the CPU: logits, log-softmax and the gradients of both,
// by tiles of the vocabulary.
//
// The logits lie transposed, vocabulary as rows: a row's softmax is then a column's, so that maxima and sums
// run along registers, and neither the weight nor its gradient is ever rearranged. What is stored is not the
// logits but e^(logit - m), m the largest of the row's logits in the tile: the backward pass makes their
// gradients with one multiplication each, and hands a tile to both products while it is in the cache.
#pragma once

#include <cstdint>

namespace streambp::cpu {

/// Numbers of a hidden state come in multiples of this.
inline constexpr int64_t kHeadInputStep = 16;

template <typename T>
struct HeadOperands {
  int64_t rows = 0;
  int64_t size = 0;  // of a hidden state, a multiple of kHeadInputStep
  int64_t vocabulary = 0;
  const T* x = nullptr;              // [rows, size]
  const T* weight = nullptr;         // [vocabulary, size]
  double scale = 1.0;                // of the logits: one over the temperature
  const int64_t* targets = nullptr;  // [rows]
  T* columns = nullptr;              // [copy_size]: x transposed
  T* panels = nullptr;               // [copy_size]: x by panels
  T* exponentials = nullptr;         // [vocabulary, column_count]; in the end the logits' gradients; null:
                                     // they are not kept, and no backward pass over the tiles follows
  T* sums = nullptr;                 // [tiles, 2, column_count]: the largest logit so far, unscaled, and
                                     // the sum of a tile's exponentials relative to it; without the target's
  /// [rows, 3]: the largest logit of all words but the target, the logarithm of the sum over them relative to
  /// it, and the probability that they have together, 1 - p of the target.
  double* log_sums = nullptr;
  T* d_weight = nullptr;  // [vocabulary, size], added to; null: the weight is frozen
};

/// What some tiles, taken one after another, leave for the gradient of x.
template <typename T>
struct HeadShare {
  T* largest = nullptr;  // [column_count]: of the logits, unscaled
  /// [rows, size]: weights times exponentials relative to the largest, without the target's; null: not
  /// wanted.
  T* sum = nullptr;
};

template <typename T>
struct TargetHeadKernels {
  /// Vocabulary entries of a tile.
  int64_t tile = 0;
  /// `rows`, rounded up to whole registers, and a little more, so that columns don't fall on each other in
  /// the cache.
  int64_t (*column_count)(int64_t rows) = nullptr;
  /// Numbers of a copy of x.
  int64_t (*copy_size)(int64_t rows, int64_t size) = nullptr;
  /// Numbers of workspace that a thread needs for `forward` or `backward`.
  int64_t (*workspace)(int64_t rows, int64_t size) = nullptr;
  /// Fills op.columns and, for a backward pass that trains the weight, op.panels (null: not wanted).
  void (*copy)(const HeadOperands<T>& op) = nullptr;
  /// Tiles [begin, end): exponentials (0 for targets), sums and `share`; the logits of the targets among
  /// them, unscaled, go into target_logits [rows].
  void (*forward)(const HeadOperands<T>& op, const HeadShare<T>& share, double* target_logits, T* workspace,
                  int64_t begin, int64_t end) = nullptr;
  /// op.log_sums of rows [begin, end), when all tiles are there; turns the targets' logits [rows] into their
  /// log-probabilities.
  void (*sum_up)(const HeadOperands<T>& op, double* target_logits, int64_t begin, int64_t end) = nullptr;
  /// Adds to the rows of d_weight of tiles [begin, end), for the gradients d_target [rows] of the targets'
  /// log-probabilities. Uses the exponentials up.
  void (*add_to_weight)(const HeadOperands<T>& op, const double* d_target, T* workspace, int64_t begin,
                        int64_t end) = nullptr;
  /// Rows [begin, end) of the gradient of x, d_x [rows, size], from the shares of all tiles.
  void (*gather)(const HeadOperands<T>& op, const double* d_target, const HeadShare<T>* shares,
                 int64_t share_count, T* d_x, int64_t begin, int64_t end) = nullptr;
};

}  // namespace streambp::cpu
