// Our CPU kernels for the elementwise parts of a layer and of the head: what each does, on raw pointers and a
// range of rows. Each reads and writes its rows once; the ops share the rows out among threads.
//
// S is the dtype in memory, Wide<S> that of the arithmetic. Where S is narrower, results are rounded at the
// points where the same formula written op by op in ATen would round them.
#pragma once

#include <cstdint>

#include "streambp/ops/cpu/number.h"
#include "streambp/ops/mlp/activation.h"

namespace streambp::cpu {

/// Rows in memory, by token and head: head h of token t starts at data + t * token_stride + h * head_stride,
/// its numbers side by side.
template <typename S>
struct Heads {
  S* data;
  int64_t token_stride;
  int64_t head_stride;
};

/// A root-mean-square norm of each head (weight null: none), then a rotation of its first 2 * half numbers
/// (cosine null: none). See rms_norm.h and rope.h for the formulas.
template <typename S>
struct NormRope {
  int64_t heads = 1;          // of a token; they share the token's angles
  int64_t size = 0;           // of a head
  const S* weight = nullptr;  // [size]
  bool adds_one = false;
  double eps = 0;
  Wide<S>* rstd = nullptr;    // [tokens, heads]: forward writes it, backward reads it
  const S* cosine = nullptr;  // [tokens, half]
  const S* sine = nullptr;
  int64_t half = 0;
  int64_t table_stride = 0;  // from one token's angles to the next one's
};

/// Sums over rows for a norm's weight, of one thread. `recent` [size] holds a few rows' sum and is zero
/// between calls: short sums in Wide<S> are added to `total` [size], so that the error does not grow with the
/// number of rows.
template <typename S>
struct WeightSums {
  Wide<S>* recent = nullptr;  // null: the weight is frozen
  double* total = nullptr;
};

template <typename S>
struct NormRopeKernels {
  /// y [tokens, heads, size] from x, with `residual` (null: none; laid out as y) added. y may be x where x is
  /// laid out like it and has no norm.
  void (*forward)(const NormRope<S>& op, Heads<const S> x, const S* residual, S* y, int64_t begin,
                  int64_t end);
  /// dx [tokens, heads, size] from dy and, with a norm, x and rstd; adds to the sums for the weight.
  void (*backward)(const NormRope<S>& op, Heads<const S> x, Heads<const S> dy, S* dx, WeightSums<S> sums,
                   int64_t begin, int64_t end);
};

/// The backward pass of act(gate) * up, all in place: rows of `size` numbers.
template <typename S>
struct GateBackward {
  Activation activation = Activation::kSilu;
  int64_t size = 0;
  S* gate = nullptr;       // becomes its gradient
  S* up = nullptr;         // becomes its gradient
  S* d_product = nullptr;  // the gradient of the product; becomes the product itself where `wants_product`
  bool wants_product = false;
  /// Where the product's rows are multiplied by weights later (null: they are not), d_product is the gradient
  /// of what comes out then, and the weights' own gradients go into d_row_weights.
  const S* row_weights = nullptr;
  S* d_row_weights = nullptr;
};

template <typename S>
struct GateKernels {
  /// product = act(gate) * up for numbers [begin, end). `product` may be one of the two.
  void (*product)(Activation activation, const S* gate, const S* up, S* product, int64_t begin, int64_t end);
  void (*backward)(const GateBackward<S>& op, int64_t begin, int64_t end);
};

/// Rows of logits [rows, size], multiplied by `scale` (one over the temperature) before the softmax.
template <typename S>
struct TargetSoftmax {
  S* logits = nullptr;
  int64_t size = 0;
  double scale = 1;
  const int64_t* targets = nullptr;  // [rows]
  /// [rows, 2]: the largest logit m of a row's others, and log(sum(exp((x - m) * scale))) over them. The
  /// target is left out: where it leads, the others' sum has all its digits, and so has its 1 - p
  /// (Arithmetic: log-odds z of the target, log p = -log1p(exp(-z)), 1 - p = 1 / (1 + exp(z))). The two are
  /// apart, as their sum would lose digits of the second where logits are large.
  double* sums = nullptr;
};

template <typename S>
struct SoftmaxKernels {
  /// Writes the sums and the targets' log-probabilities [rows]. Reads the logits once.
  void (*forward)(const TargetSoftmax<S>& op, double* log_probabilities, int64_t begin, int64_t end);
  /// Turns the logits into the gradient d_target * (onehot - p) * scale, d_target [rows].
  void (*backward)(const TargetSoftmax<S>& op, const double* d_target, int64_t begin, int64_t end);
};

/// What a float32 product is rounded to before anything else is made of it.
enum class Rounding { kNone, kBfloat16, kHalf };

/// Numbers in 4 or 8 bits, in blocks with a maximum each: code times maximum in float32, of 8 bits times
/// 1 / 127, and rounded.
struct PackedNumbers {
  int bits = 4;
  const uint8_t* bytes =
      nullptr;           // 4 bits: two codes a byte, the first high; 8: the numbers themselves, signed
  float codes[16] = {};  // of 4 bits
  const float* maxima = nullptr;  // [blocks]
  int64_t block_size = 0;         // numbers of a block, of 4 bits an even one; the last block may be shorter
  int64_t count = 0;
  Rounding rounding = Rounding::kNone;
};
/// 1 / 127 as bitsandbytes spells it.
inline constexpr float kPer127 = static_cast<float>(7.874015718698502e-3);

template <typename S>
struct DequantizeKernels {
  /// Writes all of them to `to`.
  void (*numbers)(const PackedNumbers& from, S* to);
};

/// All of them for one dtype.
template <typename S>
struct ElementwiseKernels {
  NormRopeKernels<S> norm_rope;
  GateKernels<S> gate;
  SoftmaxKernels<S> softmax;
  DequantizeKernels<S> dequantize;
};

/// Of<S> for each dtype S that there are kernels for.
template <template <typename> class Of>
struct ForDtypes {
  Of<float> of_float;
  Of<double> of_double;
  Of<Bfloat16> of_bfloat16;

  template <typename S>
  const Of<S>& of() const {
    if constexpr (std::is_same_v<S, float>) {
      return of_float;
    } else if constexpr (std::is_same_v<S, double>) {
      return of_double;
    } else {
      return of_bfloat16;
    }
  }
};

}  // namespace streambp::cpu
