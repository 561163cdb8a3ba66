// The numbers that MXFP4 and FP8 weights stand for: transformers' dequantize=True.
#pragma once

#include <string>

#include <ATen/ATen.h>

#include "streambp/model/quantized/packed.h"
#include "streambp/model/quantized/quantized.h"

namespace streambp {

/// Reads the packed parameter `name` into `into`, of its shape and contiguous, in any dtype and on any
/// device; on the meta device nothing is read. A number is a float32 product, value times scale, rounded to
/// `dtype`: the bits that transformers' Mxfp4Dequantize and Fp8Dequantize give a parameter of that dtype.
/// Takes a few tens of megabytes meanwhile, whatever the size.
void unpack_into(const Packing& packing, const FindStored& find, const std::string& name,
                 at::ScalarType dtype, const at::Tensor& into);

}  // namespace streambp
