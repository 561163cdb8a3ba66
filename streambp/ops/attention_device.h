// Attention by the kernels that torch brings for GPUs: FlashAttention's and cuDNN's, the faster one of the
// two for each shape by measurement. No mask is ever built.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <ATen/ATen.h>

#include "streambp/ops/attention_kernels.h"

namespace streambp {

/// Keys that a backward pass takes at once beside queries that see all of them: their gradients come out as
/// new tensors, for each query head. As many as queries, where these are more.
inline constexpr int64_t kDeviceTile = 8192;

/// One block of attention: q [n, H, E], k and v [m, K, E].
struct AttentionOperands {
  at::Tensor q, k, v;
  /// The last query sees all keys, the one before it all but the last, and so on.
  bool causal = false;
  /// With causal: a query sees so many keys at most (0: no limit).
  int64_t window = 0;
  double scale = 1.0;

  /// A description of the shape, for humans and as a key: "8192 x 32768, 32/8 heads of 128".
  std::string shape() const;
};

/// A library's kernels, forward and backward.
struct DeviceAttention {
  std::string name;
  /// Whether causal blocks may have fewer queries than keys, and windows. Else they must be squares.
  bool lower_right = false;
  std::function<AttentionBlock(const AttentionOperands& operands)> forward;
  /// `saved` is the whole rows' output, and their log-sum-exps as [H, n], contiguous.
  std::function<AttentionBlockGradients(const AttentionOperands& operands, const at::Tensor& d_output,
                                        const AttentionBlock& saved)>
      backward;
};

/// Whether these kernels serve queries like q [n, H, E]: on a GPU (or the meta device that stands for one),
/// half precision, heads of a multiple of 8 up to 256, no cap on the scores. Others get attend_tiled.
bool has_device_attention(const at::Tensor& q, const Scoring& scoring);

/// The block's output [n, H, E] and log-sum-exps [n, H].
AttentionBlock device_attend(const AttentionOperands& operands);

/// The gradients, in the operands' dtype, for d_output [n, H, E] and the rows' merged result.
AttentionBlockGradients device_attend_backward(const AttentionOperands& operands, const at::Tensor& d_output,
                                               const AttentionBlock& saved);

/// What has been chosen so far: for each kind of work and shape, "flash 1.23 ms, cudnn 0.81 ms: cudnn".
/// Sorted; empty where there was nothing to choose.
std::vector<std::string> attention_choices();

/// While it lives, `kernels` serve all tensors on the CPU, whatever their dtype, and choices are begun anew:
/// for tests of what is made of them. The first takes causal blocks of any shape.
class ServeAttention {
 public:
  explicit ServeAttention(std::vector<DeviceAttention> kernels);
  ~ServeAttention();
  ServeAttention(const ServeAttention&) = delete;
  ServeAttention& operator=(const ServeAttention&) = delete;
};

}  // namespace streambp
