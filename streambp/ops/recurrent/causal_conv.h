// A causal convolution of each channel with a kernel of its own, then SiLU or not: what queries, keys and
// values of recurrent layers pass through.
#pragma once

#include <vector>

#include <ATen/ATen.h>

#include "streambp/ops/parameter.h"

namespace streambp {

/// What the first rows' sequence has had before them.
struct TailBefore {
  at::Tensor tail;      // [K - 1, channels], the last inputs, oldest first; undefined: zeros
  at::Tensor gradient;  // of the same shape: what reaches the tail is added here; undefined: it is dropped
};

struct ConvOutput {
  at::Tensor hidden;  // [n, channels]
  at::Tensor tail;    // [K - 1, channels], the last sequence's last inputs, zeros where it has fewer; part of
                      // the graph
};

/// silu(y) of y_t = sum_j weight_j x_(t - K + 1 + j) + bias for x [n, channels], a weight [channels, 1, K]
/// and a bias [channels] or none of the same dtype, summed in float32, or float64 for float64. offsets (0
/// first, n last) cut the rows into sequences: the first continues `before`, the others begin after zeros.
/// Adds the parameters' gradients. Throws InputError for shapes, dtypes or offsets that don't fit. The
/// parameters must outlive the graph.
ConvOutput causal_conv_silu(const at::Tensor& x, Parameter& weight, const std::vector<int64_t>& offsets,
                            const TailBefore& before, Parameter* bias = nullptr);

/// The same with taps that are `dilation` rows apart, y_t = sum_j weight_j x_(t - (K - 1 - j) dilation):
/// tails have (K - 1) dilation rows. Op by op in ATen.
ConvOutput dilated_conv_silu(const at::Tensor& x, Parameter& weight, const std::vector<int64_t>& offsets,
                             const TailBefore& before, int64_t dilation);

/// The sums alone, without SiLU.
ConvOutput causal_conv(const at::Tensor& x, Parameter& weight, const std::vector<int64_t>& offsets,
                       const TailBefore& before, Parameter* bias = nullptr);

/// The value alone, without a graph.
ConvOutput causal_conv_silu_forward(const at::Tensor& x, const Parameter& weight,
                                    const std::vector<int64_t>& offsets, const at::Tensor& tail_before);

}  // namespace streambp
