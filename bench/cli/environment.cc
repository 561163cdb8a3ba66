#include "bench/cli/environment.h"

#include <CLI/Version.hpp>
#include <charconv>
#include <cstdlib>
#include <ctime>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <fstream>
#include <sched.h>
#include <sstream>
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

std::string driver_version() {
  std::ifstream said("/proc/driver/nvidia/version");
  std::string line;
  std::getline(said, line);
  return driver_version_in(line);
}

std::string compiler_name() {
#if defined(__clang__)
  return "clang " __clang_version__;
#else
  return "g++ " __VERSION__;
#endif
}

}  // namespace

std::string version_text() {
  return fmt::format("{} ({}{})", STREAMBP_VERSION, std::string_view(kCommit).substr(0, 12),
                     kModified ? ", modified" : "");
}

std::string libraries_text(std::vector<std::string> others) {
  others.push_back(compiler_name());
  return fmt::format("torch {}, fmt {}.{}.{}, nlohmann/json {}.{}.{}, CLI11 {}, {}", TORCH_VERSION,
                     FMT_VERSION / 10000, FMT_VERSION / 100 % 100, FMT_VERSION % 100,
                     NLOHMANN_JSON_VERSION_MAJOR, NLOHMANN_JSON_VERSION_MINOR, NLOHMANN_JSON_VERSION_PATCH,
                     CLI11_VERSION, fmt::join(others, ", "));
}

std::string utc_text(std::time_t time) {
  std::tm parts{};
  gmtime_r(&time, &parts);
  char text[32];
  std::strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text;
}

int usable_cores() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof(set), &set) == 0) return CPU_COUNT(&set);
  return static_cast<int>(std::thread::hardware_concurrency());
}

int default_threads() {
  const char* const given = std::getenv("OMP_NUM_THREADS");
  const std::string_view text = given == nullptr ? "" : given;
  int threads = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), threads);
  const bool whole = end == text.data() + text.size() || *end == ',';  // a list is of nested regions
  return error == std::errc() && whole && threads >= 1 && threads <= 4096 ? threads : usable_cores();
}

nlohmann::json gpu_state_member(const std::optional<GpuState>& state) {
  if (!state) return nullptr;
  nlohmann::json member = nlohmann::json::object();
  const auto add = [&](const char* name, const auto& value) {
    if (value) member[name] = *value;
  };
  add("sm_clock_mhz", state->sm_clock_mhz);
  add("memory_clock_mhz", state->memory_clock_mhz);
  add("sm_clock_max_mhz", state->sm_clock_max_mhz);
  add("temperature_celsius", state->temperature_celsius);
  add("power_watts", state->power_watts);
  add("throttle_reasons", state->throttle_reasons);
  return member;
}

std::string driver_version_in(std::string_view line) {
  std::istringstream words{std::string(line)};
  for (std::string word; words >> word;) {
    const bool numbers = word.find_first_not_of("0123456789.") == std::string::npos;
    if (numbers && word.find('.') != std::string::npos) return word;
  }
  return "unknown";
}

nlohmann::json describe_environment(int threads, int cuda_index, const std::vector<std::string>& arguments) {
  const int64_t memory = static_cast<int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGE_SIZE);
  const std::optional<std::string> gpu = cuda_index >= 0 ? gpu_name(cuda_index) : std::nullopt;
  nlohmann::json made = {{"cpu", cpu_name()},
                         {"cores", usable_cores()},
                         {"gpu", gpu ? nlohmann::json(*gpu) : nlohmann::json(nullptr)},
                         {"threads", threads},
                         {"host_memory_bytes", memory},
                         {"torch", TORCH_VERSION},
                         {"compiler", compiler_name()},
                         {"commit", kCommit},
                         {"modified", kModified},
                         {"date", utc_text(std::time(nullptr))},
                         {"argv", arguments}};
  if (gpu) made["gpu_driver"] = driver_version();
  return made;
}

}  // namespace streambp
