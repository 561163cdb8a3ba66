#include "streambp/python/guest.h"

#include <dlfcn.h>
#include <filesystem>

#include <ATen/Context.h>

#include "streambp/ops/cuda/library.h"
#include "streambp/runtime/wheel_libraries.h"

namespace streambp::python {
namespace {

/// Where the shared library that holds this function lies.
std::filesystem::path own_folder() {
  Dl_info info{};
  dladdr(reinterpret_cast<const void*>(&own_folder), &info);
  return std::filesystem::path(info.dli_fname).parent_path();
}

std::string load_cuda() {
  open_nvrtc(folder_of_library("libtorch_cpu.so"));
  return cuda::load_kernels(own_folder() / "libstreambp_cuda.so");
}

}  // namespace

GuestScope::GuestScope()
    : no_autocast_(c10::autocast_dispatch_keyset), hooks_(at::SavedTensorDefaultHooks::get_tls_state()) {
  at::SavedTensorDefaultHooks::set_tls_state({});
}

GuestScope::~GuestScope() {
  at::SavedTensorDefaultHooks::set_tls_state(hooks_);
}

void join_device(const std::string& name) {
  const c10::Device device(name);
  if (device.is_cpu()) return;
  if (!device.is_cuda()) throw InputError("device '{}': expected cpu or cuda", name);
  static const std::string failure = load_cuda();
  if (!failure.empty()) TORCH_WARN("streambp: no CUDA kernels of our own: ", failure);
}

}  // namespace streambp::python
