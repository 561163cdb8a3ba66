// Quantised matrices of random bytes, for tests of what they stand for.
#pragma once

#include <vector>

#include "streambp/model/quantized/quantized.h"

namespace streambp {

struct RandomQuantized {
  QuantType type = QuantType::kNf4;
  std::vector<int64_t> shape;
  int64_t blocksize = 64;
  int64_t nested_blocksize = 0;  // 0: maxima of 32 bits
  at::ScalarType dtype = at::kFloat;
};

/// Maxima from what half precision has no normal numbers for to what it has none at all for. Of three, one
/// lies halfway between two numbers of half precision and one between two of bfloat16: so does what has a
/// code of 1.
inline QuantizedTensor random_quantized(const RandomQuantized& of, uint64_t seed) {
  const at::Generator generator = at::detail::createCPUGenerator(seed);
  const auto bytes = [&](int64_t count) {
    return at::randint(0, 256, {count}, generator, at::TensorOptions().dtype(at::kByte));
  };
  const auto maxima = [&](int64_t count) {
    const at::Tensor sizes = at::pow(10.0, at::rand({count}, generator, at::kFloat) * 16.0 - 10.0);
    const at::Tensor bits = sizes.view(at::kInt);
    bits.slice(0, 0, count, 3).bitwise_and_(~0x1fff).bitwise_or_(0x1000);
    bits.slice(0, 1, count, 3).bitwise_and_(~0xffff).bitwise_or_(0x8000);
    return sizes;
  };
  const auto blocks_of = [](int64_t numbers, int64_t size) { return (numbers + size - 1) / size; };
  const int64_t count = of.shape[0] * of.shape[1];
  QuantizedTensor quantized;
  quantized.type = of.type;
  quantized.shape = of.shape;
  quantized.dtype = of.dtype;
  if (of.type == QuantType::kInt8) {
    quantized.packed = bytes(count).view(at::kChar).view(of.shape);
    quantized.absmax = maxima(of.shape[0]);
    return quantized;
  }
  const int64_t blocks = blocks_of(count, of.blocksize);
  quantized.packed = bytes(blocks_of(count, 2));
  quantized.blocksize = of.blocksize;
  quantized.absmax = of.nested_blocksize == 0 ? maxima(blocks) : bytes(blocks);
  if (of.nested_blocksize == 0) return quantized;
  quantized.nested_absmax = maxima(blocks_of(blocks, of.nested_blocksize));
  quantized.nested_code = at::rand({256}, generator, at::kFloat) * 2.0 - 1.0;
  quantized.nested_blocksize = of.nested_blocksize;
  quantized.nested_offset = 0.037;
  return quantized;
}

/// Of each type and each dtype that was quantised: sizes around those of blocks, registers, packs of 16 bytes
/// and what a thread takes at once; odd ones.
inline std::vector<RandomQuantized> random_kinds() {
  std::vector<RandomQuantized> kinds;
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const QuantType type : {QuantType::kNf4, QuantType::kFp4}) {
      for (const int64_t count : {1, 2, 3, 7, 8, 9, 15, 17, 31, 32, 33, 63, 64, 65, 129, 4095, 4097, 20001}) {
        kinds.push_back({type, {1, count}, 64, 0, dtype});
        kinds.push_back({type, {count, 1}, 32, 32, dtype});
      }
      kinds.push_back({type, {131, 67}, 4096, 256, dtype});
      kinds.push_back({type, {257, 64}, 64, 256, dtype});
    }
  }
  for (const int64_t width : {1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 33, 64, 515, 4097})
    kinds.push_back({QuantType::kInt8, {5, width}});
  return kinds;
}

/// Whether all bytes are.
inline bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  const auto bytes = [](const at::Tensor& x) { return x.contiguous().view({-1}).view(at::kByte); };
  return a.scalar_type() == b.scalar_type() && at::equal(bytes(a), bytes(b));
}

}  // namespace streambp
