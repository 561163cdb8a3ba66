#include "streambp/driver/environment.h"

#include <ctime>
#include <dlfcn.h>
#include <fmt/format.h>
#include <fstream>
#include <sched.h>
#include <string_view>
#include <thread>
#include <unistd.h>

#include <torch/version.h>

#include "streambp_commit.h"

namespace streambp {
namespace {

std::string cpu_name() {
  std::ifstream cpuinfo("/proc/cpuinfo");
  for (std::string line; std::getline(cpuinfo, line);) {
    const size_t colon = line.find(": ");
    if (line.starts_with("model name") && colon != std::string::npos) return line.substr(colon + 2);
  }
  return "unknown";
}

/// By the driver's own interface, so that nothing of CUDA is linked or included. Null where it can't be
/// asked.
nlohmann::json gpu_name(int index) {
  void* const driver = dlopen("libcuda.so.1", RTLD_LAZY);
  if (driver == nullptr) return nullptr;
  const auto init = reinterpret_cast<int (*)(unsigned)>(dlsym(driver, "cuInit"));
  const auto get = reinterpret_cast<int (*)(int*, int)>(dlsym(driver, "cuDeviceGet"));
  const auto get_name = reinterpret_cast<int (*)(char*, int, int)>(dlsym(driver, "cuDeviceGetName"));
  if (init == nullptr || get == nullptr || get_name == nullptr) return nullptr;
  char name[256] = {};
  int device = 0;
  if (init(0) != 0 || get(&device, index) != 0 || get_name(name, sizeof(name), device) != 0) return nullptr;
  return std::string(name);
}

std::string compiler_name() {
#if defined(__clang__)
  return "clang " __clang_version__;
#else
  return "g++ " __VERSION__;
#endif
}

std::string utc_now() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  gmtime_r(&now, &parts);
  char text[32];
  std::strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text;
}

}  // namespace

std::string version_text() {
  return fmt::format("{} ({}{})", STREAMBP_VERSION, std::string_view(kCommit).substr(0, 12),
                     kModified ? ", modified" : "");
}

int usable_cores() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof(set), &set) == 0) return CPU_COUNT(&set);
  return static_cast<int>(std::thread::hardware_concurrency());
}

nlohmann::json describe_environment(int threads, int cuda_index, const std::vector<std::string>& arguments) {
  const int64_t memory = static_cast<int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGE_SIZE);
  return {{"cpu", cpu_name()},
          {"cores", usable_cores()},
          {"gpu", cuda_index >= 0 ? gpu_name(cuda_index) : nlohmann::json(nullptr)},
          {"threads", threads},
          {"host_memory_bytes", memory},
          {"torch", TORCH_VERSION},
          {"compiler", compiler_name()},
          {"commit", kCommit},
          {"modified", kModified},
          {"date", utc_now()},
          {"argv", arguments}};
}

}  // namespace streambp
