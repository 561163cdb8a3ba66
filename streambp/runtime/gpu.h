// What the driver says of a GPU, asked by its own libraries at run time: nothing of CUDA is linked or
// included.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace streambp {

/// What decides how fast a GPU runs just now. What NVML does not tell is absent.
struct GpuState {
  std::optional<double> sm_clock_mhz;
  std::optional<double> memory_clock_mhz;
  std::optional<double> sm_clock_max_mhz;
  std::optional<double> temperature_celsius;
  std::optional<double> power_watts;
  /// NVML's names (power_cap, thermal, ...); empty where it runs freely.
  std::optional<std::vector<std::string>> throttle_reasons;
};

/// What kernels ask of a GPU, an H100 or H200 unless something else is said.
struct GpuLimits {
  int capability = 90;  // 10 times the major number of its compute capability, and the minor one
  int64_t multiprocessors = 132;
  int64_t shared_bytes = 227 * 1024;  // the most shared memory of a block
};

/// Of GPU `index`; none where there is no such GPU.
std::optional<GpuLimits> gpu_limits(int index);

/// The name of GPU `index`; none where there is no such GPU.
std::optional<std::string> gpu_name(int index);

/// Bytes of its memory.
std::optional<int64_t> gpu_memory(int index);

/// Its state; none without NVML.
std::optional<GpuState> gpu_state(int index);

}  // namespace streambp
