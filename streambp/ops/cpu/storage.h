// Between numbers as they are stored and as they are computed with. Included by kernels' own .cc files only:
// see vector.h.
#pragma once

#include "streambp/ops/cpu/number.h"
#include "streambp/ops/cpu/vector.h"

namespace streambp::cpu::STREAMBP_ISA {

template <typename A, typename B>
inline constexpr bool kSame = false;
template <typename A>
inline constexpr bool kSame<A, A> = true;

template <typename T>
inline constexpr T kInfinity = static_cast<T>(__builtin_inf());

static inline float log_of(float x) {
  return __builtin_logf(x);
}
static inline double log_of(double x) {
  return __builtin_log(x);
}

static inline float to_wide(float x) {
  return x;
}
static inline double to_wide(double x) {
  return x;
}
static inline float to_wide(Bfloat16 x) {
  const uint32_t bits = static_cast<uint32_t>(x.bits) << 16;
  float wide;
  __builtin_memcpy(&wide, &bits, sizeof(wide));
  return wide;
}

/// The nearest number that can be stored, the even one of two; NaN stays NaN.
template <typename S>
static inline S to_storage(Wide<S> x) {
  if constexpr (!kSame<S, Wide<S>>) {
    uint32_t bits;
    __builtin_memcpy(&bits, &x, sizeof(bits));
    if (x != x) return {static_cast<uint16_t>((bits >> 16) | 0x40U)};
    return {static_cast<uint16_t>((bits + 0x7FFFU + ((bits >> 16) & 1U)) >> 16)};
  } else {
    return x;
  }
}

/// kWidth numbers, widened.
template <typename S>
static inline Vector<Wide<S>> load_wide(const S* from) {
  if constexpr (kSame<S, Wide<S>>) {
    return load(from);
  } else {
    Wide<S> wide[kWidth<Wide<S>>];
    for (int i = 0; i < kWidth<Wide<S>>; ++i) wide[i] = to_wide(from[i]);
    return load(wide);
  }
}

/// to[i] = from[i] * factor, rounded once.
template <typename S>
static inline void scale_to_storage(S* to, const Wide<S>* from, Wide<S> factor, int64_t count) {
  for (int64_t i = 0; i < count; ++i) to[i] = to_storage<S>(from[i] * factor);
}

}  // namespace streambp::cpu::STREAMBP_ISA
