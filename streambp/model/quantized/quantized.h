// Weights in 4 or 8 bits and the numbers that they stand for: bitsandbytes' formats and rounding.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include <ATen/ATen.h>

#include "streambp/model/files/safetensors.h"
#include "streambp/model/quantized/quantization.h"

namespace streambp {

/// A matrix [out, in] in 4 or 8 bits, on one device. What it stands for is a float32 product, code times
/// maximum, rounded to `dtype`: the bits that bitsandbytes' dequantize_4bit and int8_vectorwise_dequant give.
/// A model of another dtype takes these values: a wider one as they are, a narrower one rounds them again.
struct QuantizedTensor {
  QuantType type = QuantType::kNf4;
  std::vector<int64_t> shape;
  at::ScalarType dtype = at::kFloat;  // int8: float32
  at::Tensor packed;      // 4 bits: uint8 [(values + 1) / 2], the first value high; int8 [out, in]
  at::Tensor absmax;      // float32 [blocks], or uint8 codes of it; int8: float32 [out]
  int64_t blocksize = 0;  // of 4 bits: values that share a maximum, across rows
  // Double quantisation: maximum = code[absmax] * nested_absmax + nested_offset.
  at::Tensor nested_absmax;  // float32 [blocks of maxima]; undefined: absmax is float32
  at::Tensor nested_code;    // float32 [256]
  int64_t nested_blocksize = 0;
  double nested_offset = 0.0;

  bool nested() const { return nested_absmax.defined(); }
  /// Of all its tensors.
  int64_t bytes() const;
};

/// `value` [out, in] (float32, bfloat16 or float16; float64 is rounded to float32 first) as bitsandbytes
/// 0.50 quantises it on the CPU: nf4 and fp4 in blocks of 64, their maxima where they have 8 bits in blocks
/// of 256; int8 by rows of its float16 values, without outliers. On the device of `value`; on meta shapes
/// alone.
QuantizedTensor quantize(const at::Tensor& value, const Quantization& quantization);

/// Writes the values into `into`, contiguous, of the shape and on the device of `quantized`: in one call of
/// our kernels, which allocates nothing; into float16, and on devices without them, as dequantize_plain does.
void dequantize_into(const QuantizedTensor& quantized, const at::Tensor& into);

/// The same bits by ops of ATen, which take a few tens of megabytes meanwhile, whatever the size.
void dequantize_plain(const QuantizedTensor& quantized, const at::Tensor& into);

/// Whether a parameter that is stored so has 4 or 8 bits.
bool is_quantized(const StoredTensor& stored);

/// Where a tensor of this name is: Checkpoint::stored, or what quantized_entries gives.
using FindStored = std::function<const StoredTensor&(const std::string&)>;

/// The quantised parameter `name`, of `shape`, read onto `device`. Throws InputError naming file and tensor
/// for a quant_map that is not its type's.
QuantizedTensor read_quantized(const FindStored& find, const std::string& name,
                               const std::vector<int64_t>& shape, c10::Device device);

/// Adds the tensors that bitsandbytes stores `quantized` in as the parameter that files call `name`.
void add_stored(const QuantizedTensor& quantized, const std::string& name,
                std::map<std::string, at::Tensor>& tensors);

}  // namespace streambp
