// Attention by the GPU kernels of torch: FlashAttention's and cuDNN's, the faster one of the
// two for each shape by measurement. No mask is ever built.
//
// A chunk's rows take their prefix and themselves in calls of their own, though FlashAttention could take
// both in one (its causal blocks are lower-right) where the chunk's keys follow the prefix's. Forward
// that would save one merge: three trips of the output through memory, by arithmetic under a fiftieth of the
// calls' time from a prefix of 8,192 keys on. Backward it would hold the gradients of the whole prefix for
// each query head, 2.3 GB after 140,000 keys of 32 heads of 128, where tiles hold 0.13 GB. And cuDNN's
// kernels, the faster ones on Hopper, know squares and rectangles alone.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <ATen/ATen.h>

#include "streambp/ops/attention/attention_kernels.h"

namespace streambp {

/// The least keys that a backward pass takes at once with queries that see all of them.
inline constexpr int64_t kDeviceTile = 8192;

/// Keys that a backward pass takes at once with so many queries, all of which see all of them: twice as many,
/// kDeviceTile at least. The keys' gradients come out as new tensors, for each query head, which bounds them;
/// the queries' are added up once for each tile, by arithmetic 5 % of its time at 8,192 keys and under 3 % at
/// 16,384.
int64_t device_tile(int64_t queries);

/// One block of attention: q [n, H, E], k and v [m, K, E].
struct AttentionOperands {
  at::Tensor q, k, v;
  /// The last query sees all keys, the one before it all but the last, and so on.
  bool causal = false;
  /// With causal: a query sees so many keys at most (0: no limit).
  int64_t window = 0;
  double scale = 1.0;
  /// With causal, of as many queries as keys: where sequences begin and the last one ends, each of which sees
  /// itself alone. Empty: there is one.
  std::vector<int64_t> offsets = {};

  /// Whether queries are the keys' own and see all that a causal block shows them: what every library knows.
  bool is_square() const { return causal && window == 0 && offsets.empty() && q.size(0) == k.size(0); }

  /// The rows of the longest of several sequences.
  int64_t longest() const;

  /// A description of the shape, for humans and as a key: "8192 x 32768, 32/8 heads of 128".
  std::string shape() const;
};

/// A library's kernels, forward and backward.
struct DeviceAttention {
  std::string name;
  /// Whether causal blocks may have fewer queries than keys, windows, and several sequences. Else they must
  /// be squares.
  bool lower_right = false;
  std::function<AttentionBlock(const AttentionOperands& operands)> forward;
  /// `saved` is the whole rows' output, and their log-sum-exps as [H, n]. These and `d_output` are
  /// contiguous: cuDNN's plans are kept by the shapes and strides of queries, keys and values alone.
  std::function<AttentionBlockGradients(const AttentionOperands& operands, const at::Tensor& d_output,
                                        const AttentionBlock& saved)>
      backward;
  /// Queries from which it serves shapes that nobody has measured yet, in place of the first one; 0: never.
  int64_t leads_from = 0;
};

/// FlashAttention's kernels and cuDNN's, in this order; to be called on CUDA tensors only.
std::vector<DeviceAttention> library_attention();

/// Whether these kernels serve queries like q [n, H, E]: on a GPU that they are built for (or meta for it),
/// half precision, heads of a multiple of 8 up to 256, no cap on the scores. Others get attend_tiled.
bool has_device_attention(const at::Tensor& q, const Scoring& scoring);

/// Tells tiled_attention() that tiles of plain products serve queries like q [n, H, E] on a GPU, and why
/// these kernels don't; elsewhere there is nothing to tell.
void note_tiles(const at::Tensor& q, const Scoring& scoring);

/// What note_tiles() was told, a line for each kind of heads, sorted.
std::vector<std::string> tiled_attention();

/// The block's output [n, H, E] and log-sum-exps [n, H]. An output that was put together of several calls is
/// as wide as the log-sum-exps: it is not rounded yet.
AttentionBlock device_attend(const AttentionOperands& operands);

/// The gradients, in the operands' dtype, for d_output [n, H, E] and the rows' merged result.
AttentionBlockGradients device_attend_backward(const AttentionOperands& operands, const at::Tensor& d_output,
                                               const AttentionBlock& saved);

/// What has been chosen so far: for each kind of work and shape, "flash 1.23 ms, cudnn 0.81 ms: cudnn".
/// Sorted; empty where there was nothing to choose.
std::vector<std::string> attention_choices();

/// Which tensors on a device such kernels serve.
enum class Served {
  kAll,       // whatever their dtype and heads
  kAsOnGpus,  // those that has_device_attention names
};

/// Makes the caller's `kernels` serve tensors on devices of this type, with choices begun anew; none: back to
/// what served before. The first takes causal blocks of any shape.
void set_device_attention(c10::DeviceType device, std::vector<DeviceAttention> kernels,
                          Served served = Served::kAll);

}  // namespace streambp
