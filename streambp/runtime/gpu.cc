#include "streambp/runtime/gpu.h"

#include <dlfcn.h>

namespace streambp {
namespace {

/// A function of a library by name; null where it is missing.
template <typename Function>
Function* function_of(void* library, const char* name) {
  return library == nullptr ? nullptr : reinterpret_cast<Function*>(dlsym(library, name));
}

/// The driver's library, and a device of it.
struct Driver {
  void* library = dlopen("libcuda.so.1", RTLD_LAZY);
  int device = 0;

  bool open(int index) {
    const auto init = function_of<int(unsigned)>(library, "cuInit");
    const auto get = function_of<int(int*, int)>(library, "cuDeviceGet");
    return init != nullptr && get != nullptr && init(0) == 0 && get(&device, index) == 0;
  }
};

/// NVML's names for why clocks are lower than they could be (nvmlClocksEventReasons). Idling is none.
struct Reason {
  uint64_t bit;
  const char* name;
};
constexpr Reason kReasons[] = {{0x2, "application_clocks"}, {0x4, "power_cap"},
                               {0x8, "hardware_slowdown"},  {0x10, "sync_boost"},
                               {0x20, "thermal"},           {0x40, "hardware_thermal"},
                               {0x80, "power_brake"},       {0x100, "display_clocks"}};

}  // namespace

std::optional<std::string> gpu_name(int index) {
  Driver driver;
  const auto get_name = function_of<int(char*, int, int)>(driver.library, "cuDeviceGetName");
  char name[256] = {};
  if (get_name == nullptr || !driver.open(index) || get_name(name, sizeof(name), driver.device) != 0)
    return std::nullopt;
  return std::string(name);
}

std::optional<int64_t> gpu_memory(int index) {
  Driver driver;
  const auto get_memory = function_of<int(size_t*, int)>(driver.library, "cuDeviceTotalMem_v2");
  size_t bytes = 0;
  if (get_memory == nullptr || !driver.open(index) || get_memory(&bytes, driver.device) != 0)
    return std::nullopt;
  return static_cast<int64_t>(bytes);
}

std::optional<GpuLimits> gpu_limits(int index) {
  Driver driver;
  const auto ask = function_of<int(int*, int, int)>(driver.library, "cuDeviceGetAttribute");
  if (ask == nullptr || !driver.open(index)) return std::nullopt;
  // CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR, _MULTIPROCESSOR_COUNT,
  // _MAX_SHARED_MEMORY_PER_BLOCK_OPTIN.
  int values[4] = {};
  constexpr int kAttributes[] = {75, 76, 16, 97};
  for (int i = 0; i < 4; ++i) {
    if (ask(&values[i], kAttributes[i], driver.device) != 0) return std::nullopt;
  }
  return GpuLimits{10 * values[0] + values[1], values[2], values[3]};
}

std::optional<GpuState> gpu_state(int index) {
  void* const library = dlopen("libnvidia-ml.so.1", RTLD_LAZY);
  const auto init = function_of<int()>(library, "nvmlInit_v2");
  // By its address on the bus: NVML counts all of the machine's GPUs, CUDA those that it is shown.
  const auto get = function_of<int(const char*, void**)>(library, "nvmlDeviceGetHandleByPciBusId_v2");
  Driver driver;
  const auto get_address = function_of<int(char*, int, int)>(driver.library, "cuDeviceGetPCIBusId");
  char address[64] = {};
  void* device = nullptr;
  if (init == nullptr || get == nullptr || get_address == nullptr || init() != 0 || !driver.open(index) ||
      get_address(address, sizeof(address), driver.device) != 0 || get(address, &device) != 0)
    return std::nullopt;
  GpuState state;
  // clockType 1 is that of the multiprocessors, 2 that of the memory.
  const auto number = [&](std::optional<double>& member, const char* function, unsigned type) {
    const auto ask = function_of<int(void*, unsigned, unsigned*)>(library, function);
    unsigned value = 0;
    if (ask != nullptr && ask(device, type, &value) == 0) member = value;
  };
  number(state.sm_clock_mhz, "nvmlDeviceGetClockInfo", 1);
  number(state.memory_clock_mhz, "nvmlDeviceGetClockInfo", 2);
  number(state.sm_clock_max_mhz, "nvmlDeviceGetMaxClockInfo", 1);
  number(state.temperature_celsius, "nvmlDeviceGetTemperature", 0);
  if (const auto ask = function_of<int(void*, unsigned*)>(library, "nvmlDeviceGetPowerUsage")) {
    unsigned milliwatts = 0;
    if (ask(device, &milliwatts) == 0) state.power_watts = 1e-3 * milliwatts;
  }
  const auto ask =
      function_of<int(void*, unsigned long long*)>(library, "nvmlDeviceGetCurrentClocksThrottleReasons");
  unsigned long long reasons = 0;
  if (ask != nullptr && ask(device, &reasons) == 0) {
    auto& names = state.throttle_reasons.emplace();
    for (const Reason& reason : kReasons) {
      if ((reasons & reason.bit) != 0) names.emplace_back(reason.name);
    }
  }
  return state;
}

}  // namespace streambp
