// The speed of a machine's matrix product, to which records relate a method's time.
#pragma once

#include <optional>

#include <ATen/ATen.h>

namespace streambp::bench {

/// Floating-point operations per second of the best of a few square products in `dtype`: on the CPU, with the
/// threads that are set, 512 to 2048 wide, as large as fits into about a tenth of a second; on a GPU 8192
/// wide. Nothing where memory for the three matrices is refused.
std::optional<double> measure_gemm(at::ScalarType dtype, c10::Device device = at::kCPU);

}  // namespace streambp::bench
