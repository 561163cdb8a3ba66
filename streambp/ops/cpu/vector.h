// A register full of numbers, for kernels that are compiled once for each instruction set: STREAMBP_ISA names
// the set and STREAMBP_VECTOR_BYTES the size of its registers. Only the kernels' own .cc files include this,
// and nothing in it has external linkage outside the set's namespace: code of one set must never be linked in
// for another.
#pragma once

#include <cstddef>
#include <cstdint>

namespace streambp::cpu::STREAMBP_ISA {

template <typename T>
struct Lanes;

template <>
struct Lanes<float> {
  typedef float Vector __attribute__((vector_size(STREAMBP_VECTOR_BYTES)));
  typedef int32_t Bits __attribute__((vector_size(STREAMBP_VECTOR_BYTES)));
  static constexpr int kMantissa = 23;
  static constexpr float kRounder =
      12582912.0F;  // 1.5 * 2^23: adding it leaves the nearest integer in the low bits
  static constexpr float kLn2High = 0.693359375F;
  static constexpr float kLn2Low = -2.12194440e-4F;
  static constexpr float kSmallest = -87.3F;  // e^x of less is below the smallest normal number
  static constexpr float kLargest = 88.7F;
  static constexpr float kSmallestExponent = -126.0F;  // the same for 2^x
  static constexpr int kDegree = 7;  // of the series of e^r on |r| <= ln(2) / 2: its remainder is 5e-9
};

template <>
struct Lanes<double> {
  typedef double Vector __attribute__((vector_size(STREAMBP_VECTOR_BYTES)));
  typedef int64_t Bits __attribute__((vector_size(STREAMBP_VECTOR_BYTES)));
  static constexpr int kMantissa = 52;
  static constexpr double kRounder = 6755399441055744.0;  // 1.5 * 2^52
  static constexpr double kLn2High = 6.93145751953125e-1;
  static constexpr double kLn2Low = 1.42860682030941723212e-6;
  static constexpr double kSmallest = -708.0;
  static constexpr double kLargest = 709.7;
  static constexpr double kSmallestExponent = -1022.0;
  static constexpr int kDegree = 13;  // remainder 4e-18
};

template <typename T>
using Vector = typename Lanes<T>::Vector;

/// How many T a register holds.
template <typename T>
inline constexpr int kWidth = STREAMBP_VECTOR_BYTES / static_cast<int>(sizeof(T));

template <typename T>
static inline Vector<T> load(const T* from) {
  Vector<T> v;
  __builtin_memcpy(&v, from, sizeof(v));
  return v;
}

template <typename T>
static inline void store(T* to, Vector<T> v) {
  __builtin_memcpy(to, &v, sizeof(v));
}

template <typename T>
static inline Vector<T> broadcast(T x) {
  return x - Vector<T>{};  // 0 + x would lose the sign of -0, so that the compiler could not leave it out
}

/// The sum of all lanes, pairwise.
template <typename T>
static inline T sum_of(Vector<T> v) {
  T lanes[kWidth<T>];
  store(lanes, v);
  for (int half = kWidth<T> / 2; half > 0; half /= 2)
    for (int i = 0; i < half; ++i) lanes[i] += lanes[i + half];
  return lanes[0];
}

template <typename T>
static inline T max_of(Vector<T> v) {
  T lanes[kWidth<T>];
  store(lanes, v);
  for (int half = kWidth<T> / 2; half > 0; half /= 2)
    for (int i = 0; i < half; ++i) lanes[i] = lanes[i] > lanes[i + half] ? lanes[i] : lanes[i + half];
  return lanes[0];
}

/// Adds the integer that the rounder has left in the low bits of `shifted` to the exponents of `series`.
template <typename T>
static inline Vector<T> raise(Vector<T> series, Vector<T> shifted) {
  using Bits = typename Lanes<T>::Bits;
  return reinterpret_cast<Vector<T>>(reinterpret_cast<Bits>(series) +
                                     (reinterpret_cast<Bits>(shifted) << Lanes<T>::kMantissa));
}

/// base^i / i!, the coefficients of e^(base x).
template <typename T>
static constexpr T coefficient(double base, int i) {
  double power = 1.0;
  for (int k = 1; k <= i; ++k) power *= base / k;
  return static_cast<T>(power);
}

inline constexpr double kLn2 = 0.69314718055994530942;
inline constexpr double kLog2OfE = 1.44269504088896340736;

/// 2^x to within 2 units in the last place; 0 where the result is below the smallest normal number, so that
/// -inf gives 0. Meaningless above the largest exponent; NaN stays NaN.
/// x = n + r with |r| <= 1/2; 2^r by the series of e^(r ln 2), and n is added to the exponent.
template <typename T>
static inline Vector<T> exp2_of(Vector<T> x) {
  using L = Lanes<T>;
  const Vector<T> shifted = x + L::kRounder;
  const Vector<T> r = x - (shifted - L::kRounder);
  Vector<T> series = broadcast(coefficient<T>(kLn2, L::kDegree));
#pragma GCC unroll 16
  for (int i = L::kDegree - 1; i >= 0; --i) series = series * r + coefficient<T>(kLn2, i);
  return x < L::kSmallestExponent ? Vector<T>{} : raise<T>(series, shifted);
}

/// e^x to within 2 units in the last place; 0 below Lanes::kSmallest, so that -inf gives 0, and the largest
/// power's value above kLargest. NaN stays NaN.
/// x = n ln 2 + r with |r| <= ln(2) / 2; e^r by its series, and n is added to the exponent.
template <typename T>
static inline Vector<T> exp_of(Vector<T> x) {
  using L = Lanes<T>;
  const Vector<T> clamped = x > L::kLargest ? broadcast(L::kLargest) : x;
  const Vector<T> shifted = clamped * static_cast<T>(kLog2OfE) + L::kRounder;
  const Vector<T> n = shifted - L::kRounder;
  const Vector<T> r = (clamped - n * L::kLn2High) - n * L::kLn2Low;
  Vector<T> series = broadcast(coefficient<T>(1.0, L::kDegree));
#pragma GCC unroll 16
  for (int i = L::kDegree - 1; i >= 0; --i) series = series * r + coefficient<T>(1.0, i);
  return x < L::kSmallest ? Vector<T>{} : raise<T>(series, shifted);
}

}  // namespace streambp::cpu::STREAMBP_ISA
