// CUDA's kernels at work on the CPU, for tests of their launches and of their source without a GPU.
#pragma once

#include "streambp/ops/backend.h"
#include "streambp/ops/cuda/library.h"

namespace streambp {

/// While it lives, `kernels` serve tensors on the CPU as if they lay on a GPU.
class ServeCpu {
 public:
  explicit ServeCpu(const cuda::KernelTable& kernels) : outer_(cuda::set_kernels(&kernels)) {
    set_backend(c10::DeviceType::CPU, Backend::kCuda);
  }
  ~ServeCpu() {
    set_backend(c10::DeviceType::CPU, Backend::kCpu);
    cuda::set_kernels(outer_);
  }
  ServeCpu(const ServeCpu&) = delete;
  ServeCpu& operator=(const ServeCpu&) = delete;

 private:
  const cuda::KernelTable* outer_;
};

}  // namespace streambp
