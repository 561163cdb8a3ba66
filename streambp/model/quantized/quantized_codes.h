// The 16 numbers of a 4-bit format, and maxima of blocks: what quantising and dequantising share.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include <ATen/ATen.h>

#include "streambp/model/quantized/quantization.h"

namespace streambp {

inline constexpr int64_t kQuantBlockSize = 64;    // values that share a maximum, where we quantise
inline constexpr int64_t kNestedBlockSize = 256;  // maxima of 8 bits that share one

using QuantCodes = std::array<float, 16>;

/// Of nf4 or fp4, by code.
inline const QuantCodes& codes_of(QuantType type) {
  static constexpr QuantCodes kNf4 = {-1.0F,
                                      -0.6961928009986877F,
                                      -0.5250730514526367F,
                                      -0.39491748809814453F,
                                      -0.28444138169288635F,
                                      -0.18477343022823334F,
                                      -0.09105003625154495F,
                                      0.0F,
                                      0.07958029955625534F,
                                      0.16093020141124725F,
                                      0.24611230194568634F,
                                      0.33791524171829224F,
                                      0.44070982933044434F,
                                      0.5626170039176941F,
                                      0.7229568362236023F,
                                      1.0F};
  // A sign, two bits of exponent and one of fraction, over the largest.
  static constexpr QuantCodes kFp4 = {0.0F,       0.0625F / 12, 8.0F / 12,  1.0F,          4.0F / 12,  0.5F,
                                      2.0F / 12,  0.25F,        0.0F,       -0.0625F / 12, -8.0F / 12, -1.0F,
                                      -4.0F / 12, -0.5F,        -2.0F / 12, -0.25F};
  return type == QuantType::kNf4 ? kNf4 : kFp4;
}

/// The two values of each byte, side by side in the 8 bytes of an integer [256]: one look-up finds both.
inline at::Tensor pairs_of(const QuantCodes& codes, bool high_first, c10::Device device) {
  std::vector<float> pairs;
  for (size_t byte = 0; byte < 256; ++byte) {
    const float high = codes[byte >> 4U], low = codes[byte & 15U];
    pairs.insert(pairs.end(), {high_first ? high : low, high_first ? low : high});
  }
  return at::tensor(at::ArrayRef<float>(pairs), at::kFloat).view(at::kLong).to(device);
}

/// How many blocks of `size` values `count` of them make; the last may be shorter.
inline int64_t blocks_of(int64_t count, int64_t size) {
  return (count + size - 1) / size;
}

/// values [count] times the factor of their block: factors [blocks_of(count, size)].
inline void multiply_blocks(const at::Tensor& values, const at::Tensor& factors, int64_t size) {
  const int64_t full = values.numel() / size;
  if (full > 0)
    values.narrow(0, 0, full * size).view({full, size}).mul_(factors.narrow(0, 0, full).unsqueeze(1));
  if (full * size < values.numel())
    values.narrow(0, full * size, values.numel() - full * size).mul_(factors.narrow(0, full, 1));
}

}  // namespace streambp
