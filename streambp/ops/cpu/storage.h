// Between numbers as they are stored and as they are computed with. Included by kernels' own .cc files only:
// see vector.h.
#pragma once

#include "streambp/ops/cpu/number.h"
#include "streambp/ops/cpu/vector.h"

namespace streambp::cpu::STREAMBP_ISA {

template <typename T>
inline constexpr T kInfinity = static_cast<T>(__builtin_inf());
/// The smallest finite number: maxima begin with it, so that no difference of two infinities arises where all
/// numbers are -inf.
template <typename T>
inline constexpr T kLowest = sizeof(T) == sizeof(float) ? static_cast<T>(-__FLT_MAX__)
                                                        : static_cast<T>(-__DBL_MAX__);

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

/// kWidth numbers.
template <typename T>
static inline Vector<T> widen(const T* from) {
  return load<T>(from);
}

template <typename T>
static inline void narrow(T* to, Vector<T> v) {
  store<T>(to, v);
}

typedef uint16_t HalfBits __attribute__((vector_size(STREAMBP_VECTOR_BYTES / 2)));
typedef uint32_t FullBits __attribute__((vector_size(STREAMBP_VECTOR_BYTES)));

static inline Vector<float> widen(const Bfloat16* from) {
  HalfBits bits;
  __builtin_memcpy(&bits, from, sizeof(bits));
  return reinterpret_cast<Vector<float>>(__builtin_convertvector(bits, FullBits) << 16);
}

/// To the nearest, ties to even; NaN stays NaN.
static inline void narrow(Bfloat16* to, Vector<float> v) {
  const FullBits bits = reinterpret_cast<FullBits>(v);
  const FullBits rounded = (bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16;
  const HalfBits half = __builtin_convertvector(v != v ? FullBits{} + 0x7fc0U : rounded, HalfBits);
  __builtin_memcpy(to, &half, sizeof(half));
}

/// v as it would be after a trip through memory of dtype S.
template <typename S>
static inline Vector<Wide<S>> rounded(Vector<Wide<S>> v) {
  if constexpr (std::is_same_v<S, Wide<S>>) {
    return v;
  } else {
    S stored[kWidth<Wide<S>>];
    narrow(stored, v);
    return widen(stored);
  }
}

}  // namespace streambp::cpu::STREAMBP_ISA
