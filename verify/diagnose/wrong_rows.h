// A matrix whose gradient is wrong in some of its rows or columns alone.
#pragma once

#include <string>

#include <ATen/ATen.h>

namespace streambp::verify {

/// A gradient this much smaller than the truth is none.
inline constexpr double kNoGradient = 1e-12;

/// The rows of a gradient, or else its columns, that are off its truth where most are not, in words; empty
/// where that says nothing.
std::string wrong_rows_text(const at::Tensor& gradient, const at::Tensor& truth, double limit);

}  // namespace streambp::verify
