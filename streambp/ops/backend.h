// Whose kernels serve a device: the CPU's or CUDA's.
#pragma once

#include <ATen/ATen.h>

namespace streambp {

enum class Backend { kNone, kCpu, kCuda };

/// The CPU and CUDA are served by their own kernels, other devices by ATen alone. The meta device is served
/// by the CPU's, as far as a dry run counts their scratch space and the allocator's rounding, until
/// set_backend says otherwise.
Backend backend_of(c10::DeviceType device);

/// Makes the kernels of `backend` serve `device`: the meta device, for which they compute shapes, or the CPU,
/// where CUDA's kernels have been built for the host (cuda/on_host.h). For the whole process. Throws
/// InputError for any other device.
void set_backend(c10::DeviceType device, Backend backend);

inline bool is_for_cpu(const at::Tensor& x) {
  return backend_of(x.device().type()) == Backend::kCpu;
}
inline bool is_for_cuda(c10::Device device) {
  return backend_of(device.type()) == Backend::kCuda;
}
inline bool is_for_cuda(const at::Tensor& x) {
  return is_for_cuda(x.device());
}

}  // namespace streambp
