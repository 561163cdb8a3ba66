#include "streambp/ops/cpu/recurrent/gated_norm.h"

#include "streambp/ops/cpu/row_loops.h"
#include "streambp/ops/cpu/silu.h"

namespace streambp::cpu::STREAMBP_ISA {
namespace {

/// After so many rows the sums for the weight are taken from their short form to the long one.
constexpr int64_t kShortSum = 64;

template <typename W, typename S>
Silu<W> gate_of(const GatedNorm<S>& op, Vector<W> z) {
  return op.logistic ? logistic_of<W>(z) : silu_of<W>(z);
}

/// Of a row, whose number i is number(i).
template <typename S, typename Number>
Wide<S> rstd_of(const GatedNorm<S>& op, Number number) {
  using W = Wide<S>;
  const W squares = sum_over<W>(op.size, [&](auto at) { return number(at) * number(at); });
  return 1 / static_cast<W>(__builtin_sqrt(
                 static_cast<double>(squares / static_cast<W>(op.size) + static_cast<W>(op.eps))));
}

/// What is normed: x, or x silu(z).
template <bool kOfGated, typename W, typename At, typename S>
Vector<W> normed_number(At at, const S* x, const S* z) {
  if constexpr (kOfGated) {
    return at.load(x) * silu_of<W>(at.load(z)).value;
  } else {
    return at.load(x);
  }
}

template <bool kOfGated, typename S>
void forward_rows(const GatedNorm<S>& op, int64_t begin, int64_t end) {
  using W = Wide<S>;
  for (int64_t row = begin; row < end; ++row) {
    const S *const x = op.x + row * op.size, *const z = op.z + row * op.size;
    const S* const weight = op.weight + row % op.groups * op.size;
    const auto number = [&](auto at) { return normed_number<kOfGated, W>(at, x, z); };
    const W rstd = rstd_of(op, number);
    over<W>(op.size, [&](auto at) {
      const Vector<W> y = number(at) * rstd * at.load(weight);
      at.store(op.y + row * op.size, kOfGated ? y : y * gate_of<W>(op, at.load(z)).value);
    });
  }
}

template <typename S>
void forward(const GatedNorm<S>& op, int64_t begin, int64_t end) {
  op.of_gated ? forward_rows<true>(op, begin, end) : forward_rows<false>(op, begin, end);
}

/// With n = x rstd and g = silu(z), or the logistic function of it: y = w n g; or with n = x g rstd: y = w n.
template <bool kOfGated, typename S>
void backward_row(const GatedNorm<S>& op, int64_t row, Wide<S>* sums) {
  using W = Wide<S>;
  const int64_t first = row * op.size;
  const S *const x = op.x + first, *const z = op.z + first, *const dy = op.dy + first;
  const S* const w = op.weight + row % op.groups * op.size;
  if (sums != nullptr) sums += row % op.groups * op.size;
  const auto number = [&](auto at) { return normed_number<kOfGated, W>(at, x, z); };
  const W rstd = rstd_of(op, number);
  const W product = sum_over<W>(op.size, [&](auto at) {
    const Vector<W> d = at.load(dy) * at.load(w) * number(at);
    if constexpr (kOfGated) {
      return d;
    } else {
      return d * gate_of<W>(op, at.load(z)).value;
    }
  });
  const W along = product * rstd / static_cast<W>(op.size);
  over<W>(op.size, [&](auto at) {
    const Silu<W> gate = gate_of<W>(op, at.load(z));
    const Vector<W> d = at.load(dy), weight = at.load(w);
    if constexpr (kOfGated) {
      const Vector<W> normed = at.load(x) * gate.value * rstd;
      if (sums != nullptr) at.store(sums, at.load(sums) + d * normed);
      const Vector<W> d_gated = (d * weight - normed * along) * rstd;
      at.store(op.dx + first, d_gated * gate.value);
      at.store(op.dz + first, d_gated * at.load(x) * gate.slope);
    } else {
      const Vector<W> normed = at.load(x) * rstd, d_weighted = d * gate.value;
      if (sums != nullptr) at.store(sums, at.load(sums) + d_weighted * normed);
      at.store(op.dx + first, (d_weighted * weight - normed * along) * rstd);
      at.store(op.dz + first, d * normed * weight * gate.slope);
    }
  });
}

template <typename S>
void backward(const GatedNorm<S>& op, WeightSums<S> sums, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row) {
    op.of_gated ? backward_row<true>(op, row, sums.recent) : backward_row<false>(op, row, sums.recent);
    const bool is_due = (row - begin + 1) % (kShortSum * op.groups) == 0 || row + 1 == end;
    if (sums.recent == nullptr || !is_due) continue;
    for (int64_t i = 0; i < op.groups * op.size; ++i) {
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
