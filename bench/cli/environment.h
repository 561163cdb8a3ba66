// The machine and the program that a record was measured by.
#pragma once

#include <ctime>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "streambp/runtime/gpu.h"

namespace streambp {

/// The version of the project, its commit and whether the sources had been changed since: "0.1.0
/// (343d89e12ab4, modified)".
std::string version_text();

/// The libraries that the program was compiled with: "torch 2.11.0, fmt 12.1.0, nlohmann/json 3.11.2, CLI11
/// 2.1.2, g++ 12.2.0"; `others` ("Eigen 3.4.0") before the compiler.
std::string libraries_text(std::vector<std::string> others = {});

/// The machine and the program, as the member `environment` of a record:
/// cpu (model name), cores (that this process may use), gpu (name; null on the CPU and the meta device),
/// gpu_driver (its version, where there is a gpu), threads, host_memory_bytes, torch, compiler, commit (40
/// digits, or "unknown" for a build without git), modified (sources differ from the commit), date (now, ISO
/// 8601, UTC), argv (`arguments`). `cuda_index` is the number of the CUDA device in use, below 0 for none.
nlohmann::json describe_environment(int threads, int cuda_index, const std::vector<std::string>& arguments);

/// The driver's version in the first line of /proc/driver/nvidia/version, "unknown" without one.
std::string driver_version_in(std::string_view line);

/// The members `gpu_before` and `gpu_after` of a record: what NVML tells of the GPU, null without it.
nlohmann::json gpu_state_member(const std::optional<GpuState>& state);

/// ISO 8601, UTC, to the second: the member `date`. Texts of equal length are in the order of their times.
std::string utc_text(std::time_t time);

/// The number of processors that this process may use.
int usable_cores();

/// What --threads is where it is not given: OMP_NUM_THREADS (its first number, from 1 to 4096), else
/// usable_cores().
int default_threads();

}  // namespace streambp
