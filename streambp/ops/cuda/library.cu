// libstreambp_cuda.so: the kernels compiled for the GPU, loaded by library.cc where there is one.
#include "streambp/ops/cuda/library.h"
#include "streambp/ops/cuda/table.cuh"

extern "C" const streambp::cuda::KernelTable* streambp_cuda_kernels(uint64_t interface) {
  static const streambp::cuda::KernelTable kernels = streambp::cuda::all_kernels();
  return interface == streambp::cuda::kInterface ? &kernels : nullptr;
}

/// Null, or what CUDA says where none of the architectures that the library was built for runs on GPU
/// `device`.
extern "C" const char* streambp_cuda_refusal(int device) {
  cudaFuncAttributes attributes;
  cudaError_t error = cudaSetDevice(device);
  if (error == cudaSuccess)
    error = cudaFuncGetAttributes(&attributes, streambp::cuda::norm_rope_forward<float, 8, 1>);
  cudaGetLastError();  // or the next launch would report it
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}
