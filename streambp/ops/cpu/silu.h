// SiLU, the logistic function and their slopes. Included by kernels' own .cc files only: see vector.h.
#pragma once

#include "streambp/ops/cpu/vector.h"

namespace streambp::cpu::STREAMBP_ISA {

template <typename T>
struct Silu {
  Vector<T> value;
  Vector<T> slope;
};

/// The logistic function. The exponential is that of what is not positive: nothing overflows, and s and 1 - s
/// keep their digits on both sides.
template <typename T>
static inline Silu<T> logistic_of(Vector<T> x) {
  const Vector<T> e = exp_of<T>(x < T{0} ? x : -x);
  const Vector<T> larger = T{1} / (e + T{1}), smaller = e * larger;
  return {x < T{0} ? smaller : larger, smaller * larger};
}

/// x s(x) with s the logistic function.
template <typename T>
static inline Silu<T> silu_of(Vector<T> x) {
  const Silu<T> s = logistic_of<T>(x);
  return {x * s.value, s.value + x * s.slope};
}

}  // namespace streambp::cpu::STREAMBP_ISA
