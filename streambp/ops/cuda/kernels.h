// Our own CUDA kernels for the elementwise parts of a layer and of the head, as a table of functions on raw
// pointers: no header of CUDA or torch is needed to call them, and nothing of CUDA is linked by who does.
//
// They read and write what the CPU's kernels of the same names do (ops/cpu/elementwise.h), rounded at the
// same points. A call puts work into a queue and returns; it gives null, or what CUDA says of a launch that
// failed. Every sum is taken in one order: equal calls give equal bits.
#pragma once

#include <cstdint>

#include "streambp/ops/cpu/elementwise.h"

namespace streambp::cuda {

using cpu::Bfloat16;
using cpu::GateBackward;
using cpu::Heads;
using cpu::NormRope;
using cpu::PackedNumbers;
using cpu::Rounding;
using cpu::TargetSoftmax;
using cpu::Wide;

/// Where work goes: a device's number, and its cudaStream_t.
struct Queue {
  int device = 0;
  void* stream = nullptr;
};

/// Null, or why a launch failed.
using Failure = const char*;

template <typename S>
struct NormRopeLaunches {
  Failure (*forward)(const Queue& queue, const NormRope<S>& op, Heads<const S> x, const S* residual, S* y,
                     int64_t tokens);
  /// `sums` [parts, size] receives the terms of the weight's gradient, to be added up; null: it is frozen.
  Failure (*backward)(const Queue& queue, const NormRope<S>& op, Heads<const S> x, Heads<const S> dy, S* dx,
                      Wide<S>* sums, int64_t parts, int64_t tokens);
};

template <typename S>
struct GateLaunches {
  Failure (*product)(const Queue& queue, Activation activation, const S* gate, const S* up, S* product,
                     int64_t count);
  Failure (*backward)(const Queue& queue, const GateBackward<S>& op, int64_t rows);
};

template <typename S>
struct SoftmaxLaunches {
  Failure (*forward)(const Queue& queue, const TargetSoftmax<S>& op, double* log_probabilities, int64_t rows);
  Failure (*backward)(const Queue& queue, const TargetSoftmax<S>& op, const double* d_target, int64_t rows);
};

/// What rows have seen of their keys so far, or of a block of them: outputs, and log-sum-exps by token and
/// head.
template <typename S, typename W>
struct Attended {
  Heads<S> output;
  W* log_sum_exp;
  int64_t token_stride;
  int64_t head_stride;
};

template <typename S>
struct MergeLaunches {
  /// Makes `all` the result of rows that have seen `block` as well.
  Failure (*merge)(const Queue& queue, Attended<S, Wide<S>> all, Attended<const S, const Wide<S>> block,
                   int64_t tokens, int64_t heads, int64_t size);
  /// The same where the one or the other lies wide: a result of many blocks is rounded once.
  Failure (*merge_into_wide)(const Queue& queue, Attended<Wide<S>, Wide<S>> all,
                             Attended<const S, const Wide<S>> block, int64_t tokens, int64_t heads,
                             int64_t size);
  Failure (*merge_wide)(const Queue& queue, Attended<S, Wide<S>> all,
                        Attended<const Wide<S>, const Wide<S>> block, int64_t tokens, int64_t heads,
                        int64_t size);
};

/// Rows of `from` [count, size] to be added to those of `to`: the i-th of `indices`, which are sorted,
/// receives row order[i], or row i without an order.
template <typename S, typename G>
struct RowSums {
  const int64_t* indices = nullptr;
  const int64_t* order = nullptr;
  int64_t count = 0;
  const S* from = nullptr;
  int64_t from_stride = 0;
  G* to = nullptr;
  int64_t to_stride = 0;
  int64_t size = 0;
};

template <typename S>
struct RowSumLaunches {
  /// Rows of the same index are summed in Wide<S> and rounded once.
  Failure (*add)(const Queue& queue, const RowSums<S, S>& op);
  Failure (*add_to_wide)(const Queue& queue, const RowSums<S, Wide<S>>& op);
};

/// Maxima in 8 bits, code[codes[i]] times the maximum of their block, plus `offset`. Without codes: there are
/// none.
struct NestedMaxima {
  const uint8_t* codes = nullptr;  // [blocks of numbers]
  const float* code = nullptr;     // [256]
  const float* maxima = nullptr;   // [blocks of maxima]
  int64_t block_size = 0;          // maxima of a block
  float offset = 0;
};

template <typename S>
struct DequantizeLaunches {
  /// `nested` stands for from.maxima where it has codes.
  Failure (*numbers)(const Queue& queue, const PackedNumbers& from, const NestedMaxima& nested, S* to);
};

/// All of them for numbers stored as S.
template <typename S>
struct KernelTableOf {
  NormRopeLaunches<S> norm_rope;
  GateLaunches<S> gate;
  SoftmaxLaunches<S> softmax;
  MergeLaunches<S> attention;
  RowSumLaunches<S> rows;
  DequantizeLaunches<S> dequantize;
};

using KernelTable = cpu::ForDtypes<KernelTableOf>;

}  // namespace streambp::cuda
