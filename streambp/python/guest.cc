#include "streambp/python/guest.h"

#include <dlfcn.h>
#include <filesystem>
#include <mutex>
#include <set>

#include <ATen/Context.h>

#include "streambp/ops/cuda/library.h"
#include "streambp/ops/cuda/scratch.h"
#include "streambp/runtime/gpu.h"
#include "streambp/runtime/wheel_libraries.h"

namespace streambp::python {
namespace {

/// Where the shared library that holds this function lies.
std::filesystem::path own_folder() {
  Dl_info info{};
  dladdr(reinterpret_cast<const void*>(&own_folder), &info);
  return std::filesystem::path(info.dli_fname).parent_path();
}

std::string load_cuda(int device, bool is_first) {
  open_nvrtc(folder_of_library("libtorch_cpu.so"));
  if (const auto limits = gpu_limits(device); is_first && limits) cuda::set_card(*limits);
  return cuda::load_kernels(own_folder() / "libstreambp_cuda.so", device);
}

}  // namespace

void join_device(const std::string& name) {
  const c10::Device device(name);
  if (device.is_cpu()) return;
  if (!device.is_cuda()) throw InputError("device '{}': expected cpu or cuda", name);
  static std::mutex mutex;
  static std::set<int> joined;
  const std::lock_guard lock(mutex);
  const int index =
      device.has_index() ? device.index() : torch_private::current_stream(device).device_index();
  if (!joined.insert(index).second) return;
  const std::string failure = load_cuda(index, /*is_first=*/joined.size() == 1);
  if (!failure.empty()) TORCH_WARN("streambp: no CUDA kernels of our own, ATen's serve: ", failure);
}

}  // namespace streambp::python
