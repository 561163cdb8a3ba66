// What the driver says of a GPU, asked by its own libraries at run time: nothing of CUDA is linked or
// included.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

namespace streambp {

/// The name of GPU `index`; null where there is none.
nlohmann::json gpu_name(int index);

/// Bytes of its memory.
std::optional<int64_t> gpu_memory(int index);

/// What bears on how fast it is just now: sm_clock_mhz, memory_clock_mhz, sm_clock_max_mhz,
/// temperature_celsius, power_watts, and throttle_reasons, a list of NVML's names (power_cap, thermal, ...),
/// empty where it runs freely. Null where NVML is not there.
nlohmann::json gpu_state(int index);

}  // namespace streambp
