// A root-mean-square norm times silu (or the logistic function) of a gate, or of what is gated: see
// ops/recurrent/gated_norm.h.
#pragma once

#include <cstdint>

#include "streambp/ops/cpu/elementwise.h"

namespace streambp::cpu {

/// Rows of `size` numbers without gaps.
template <typename S>
struct GatedNorm {
  int64_t size = 0;
  int64_t groups = 1;  // rows with a weight of their own each, which take turns
  bool of_gated = false;
  bool logistic = false;  // the gate is no silu, but the logistic function
  double eps = 0;
  const S* weight = nullptr;  // [groups, size]
  const S* x = nullptr;
  const S* z = nullptr;
  S* y = nullptr;
  // Of the backward pass.
  const S* dy = nullptr;
  S* dx = nullptr;
  S* dz = nullptr;
};

template <typename S>
struct GatedNormKernels {
  void (*forward)(const GatedNorm<S>& op, int64_t begin, int64_t end);
  /// Adds to the sums for the weight; `begin` is a multiple of groups.
  void (*backward)(const GatedNorm<S>& op, WeightSums<S> sums, int64_t begin, int64_t end);
};

}  // namespace streambp::cpu
