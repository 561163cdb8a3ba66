#include "bench/sweep/gemm_rate.h"

#include <algorithm>
#include <chrono>
#include <limits>

#include <c10/core/Event.h>

#include "streambp/runtime/failure.h"
#include "streambp/runtime/torch_private.h"

namespace streambp::bench {
namespace {

constexpr int64_t kLeast = 512;
constexpr int64_t kMost = 2048;
constexpr double kSecondsOfAProduct = 0.03;
constexpr int kRepeats = 3;
constexpr int64_t kOnGpu = 8192;
constexpr int kRepeatsOnGpu = 10;

/// The shortest of `repeats` products of [size, size] matrices on a GPU, in seconds. Of random numbers: of
/// constant ones the chip draws less power and runs faster.
double shortest_on_gpu(int64_t size, int repeats, at::ScalarType dtype, c10::Device device) {
  const auto options = at::TensorOptions().dtype(dtype).device(device);
  const at::Tensor a = at::randn({size, size}, options), b = at::randn({size, size}, options);
  at::Tensor c = at::empty({size, size}, options);
  const c10::Stream stream = torch_private::current_stream(device);
  double seconds = std::numeric_limits<double>::infinity();
  at::mm_out(c, a, b);
  for (int i = 0; i < repeats; ++i) {
    c10::Event start(device.type(), c10::EventFlag::BACKEND_DEFAULT),
        end(device.type(), c10::EventFlag::BACKEND_DEFAULT);
    start.record(stream);
    at::mm_out(c, a, b);
    end.record(stream);
    end.synchronize();
    seconds = std::min(seconds, 1e-3 * start.elapsedTime(end));
  }
  return seconds;
}

/// The shortest of `repeats` products of [size, size] matrices on the CPU, in seconds.
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

std::optional<double> measure_gemm(at::ScalarType dtype, c10::Device device) {
  try {
    int64_t size = device.is_cuda() ? kOnGpu : kLeast;
    double seconds = device.is_cuda() ? shortest_on_gpu(size, kRepeatsOnGpu, dtype, device)
                                      : shortest(size, kRepeats, dtype);
    while (device.is_cpu() && size < kMost && 8.0 * seconds < kSecondsOfAProduct) {
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

}  // namespace streambp::bench
