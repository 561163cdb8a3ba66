#include "streambp/distributed/transport/nccl_backend.h"

#include <dlfcn.h>
#include <filesystem>

#include "streambp/error.h"

namespace streambp {

c10::intrusive_ptr<c10d::Backend> open_nccl(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                            std::chrono::milliseconds patience) {
  const auto library = std::filesystem::read_symlink("/proc/self/exe").parent_path() / "libstreambp_nccl.so";
  void* const handle = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr)
    throw InputError("NCCL can't be loaded ({}), expected a build with the CUDA toolkit and nccl.h",
                     dlerror());
  using Open = c10d::Backend* (*)(const c10::intrusive_ptr<c10d::Store>&, int, int, int64_t);
  const auto open = reinterpret_cast<Open>(dlsym(handle, "streambp_open_nccl"));
  if (open == nullptr) throw InputError("{}: of another build", library.string());
  return c10::intrusive_ptr<c10d::Backend>::reclaim(open(store, rank, size, patience.count()));
}

}  // namespace streambp
