// Numbers of 4 and 8 bits, a block at a time: its codes are looked up in registers, where a set has a
// permutation of them.
#include "streambp/ops/cpu/elementwise.h"
#include "streambp/ops/cpu/storage.h"

namespace streambp::cpu::STREAMBP_ISA {
namespace {

constexpr int kLanes = kWidth<float>;

typedef Lanes<float>::Bits Bits;
typedef int8_t ByteOfEachLane __attribute__((vector_size(STREAMBP_VECTOR_BYTES / 4)));
typedef int16_t ShortOfEachLane __attribute__((vector_size(STREAMBP_VECTOR_BYTES / 2)));

/// How far the bits of eight codes lie above the lowest of their word.
alignas(64) constexpr uint32_t kShifts[16] = {4, 0, 12, 8, 20, 16, 28, 24, 4, 0, 12, 8, 20, 16, 28, 24};
alignas(64) constexpr int32_t kOfFirstWord[16] = {-1, -1, -1, -1, -1, -1, -1, -1};

template <typename V, typename T>
inline V first_of(const T* from) {
  V v;
  __builtin_memcpy(&v, from, sizeof(v));
  return v;
}

/// kLanes numbers of 4 bits.
inline Vector<float> numbers_of_codes(const uint8_t* bytes, const float* codes) {
  if constexpr (kLanes < 8) {
    float numbers[kLanes];
    for (int i = 0; i < kLanes; i += 2) {
      numbers[i] = codes[bytes[i / 2] >> 4];
      numbers[i + 1] = codes[bytes[i / 2] & 15];
    }
    return load<float>(numbers);
  } else {
    uint32_t words[2] = {};
    __builtin_memcpy(words, bytes, kLanes / 2);
    FullBits of_lanes = FullBits{} + words[0];
    if constexpr (kLanes == 16) of_lanes = first_of<Bits>(kOfFirstWord) ? of_lanes : FullBits{} + words[1];
    const FullBits indices = (of_lanes >> first_of<FullBits>(kShifts)) & 15;
    if constexpr (kLanes == 16) return __builtin_shuffle(load<float>(codes), indices);
    return __builtin_shuffle(load<float>(codes), load<float>(codes + 8), indices);
  }
}

/// kLanes numbers of 8 bits, widened step by step: compilers know no longer steps.
inline Vector<float> numbers_of_bytes(const uint8_t* bytes) {
  const auto shorts = __builtin_convertvector(first_of<ByteOfEachLane>(bytes), ShortOfEachLane);
  return __builtin_convertvector(__builtin_convertvector(shorts, Bits), Vector<float>);
}

/// v as it would be after a trip through memory in half precision.
inline Vector<float> rounded_to_half(Vector<float> v) {
  constexpr int32_t kSmallestNormal = 0x38800000, kTooLarge = 0x47800000, kInfinite = 0x7f800000;
  const Bits bits = reinterpret_cast<Bits>(v), size = bits & 0x7fffffff;
  const Bits digits = (size + 0xfff + ((size >> 13) & 1)) & ~0x1fff;
  const Bits rounded = digits < kTooLarge ? digits : Bits{} + kInfinite;
  const Bits in_steps =
      reinterpret_cast<Bits>((reinterpret_cast<Vector<float>>(size) + 0.5F) - 0.5F);  // 2^-24
  const Bits result = (size < kSmallestNormal ? in_steps : rounded) | (bits ^ size);
  return reinterpret_cast<Vector<float>>(size > kInfinite ? bits : result);
}

template <Rounding kRounding>
inline Vector<float> rounded_to(Vector<float> v) {
  if constexpr (kRounding == Rounding::kBfloat16) return rounded<Bfloat16>(v);
  if constexpr (kRounding == Rounding::kHalf) return rounded_to_half(v);
  return v;
}

template <typename S>
inline void put(S* to, Vector<float> v) {
  narrow(to, v);
}
inline void put(double* to, Vector<float> v) {
  for (int i = 0; i < kLanes; ++i) to[i] = v[i];
}

/// Numbers of one block.
template <typename S, int kBits, Rounding kRounding>
inline void block_numbers(const PackedNumbers& from, const uint8_t* bytes, float maximum, S* to,
                          int64_t count) {
  const auto convert = [&](const uint8_t* of_lanes, S* to_lanes) {
    if constexpr (kBits == 4) {
      put(to_lanes, rounded_to<kRounding>(numbers_of_codes(of_lanes, from.codes) * maximum));
    } else {
      put(to_lanes, rounded_to<kRounding>(numbers_of_bytes(of_lanes) * maximum * kPer127));
    }
  };
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) convert(bytes + i * kBits / 8, to + i);
  if (i == count) return;
  uint8_t last_bytes[kLanes] = {};
  S last[kLanes];
  __builtin_memcpy(last_bytes, bytes + i * kBits / 8, static_cast<size_t>(((count - i) * kBits + 7) / 8));
  convert(last_bytes, last);
  __builtin_memcpy(to + i, last, static_cast<size_t>(count - i) * sizeof(S));
}

template <typename S, int kBits, Rounding kRounding>
void all_numbers(const PackedNumbers& from, S* to) {
  const uint8_t* bytes = from.bytes;
  const float* maximum = from.maxima;
  for (int64_t begin = 0; begin < from.count; begin += from.block_size) {
    const int64_t left = from.count - begin, count = left < from.block_size ? left : from.block_size;
    block_numbers<S, kBits, kRounding>(from, bytes + begin * kBits / 8, *maximum++, to + begin, count);
  }
}

template <typename S, Rounding kRounding>
void numbers_rounded(const PackedNumbers& from, S* to) {
  if (from.bits == 4) return all_numbers<S, 4, kRounding>(from, to);
  all_numbers<S, 8, kRounding>(from, to);
}

template <typename S>
void numbers(const PackedNumbers& from, S* to) {
  switch (from.rounding) {
    case Rounding::kNone:
      return numbers_rounded<S, Rounding::kNone>(from, to);
    case Rounding::kBfloat16:
      return numbers_rounded<S, Rounding::kBfloat16>(from, to);
    case Rounding::kHalf:
      return numbers_rounded<S, Rounding::kHalf>(from, to);
  }
}

}  // namespace

template <typename S>
DequantizeKernels<S> dequantize_kernels() {
  return {numbers<S>};
}
template DequantizeKernels<float> dequantize_kernels();
template DequantizeKernels<double> dequantize_kernels();
template DequantizeKernels<Bfloat16> dequantize_kernels();

}  // namespace streambp::cpu::STREAMBP_ISA
