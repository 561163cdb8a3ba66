#include "streambp/ops/cuda/library.h"

#include <array>
#include <atomic>
#include <dlfcn.h>
#include <fmt/format.h>
#include <map>
#include <mutex>
#include <utility>

namespace streambp::cuda {
namespace {

const KernelTable* loaded = nullptr;

constexpr int kMostDevices = 64;
std::array<std::atomic<bool>, kMostDevices> refused;

}  // namespace

std::string load_kernels(const std::filesystem::path& library, int device) {
  static std::mutex mutex;
  static std::map<int, std::string> answers;  // of the library's devices
  const std::lock_guard lock(mutex);
  if (const auto known = answers.find(device); known != answers.end()) return known->second;
  void* const handle = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) return dlerror();
  const auto table =
      reinterpret_cast<const KernelTable* (*)(uint64_t)>(dlsym(handle, "streambp_cuda_kernels"));
  if (table == nullptr) return library.string() + ": no kernels in it";
  const KernelTable* const kernels = table(kInterface);
  if (kernels == nullptr) return library.string() + ": of another build";
  const auto refusal = reinterpret_cast<const char* (*)(int)>(dlsym(handle, "streambp_cuda_refusal"));
  std::string& answer = answers[device];
  if (const char* const why = refusal == nullptr ? "it can't be asked" : refusal(device)) {
    answer = fmt::format("{} has no code for GPU {}: {}", library.string(), device, why);
    if (device >= 0 && device < kMostDevices) refused[static_cast<size_t>(device)] = true;
  } else {
    loaded = kernels;
  }
  return answer;
}

bool is_refused(int device) {
  return device >= 0 && device < kMostDevices && refused[static_cast<size_t>(device)];
}

const KernelTable* kernels() {
  return loaded;
}

const KernelTable* set_kernels(const KernelTable* kernels) {
  return std::exchange(loaded, kernels);
}

}  // namespace streambp::cuda
