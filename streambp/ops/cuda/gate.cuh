// act(gate) * up of a gated MLP and its backward pass in place: ops/cpu/gate.cc for the GPU.
#pragma once

#include "streambp/ops/cuda/numbers.cuh"

namespace streambp::cuda {

template <typename W>
struct Activated {
  W value;
  W slope;
};

/// x s(z), s the logistic function: see ops/cpu/gate.cc.
template <Activation kActivation, typename W>
STREAMBP_DEVICE Activated<W> activate(W x) {
  constexpr W kLinear = static_cast<W>(1.59576912160573071);  // 2 sqrt(2 / pi)
  constexpr W kCubic = static_cast<W>(1.59576912160573071 * 0.044715);
  constexpr bool kGelu = kActivation == Activation::kGeluTanh;
  const W z = kGelu ? x * (x * x * kCubic + kLinear) : x;
  const W e = exp(z < W{0} ? z : -z);
  const W larger = W{1} / (e + W{1}), smaller = e * larger;
  const W s = z < W{0} ? smaller : larger;
  const W bend = x * (smaller * larger);
  return {x * s, s + (kGelu ? bend * (x * x * (3 * kCubic) + kLinear) : bend)};
}

template <typename S, Activation kActivation, int kCount>
STREAMBP_GLOBAL void gate_product(const S* gate, const S* up, S* product, int64_t count) {
  using W = Wide<S>;
  const int64_t step = block_count() * kThreads * kCount;
  for (int64_t i = (block_index() * kThreads + thread_index()) * kCount; i < count; i += step) {
    W gate_proj[kCount], up_proj[kCount];
    load(gate + i, gate_proj);
    load(up + i, up_proj);
    STREAMBP_UNROLL
    for (int k = 0; k < kCount; ++k)
      gate_proj[k] = rounded<S>(activate<kActivation>(gate_proj[k]).value) * up_proj[k];
    store(product + i, gate_proj);
  }
}

/// kCount numbers from `i` on. Returns their share of the gradient of the row's weight.
template <typename S, Activation kActivation, bool kWeighted, int kCount>
STREAMBP_DEVICE Wide<S> gate_backward_at(const GateBackward<S>& op, int64_t i, Wide<S> weight) {
  using W = Wide<S>;
  W gate_proj[kCount], up_proj[kCount], d[kCount], d_weight = 0;
  load(op.gate + i, gate_proj);
  load(op.up + i, up_proj);
  load(op.d_product + i, d);
  W product[kCount];
  STREAMBP_UNROLL
  for (int k = 0; k < kCount; ++k) {
    const Activated<W> activated = activate<kActivation>(gate_proj[k]);
    const W activation = rounded<S>(activated.value);
    product[k] = activation * up_proj[k];
    if (kWeighted) {
      d_weight += rounded<S>(rounded<S>(product[k]) * d[k]);
      d[k] = rounded<S>(d[k] * weight);
    }
    gate_proj[k] = rounded<S>(up_proj[k] * d[k]) * activated.slope;
    up_proj[k] = d[k] * activation;
  }
  store(op.gate + i, gate_proj);
  store(op.up + i, up_proj);
  if (op.wants_product) store(op.d_product + i, product);
  return d_weight;
}

template <typename S, Activation kActivation, int kCount>
STREAMBP_GLOBAL void gate_backward(GateBackward<S> op, int64_t count) {
  const int64_t step = block_count() * kThreads * kCount;
  for (int64_t i = (block_index() * kThreads + thread_index()) * kCount; i < count; i += step)
    gate_backward_at<S, kActivation, false, kCount>(op, i, Wide<S>{1});
}

/// A block for each row.
template <typename S, Activation kActivation, int kCount>
STREAMBP_GLOBAL void weighted_gate_backward(GateBackward<S> op, int64_t rows) {
  using W = Wide<S>;
  const Team<kThreads> team;
  for (int64_t row = block_index(); row < rows; row += block_count()) {
    const W weight = widen(op.row_weights[row]);
    W d_weight = 0;
    for (int64_t i = team.rank * kCount; i < op.size; i += kThreads * kCount)
      d_weight += gate_backward_at<S, kActivation, true, kCount>(op, row * op.size + i, weight);
    d_weight = team.sum(d_weight, shared_memory<W>());
    if (team.rank == 0) op.d_row_weights[row] = narrow<S>(d_weight);
  }
}

template <typename S, Activation kActivation, int kCount>
Failure launch_gate_backward(const Queue& queue, const GateBackward<S>& op, int64_t rows) {
  const int64_t count = rows * op.size;
  if (op.row_weights == nullptr) {
    return launch(queue, gate_backward<S, kActivation, kCount>, blocks_for(count, kThreads * kCount),
                  kThreads, 0, op, count);
  }
  return launch(queue, weighted_gate_backward<S, kActivation, kCount>, blocks_for(rows, 1), kThreads,
                Team<kThreads>::kScratch * sizeof(Wide<S>), op, rows);
}

template <typename S>
Failure gated_backward(const Queue& queue, const GateBackward<S>& op, int64_t rows) {
  const bool in_packs = moves_in_packs<S>(op.gate, op.size) && moves_in_packs<S>(op.up, 0) &&
                        moves_in_packs<S>(op.d_product, 0);
  if (op.activation == Activation::kSilu) {
    return in_packs ? launch_gate_backward<S, Activation::kSilu, kPack<S>>(queue, op, rows)
                    : launch_gate_backward<S, Activation::kSilu, 1>(queue, op, rows);
  }
  return in_packs ? launch_gate_backward<S, Activation::kGeluTanh, kPack<S>>(queue, op, rows)
                  : launch_gate_backward<S, Activation::kGeluTanh, 1>(queue, op, rows);
}

template <typename S>
Failure gated_product(const Queue& queue, Activation activation, const S* gate, const S* up, S* product,
                      int64_t count) {
  const bool in_packs =
      moves_in_packs<S>(gate, count) && moves_in_packs<S>(up, 0) && moves_in_packs<S>(product, 0);
  const auto run = [&](auto kernel, int numbers) {
    return launch(queue, kernel, blocks_for(count, kThreads * numbers), kThreads, 0, gate, up, product,
                  count);
  };
  if (activation == Activation::kSilu) {
    return in_packs ? run(gate_product<S, Activation::kSilu, kPack<S>>, kPack<S>)
                    : run(gate_product<S, Activation::kSilu, 1>, 1);
  }
  return in_packs ? run(gate_product<S, Activation::kGeluTanh, kPack<S>>, kPack<S>)
                  : run(gate_product<S, Activation::kGeluTanh, 1>, 1);
}

}  // namespace streambp::cuda
