// libstreambp_cuda.so: the kernels compiled for the GPU, loaded by library.cc where there is one.
#include "streambp/ops/cuda/library.h"
#include "streambp/ops/cuda/table.cuh"

extern "C" const streambp::cuda::Kernels* streambp_cuda_kernels(uint64_t interface) {
  static const streambp::cuda::Kernels kernels = streambp::cuda::all_kernels();
  return interface == streambp::cuda::kInterface ? &kernels : nullptr;
}
