// Root-mean-square norm and rotary embedding, apart or one after the other while a head lies in the
// first-level cache.
#include "streambp/ops/cpu/elementwise.h"
#include "streambp/ops/cpu/row_loops.h"

namespace streambp::cpu::STREAMBP_ISA {
namespace {

/// After so many rows the sums for a weight are taken from their short form to the long one.
constexpr int64_t kShortSum = 64;

template <typename S>
S* row_of(const Heads<S>& heads, int64_t token, int64_t head) {
  return heads.data + token * heads.token_stride + head * heads.head_stride;
}

/// The weight, or what stands for it.
template <typename S, typename At>
Vector<Wide<S>> factor(const NormRope<S>& op, At at) {
  const Vector<Wide<S>> weight = at.load(op.weight);
  return op.adds_one ? weight + Wide<S>{1} : weight;
}

template <typename S>
void normalise(const NormRope<S>& op, const S* x, S* y, Wide<S>* rstd) {
  using W = Wide<S>;
  const W squares = sum_over<W>(op.size, [&](auto at) {
    const Vector<W> v = at.load(x);
    return v * v;
  });
  const W r = 1 / static_cast<W>(__builtin_sqrt(
                      static_cast<double>(squares / static_cast<W>(op.size) + static_cast<W>(op.eps))));
  *rstd = r;
  over<W>(op.size, [&](auto at) {
    const Vector<W> normalised = at.load(x) * r;
    // Hugging Face rounds before it multiplies, except in Gemma's norms.
    at.store(y, (op.adds_one ? normalised : rounded<S>(normalised)) * factor(op, at));
  });
}

/// dx may be dy.
template <typename S>
void normalise_backward(const NormRope<S>& op, const S* x, Wide<S> rstd, const S* dy, S* dx, Wide<S>* sums) {
  using W = Wide<S>;
  const W product = sum_over<W>(op.size, [&](auto at) { return at.load(dy) * factor(op, at) * at.load(x); });
  const W along = product * rstd / static_cast<W>(op.size);
  over<W>(op.size, [&](auto at) {
    const Vector<W> d = at.load(dy), normalised = at.load(x) * rstd;
    if (sums != nullptr) at.store(sums, at.load(sums) + d * normalised);
    at.store(dx, (d * factor(op, at) - normalised * along) * rstd);
  });
}

/// Rotates a head by `sign` times its token's angles. y may be x.
template <typename S>
void rotate(const NormRope<S>& op, int64_t token, Wide<S> sign, const S* x, S* y) {
  using W = Wide<S>;
  const S* const cosines = op.cosine + token * op.table_stride;
  const S* const sines = op.sine + token * op.table_stride;
  over<W>(op.half, [&](auto at) {
    const Vector<W> first = at.load(x), second = at.load(x + op.half);
    const Vector<W> cosine = at.load(cosines), sine = at.load(sines) * sign;
    at.store(y, rounded<S>(first * cosine) - second * sine);
    at.store(y + op.half, rounded<S>(second * cosine) + first * sine);
  });
  if (y != x) {
    const int64_t rotated = 2 * op.half;
    __builtin_memcpy(y + rotated, x + rotated, static_cast<size_t>(op.size - rotated) * sizeof(S));
  }
}

template <typename S>
void forward(const NormRope<S>& op, Heads<const S> x, const S* residual, S* y, int64_t begin, int64_t end) {
  using W = Wide<S>;
  for (int64_t token = begin; token < end; ++token) {
    for (int64_t head = 0; head < op.heads; ++head) {
      const int64_t row = token * op.heads + head;
      const S* from = row_of(x, token, head);
      S* const to = y + row * op.size;
      if (op.weight != nullptr) {
        normalise(op, from, to, op.rstd + row);
        from = to;
      }
      if (op.cosine != nullptr) rotate(op, token, W{1}, from, to);
      if (residual == nullptr) continue;
      const S* const other = residual + row * op.size;
      over<W>(op.size, [&](auto at) { at.store(to, at.load(to) + at.load(other)); });
    }
  }
}

template <typename S>
void backward(const NormRope<S>& op, Heads<const S> x, Heads<const S> dy, S* dx, WeightSums<S> sums,
              int64_t begin, int64_t end) {
  int64_t rows = 0;
  const auto take_over = [&] {
    if (sums.recent == nullptr) return;
    for (int64_t i = 0; i < op.size; ++i) {
      sums.total[i] += static_cast<double>(sums.recent[i]);
      sums.recent[i] = 0;
    }
  };
  for (int64_t token = begin; token < end; ++token) {
    for (int64_t head = 0; head < op.heads; ++head) {
      const int64_t row = token * op.heads + head;
      const S* d = row_of(dy, token, head);
      S* const to = dx + row * op.size;
      if (op.cosine != nullptr) {
        rotate(op, token, Wide<S>{-1}, d, to);
        d = to;
      }
      if (op.weight == nullptr) continue;
      normalise_backward(op, row_of(x, token, head), op.rstd[row], d, to, sums.recent);
      if (++rows % kShortSum == 0) take_over();
    }
  }
  take_over();
}

}  // namespace

template <typename S>
NormRopeKernels<S> norm_rope_kernels() {
  return {forward<S>, backward<S>};
}
template NormRopeKernels<float> norm_rope_kernels();
template NormRopeKernels<double> norm_rope_kernels();
template NormRopeKernels<Bfloat16> norm_rope_kernels();

}  // namespace streambp::cpu::STREAMBP_ISA
