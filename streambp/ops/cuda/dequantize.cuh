// Numbers of 4 and 8 bits, written once: codes are looked up in shared memory.
#pragma once

#include "streambp/ops/cuda/numbers.cuh"

namespace streambp::cuda {

STREAMBP_DEVICE float maximum_of(const PackedNumbers& from, const NestedMaxima& nested, int64_t block) {
  if (nested.codes == nullptr) return from.maxima[block];
  return product(nested.code[nested.codes[block]], nested.maxima[block / nested.block_size]) + nested.offset;
}

/// kCount numbers of one block, from number i on, an even one unless it is the only one; `codes` are the
/// lane's own.
template <typename S, int kBits, int kCount>
STREAMBP_DEVICE void dequantize(const PackedNumbers& from, const NestedMaxima& nested, const float* codes,
                                int64_t i, S* to) {
  constexpr int kBytes = (kCount * kBits + 7) / 8;
  const auto bytes = *reinterpret_cast<const Pack<uint8_t, kBytes>*>(from.bytes + i * kBits / 8);
  const float maximum = maximum_of(from, nested, i / from.block_size);
  float numbers[kCount];
  STREAMBP_UNROLL
  for (int k = 0; k < kCount; ++k) {
    const uint8_t byte = bytes.numbers[k * kBits / 8];
    if constexpr (kBits == 4) {
      const bool is_second = (kCount == 1 ? i : k) % 2 == 1;
      numbers[k] = product(codes[(is_second ? byte & 15 : byte >> 4) * kWarp], maximum);
    } else {
      numbers[k] = product(product(static_cast<float>(static_cast<int8_t>(byte)), maximum), cpu::kPer127);
    }
  }
  if (from.rounding == Rounding::kBfloat16) {
    STREAMBP_UNROLL
    for (float& number : numbers) number = rounded<Bfloat16>(number);
  } else if (from.rounding == Rounding::kHalf) {
    STREAMBP_UNROLL
    for (float& number : numbers) number = rounded_to_half(number);
  }
  Wide<S> wide[kCount];
  STREAMBP_UNROLL
  for (int k = 0; k < kCount; ++k) wide[k] = numbers[k];
  store(to + i, wide);
}

template <typename S, int kBits>
STREAMBP_GLOBAL void dequantized_numbers(PackedNumbers from, NestedMaxima nested, S* to, bool in_packs) {
  constexpr int kCount = kPack<S>;
  const float* own_codes = nullptr;
  if constexpr (kBits == 4) {
    float* const codes = shared_memory<float>();  // each for every lane of a warp, in a bank of its own
    if (thread_index() < kWarp) {
      // A code that is found by a variable would have all of them copied to the thread's stack.
      STREAMBP_UNROLL
      for (int code = 0; code < 16; ++code) codes[code * kWarp + thread_index()] = from.codes[code];
    }
    barrier();
    own_codes = codes + thread_index() % kWarp;
  }
  for (int64_t begin = (block_index() * kThreads + thread_index()) * kCount; begin < from.count;
       begin += block_count() * kThreads * kCount) {
    if (in_packs && begin + kCount <= from.count) {
      dequantize<S, kBits, kCount>(from, nested, own_codes, begin, to);
    } else {
      for (int64_t i = begin; i < begin + kCount && i < from.count; ++i)
        dequantize<S, kBits, 1>(from, nested, own_codes, i, to);
    }
  }
}

template <typename S>
Failure dequantized(const Queue& queue, const PackedNumbers& from, const NestedMaxima& nested, S* to) {
  constexpr int kPacks = 4;  // of a thread, for which its block fills shared memory once
  const bool in_packs = from.block_size % kPack<S> == 0 && moves_in_packs<S>(to, 0) &&
                        reinterpret_cast<uintptr_t>(from.bytes) % kPack<S> == 0;
  const int64_t blocks = blocks_for(from.count, int64_t{kPacks} * kThreads * kPack<S>);
  if (from.bits == 4)
    return launch(queue, dequantized_numbers<S, 4>, blocks, kThreads, 16 * kWarp * sizeof(float), from,
                  nested, to, in_packs);
  return launch(queue, dequantized_numbers<S, 8>, blocks, kThreads, 0, from, nested, to, in_packs);
}

}  // namespace streambp::cuda
