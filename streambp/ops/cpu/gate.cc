// act(gate) * up of a gated MLP. Both activations are x s(z), s the logistic function: z = x for SiLU, and
// z = 2 sqrt(2 / pi) (x + 0.044715 x^3) for GELU, as (1 + tanh(z / 2)) / 2 = s(z).
#include "streambp/ops/cpu/elementwise.h"
#include "streambp/ops/cpu/row_loops.h"

namespace streambp::cpu::STREAMBP_ISA {
namespace {

template <typename W>
struct Activated {
  Vector<W> value;
  Vector<W> slope;
};

template <Activation kActivation, typename W>
inline Activated<W> activate(Vector<W> x) {
  constexpr W kLinear = static_cast<W>(1.59576912160573071);  // 2 sqrt(2 / pi)
  constexpr W kCubic = static_cast<W>(1.59576912160573071 * 0.044715);
  const bool gelu = kActivation == Activation::kGeluTanh;
  const Vector<W> z = gelu ? x * (x * x * kCubic + kLinear) : x;
  // The exponential of what is not positive: nothing overflows, and s and 1 - s keep their digits on both
  // sides.
  const Vector<W> e = exp_of<W>(z < W{0} ? z : -z);
  const Vector<W> larger = W{1} / (e + W{1}), smaller = e * larger;
  const Vector<W> s = z < W{0} ? smaller : larger;
  const Vector<W> bend = x * (smaller * larger);
  return {x * s, s + (gelu ? bend * (x * x * (3 * kCubic) + kLinear) : bend)};
}

template <typename S, Activation kActivation>
void product_of(const S* gate, const S* up, S* product, int64_t size) {
  using W = Wide<S>;
  over<W>(size, [&](auto at) {
    const Vector<W> activation = activate<kActivation, W>(at.load(gate)).value;
    at.store(product, rounded<S>(activation) * at.load(up));
  });
}

template <typename S>
void product(Activation activation, const S* gate, const S* up, S* product, int64_t begin, int64_t end) {
  const auto of = activation == Activation::kSilu ? product_of<S, Activation::kSilu>
                                                  : product_of<S, Activation::kGeluTanh>;
  of(gate + begin, up + begin, product + begin, end - begin);
}

/// One row. Returns the gradient of the row's weight.
template <typename S, Activation kActivation, bool kWeighted>
Wide<S> row_backward(const GateBackward<S>& op, S* gate, S* up, S* d_product, Wide<S> weight) {
  using W = Wide<S>;
  Vector<W> d_weight = {};
  over<W>(op.size, [&](auto at) {
    const Activated<W> gated = activate<kActivation, W>(at.load(gate));
    const Vector<W> activation = rounded<S>(gated.value), up_proj = at.load(up);
    Vector<W> d = at.load(d_product);
    if (kWeighted) {
      d_weight += rounded<S>(rounded<S>(activation * up_proj) * d);
      d = rounded<S>(d * weight);
    }
    at.store(gate, rounded<S>(up_proj * d) * gated.slope);
    at.store(up, d * activation);
    if (op.wants_product) at.store(d_product, activation * up_proj);
  });
  return sum_of<W>(d_weight);
}

template <typename S, Activation kActivation>
void rows_backward(const GateBackward<S>& op, int64_t begin, int64_t end) {
  using W = Wide<S>;
  for (int64_t row = begin; row < end; ++row) {
    const int64_t start = row * op.size;
    S *const gate = op.gate + start, *const up = op.up + start, *const d = op.d_product + start;
    if (op.row_weights == nullptr) {
      row_backward<S, kActivation, false>(op, gate, up, d, W{1});
    } else {
      const TailVector at{row, 1};
      const W weight = at.load(op.row_weights)[0];
      const W d_weight = row_backward<S, kActivation, true>(op, gate, up, d, weight);
      at.store(op.d_row_weights, broadcast<W>(d_weight));
    }
  }
}

template <typename S>
void backward(const GateBackward<S>& op, int64_t begin, int64_t end) {
  const auto rows = op.activation == Activation::kSilu ? rows_backward<S, Activation::kSilu>
                                                       : rows_backward<S, Activation::kGeluTanh>;
  rows(op, begin, end);
}

}  // namespace

template <typename S>
GateKernels<S> gate_kernels() {
  return {product<S>, backward<S>};
}
template GateKernels<float> gate_kernels();
template GateKernels<double> gate_kernels();
template GateKernels<Bfloat16> gate_kernels();

}  // namespace streambp::cpu::STREAMBP_ISA
