// A library of kernels that has no code for some GPUs, as libstreambp_cuda.so of other architectures has
// none.
#include "streambp/ops/cuda/library.h"

namespace {
int asked = 0;
}  // namespace

extern "C" const streambp::cuda::KernelTable* streambp_cuda_kernels(uint64_t interface) {
  static const streambp::cuda::KernelTable kernels{};
  return interface == streambp::cuda::kInterface ? &kernels : nullptr;
}

extern "C" const char* streambp_cuda_refusal(int device) {
  ++asked;
  return device == 50 ? "no kernel image is available for execution on the device" : nullptr;
}

extern "C" int times_asked() {
  return asked;
}
