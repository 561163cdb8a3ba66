#include "streambp/ops/cuda/library.h"

#include <dlfcn.h>
#include <utility>

namespace streambp::cuda {
namespace {

const Kernels* loaded = nullptr;

}  // namespace

std::string load_kernels(const std::filesystem::path& library) {
  if (loaded != nullptr) return {};
  void* const handle = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) return dlerror();
  const auto table = reinterpret_cast<const Kernels* (*)(uint64_t)>(dlsym(handle, "streambp_cuda_kernels"));
  if (table == nullptr) return library.string() + ": no kernels in it";
  loaded = table(kInterface);
  return loaded != nullptr ? std::string() : library.string() + ": of another build";
}

const Kernels* kernels() {
  return loaded;
}

const Kernels* set_kernels(const Kernels* kernels) {
  return std::exchange(loaded, kernels);
}

}  // namespace streambp::cuda
