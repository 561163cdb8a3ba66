// A causal convolution of each channel, then SiLU or not: see ops/causal_conv.h.
#pragma once

#include <cstdint>

#include "streambp/ops/cpu/number.h"

namespace streambp::cpu {

/// The longest kernel that these take.
inline constexpr int64_t kMostTaps = 8;

/// Rows of all sequences, [n, channels] without gaps.
template <typename S>
struct CausalConv {
  int64_t channels = 0;
  int64_t taps = 0;
  const int64_t* offsets = nullptr;  // [sequences + 1]
  int64_t sequences = 0;
  const S* x = nullptr;
  const Wide<S>* weight = nullptr;  // [taps, channels]
  const Wide<S>* bias = nullptr;    // [channels]; null: none
  const S* before = nullptr;        // [taps - 1, channels], of the first sequence; null: zeros
  bool silu = true;
  S* hidden = nullptr;
  S* tail = nullptr;  // [taps - 1, channels]
  // Of the backward pass.
  const S* d_hidden = nullptr;  // null: zeros
  const S* d_tail = nullptr;    // null: zeros
  S* d_x = nullptr;
  double* d_weight = nullptr;  // [taps, channels], is added to; null: not wanted
  double* d_bias = nullptr;    // [channels], likewise
  S* d_before = nullptr;       // is added to; null: not wanted
};

template <typename S>
struct CausalConvKernels {
  /// Of channels [begin, end).
  void (*forward)(const CausalConv<S>& conv, int64_t begin, int64_t end);
  void (*backward)(const CausalConv<S>& conv, int64_t begin, int64_t end);
};

}  // namespace streambp::cpu
