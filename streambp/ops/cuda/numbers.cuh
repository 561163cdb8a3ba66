// Numbers as they are stored and as they are computed with, several at a time; sums over a team of threads.
#pragma once

#include <cmath>
#include <type_traits>

#include "streambp/ops/cuda/language.cuh"

namespace streambp::cuda {

STREAMBP_DEVICE float widen(float x) {
  return x;
}
STREAMBP_DEVICE double widen(double x) {
  return x;
}
STREAMBP_DEVICE float widen(Bfloat16 x) {
#ifdef __CUDACC__
  return __uint_as_float(static_cast<unsigned>(x.bits) << 16);
#else
  const uint32_t bits = static_cast<uint32_t>(x.bits) << 16;
  float wide;
  std::memcpy(&wide, &bits, sizeof(wide));
  return wide;
#endif
}

/// To the nearest, ties to even.
template <typename S>
STREAMBP_DEVICE S narrow(Wide<S> x) {
  if constexpr (std::is_same_v<S, Bfloat16>) {
#ifdef __CUDACC__
    return {__bfloat16_as_ushort(__float2bfloat16_rn(x))};
#else
    if (x != x) return {0x7fc0};
    uint32_t bits;
    std::memcpy(&bits, &x, sizeof(bits));
    return {static_cast<uint16_t>((bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16)};
#endif
  } else {
    return x;
  }
}

/// x as it would be after a trip through memory.
template <typename S>
STREAMBP_DEVICE Wide<S> rounded(Wide<S> x) {
  return widen(narrow<S>(x));
}

/// x as it would be after a trip through memory in half precision.
STREAMBP_DEVICE float rounded_to_half(float x) {
#ifdef __CUDACC__
  return __half2float(__float2half_rn(x));
#else
  const float size = fabsf(x);
  if (!(size < 65520.0F)) return size > 0.0F ? copysignf(INFINITY, x) : x;
  if (size < 0x1p-14F) return copysignf((size + 0.5F) - 0.5F, x);  // steps of 2^-24
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof(bits));
  bits = (bits + 0xfffU + ((bits >> 13) & 1U)) & ~0x1fffU;
  std::memcpy(&x, &bits, sizeof(x));
  return x;
#endif
}

/// a b, rounded whatever is done with it.
STREAMBP_DEVICE float product(float a, float b) {
#ifdef __CUDACC__
  return __fmul_rn(a, b);
#else
  return a * b;
#endif
}

/// a b + c, rounded once. Written out where kernels of different types have to give the same bits: a compiler
/// may or may not make one of a product and a sum.
STREAMBP_DEVICE float multiply_add(float a, float b, float c) {
  return fmaf(a, b, c);
}
STREAMBP_DEVICE double multiply_add(double a, double b, double c) {
  return fma(a, b, c);
}

/// The largest finite number, without its sign.
template <typename T>
inline constexpr T kLargest = static_cast<T>(sizeof(T) == sizeof(float) ? 3.402823466385288598e38
                                                                        : 1.7976931348623157081e308);

/// kCount neighbours in memory, moved in one piece.
template <typename S, int kCount>
struct alignas(kCount * sizeof(S)) Pack {
  S numbers[kCount];
};

/// Numbers of S in 16 bytes, the most that a thread moves at once.
template <typename S>
inline constexpr int kPack = 16 / static_cast<int>(sizeof(S));

template <typename S, int kCount>
STREAMBP_DEVICE void load(const S* from, Wide<S> (&to)[kCount]) {
  const auto pack = *reinterpret_cast<const Pack<S, kCount>*>(from);
  STREAMBP_UNROLL
  for (int i = 0; i < kCount; ++i) to[i] = widen(pack.numbers[i]);
}

template <typename S, int kCount>
STREAMBP_DEVICE void store(S* to, const Wide<S> (&from)[kCount]) {
  Pack<S, kCount> pack;
  STREAMBP_UNROLL
  for (int i = 0; i < kCount; ++i) pack.numbers[i] = narrow<S>(from[i]);
  *reinterpret_cast<Pack<S, kCount>*>(to) = pack;
}

/// Whether rows that begin at `data` and `strides` apart can be moved in packs of S.
template <typename S>
bool moves_in_packs(const void* data, int64_t stride, int64_t other_stride = 0) {
  return reinterpret_cast<uintptr_t>(data) % 16 == 0 && stride % kPack<S> == 0 &&
         other_stride % kPack<S> == 0;
}

/// kTeam neighbouring threads of a block that work on one row: a part of a warp, or the whole block.
template <int kTeam>
struct Team {
  static constexpr int kTeams = kThreads / kTeam;  // in a block
  static_assert(kTeam <= kWarp || kTeam == kThreads);

  int rank = thread_index() % kTeam;
  int number = thread_index() / kTeam;

  /// How many numbers of W sum() needs of the block's shared memory.
  static constexpr int kScratch = kTeam > kWarp ? kThreads / kWarp : 0;

  /// The sum over the team, the same bits in each of its threads. All threads of the block call it.
  template <typename W>
  STREAMBP_DEVICE W sum(W value, W* scratch) const {
    constexpr int kLanes = kTeam < kWarp ? kTeam : kWarp;
    STREAMBP_UNROLL
    for (int mask = kLanes / 2; mask > 0; mask /= 2) value += shuffle_xor(value, mask);
    if constexpr (kTeam > kWarp) {
      if (thread_index() % kWarp == 0) scratch[thread_index() / kWarp] = value;
      barrier();
      value = scratch[0];
      for (int warp = 1; warp < kScratch; ++warp) value += scratch[warp];
      barrier();  // the next sum writes here
    }
    return value;
  }
};

}  // namespace streambp::cuda
