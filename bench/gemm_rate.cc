#include "bench/gemm_rate.h"

#include <algorithm>
#include <chrono>

#include "streambp/driver/failure.h"

namespace streambp {
namespace {

constexpr int64_t kLeast = 512;
constexpr int64_t kMost = 2048;
constexpr double kSecondsOfAProduct = 0.08;
constexpr int kRepeats = 3;

/// The shortest of `repeats` products of [size, size] matrices, in seconds.
double shortest(int64_t size, int repeats, at::ScalarType dtype) {
  const auto options = at::TensorOptions().dtype(dtype);
  const at::Tensor a = at::full({size, size}, 0.5, options), b = at::full({size, size}, 0.25, options);
  at::Tensor c = at::empty({size, size}, options);
  double seconds = 0.0;
  for (int i = 0; i < repeats; ++i) {
    const auto start = std::chrono::steady_clock::now();
    at::mm_out(c, a, b);
    const double taken = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    seconds = i == 0 ? taken : std::min(seconds, taken);
  }
  return seconds;
}

}  // namespace

std::optional<double> measure_gemm(at::ScalarType dtype) {
  try {
    int64_t size = kLeast;
    double seconds = shortest(size, kRepeats, dtype);
    while (size < kMost && 8.0 * seconds < kSecondsOfAProduct) {
      size *= 2;
      seconds = shortest(size, kRepeats, dtype);
    }
    const auto width = static_cast<double>(size);
    return 2.0 * width * width * width / seconds;
  } catch (const std::exception& error) {
    if (!is_out_of_memory(error)) throw;
    return std::nullopt;
  }
}

}  // namespace streambp
