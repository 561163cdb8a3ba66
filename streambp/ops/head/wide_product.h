// Products of half-precision matrices that are summed wider than they are stored.
#pragma once

#include <ATen/ATen.h>

namespace streambp {

/// sum += scale rows^T inputs in float32, for rows [n, out] and inputs [n, in] in half precision and a
/// float32 sum [out, in]. On a GPU its tensor cores do so, on a CPU that multiplies bfloat16 its oneDNN
/// kernels; elsewhere the operands are widened first.
void add_wide_product(at::Tensor sum, const at::Tensor& rows, const at::Tensor& inputs, double scale);

/// The same where the sum is as narrow as its operands and `remainder`, like it, is what rounding has left
/// out of it so far: together they have about 16 bits, and the sum by itself is always rounded right. Some
/// rows of the sum are widened at a time.
void add_product_with_remainder(const at::Tensor& sum, const at::Tensor& remainder, const at::Tensor& rows,
                                const at::Tensor& inputs, double scale);

}  // namespace streambp
