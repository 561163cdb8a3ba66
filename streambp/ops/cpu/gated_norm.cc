#include "streambp/ops/cpu/gated_norm.h"

#include "streambp/ops/cpu/row_loops.h"
#include "streambp/ops/cpu/silu.h"

namespace streambp::cpu::STREAMBP_ISA {
namespace {

/// After so many rows the sums for the weight are taken from their short form to the long one.
constexpr int64_t kShortSum = 64;

template <typename S>
Wide<S> rstd_of(const GatedNorm<S>& op, const S* x) {
  using W = Wide<S>;
  const W squares = sum_over<W>(op.size, [&](auto at) { return at.load(x) * at.load(x); });
  return 1 / static_cast<W>(__builtin_sqrt(
                 static_cast<double>(squares / static_cast<W>(op.size) + static_cast<W>(op.eps))));
}

template <typename S>
void forward(const GatedNorm<S>& op, int64_t begin, int64_t end) {
  using W = Wide<S>;
  for (int64_t row = begin * op.size; row < end * op.size; row += op.size) {
    const S *const x = op.x + row, *const z = op.z + row;
    const W rstd = rstd_of(op, x);
    over<W>(op.size, [&](auto at) {
      at.store(op.y + row, at.load(x) * rstd * at.load(op.weight) * silu_of<W>(at.load(z)).value);
    });
  }
}

/// With n = x rstd and g = silu(z): y = w n g.
template <typename S>
void backward_row(const GatedNorm<S>& op, int64_t row, Wide<S>* sums) {
  using W = Wide<S>;
  const S *const x = op.x + row, *const z = op.z + row, *const dy = op.dy + row;
  const W rstd = rstd_of(op, x);
  const W product = sum_over<W>(op.size, [&](auto at) {
    return at.load(dy) * silu_of<W>(at.load(z)).value * at.load(op.weight) * at.load(x);
  });
  const W along = product * rstd / static_cast<W>(op.size);
  over<W>(op.size, [&](auto at) {
    const Silu<W> gate = silu_of<W>(at.load(z));
    const Vector<W> d = at.load(dy), normed = at.load(x) * rstd, weight = at.load(op.weight);
    const Vector<W> d_weighted = d * gate.value;
    if (sums != nullptr) at.store(sums, at.load(sums) + d_weighted * normed);
    at.store(op.dx + row, (d_weighted * weight - normed * along) * rstd);
    at.store(op.dz + row, d * normed * weight * gate.slope);
  });
}

template <typename S>
void backward(const GatedNorm<S>& op, WeightSums<S> sums, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row) {
    backward_row(op, row * op.size, sums.recent);
    const bool is_due = (row - begin + 1) % kShortSum == 0 || row + 1 == end;
    if (sums.recent == nullptr || !is_due) continue;
    for (int64_t i = 0; i < op.size; ++i) {
      sums.total[i] += static_cast<double>(sums.recent[i]);
      sums.recent[i] = 0;
    }
  }
}

}  // namespace

template <typename S>
GatedNormKernels<S> gated_norm_kernels();
template <typename S>
GatedNormKernels<S> gated_norm_kernels() {
  return {forward<S>, backward<S>};
}
template GatedNormKernels<float> gated_norm_kernels<float>();
template GatedNormKernels<double> gated_norm_kernels<double>();
template GatedNormKernels<Bfloat16> gated_norm_kernels<Bfloat16>();

}  // namespace streambp::cpu::STREAMBP_ISA
