// The little of CUDA that our kernels are written in. Under nvcc it is CUDA's own; under a C++ compiler the
// same words run a grid on the host (on_host.h), so that the kernels' very source is tested on machines
// without a GPU.
#pragma once

#include <cstddef>
#include <cstdint>

#include "streambp/ops/cuda/kernels.h"

#ifdef __CUDACC__

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#define STREAMBP_GLOBAL __global__
#define STREAMBP_DEVICE __device__ __forceinline__
#define STREAMBP_UNROLL _Pragma("unroll")

namespace streambp::cuda {

STREAMBP_DEVICE int thread_index() {
  return static_cast<int>(threadIdx.x);
}
STREAMBP_DEVICE int thread_count() {
  return static_cast<int>(blockDim.x);
}
STREAMBP_DEVICE int64_t block_index() {
  return blockIdx.x;
}
STREAMBP_DEVICE int64_t block_count() {
  return gridDim.x;
}

/// Waits for all threads of the block.
STREAMBP_DEVICE void barrier() {
  __syncthreads();
}

/// The value of the thread whose lane differs from this one's by `mask`. All threads of a warp call it.
template <typename T>
STREAMBP_DEVICE T shuffle_xor(T value, int mask) {
  return __shfl_xor_sync(0xffffffffU, value, mask);
}

/// The block's shared memory.
template <typename T>
STREAMBP_DEVICE T* shared_memory() {
  extern __shared__ __align__(16) unsigned char streambp_shared[];
  return reinterpret_cast<T*>(streambp_shared);
}

/// Puts a kernel into the queue, with `shared_bytes` of shared memory for each block.
template <typename... Parameters, typename... Arguments>
Failure launch(const Queue& queue, void (*kernel)(Parameters...), int64_t blocks, int threads,
               size_t shared_bytes, Arguments... arguments) {
  if (blocks == 0) return nullptr;
  constexpr size_t kWithoutAsking = 48 * 1024;
  cudaError_t error = cudaSetDevice(queue.device);
  if (error == cudaSuccess && shared_bytes > kWithoutAsking) {
    error = cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                                 cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared_bytes));
  }
  if (error == cudaSuccess) {
    kernel<<<static_cast<unsigned>(blocks), static_cast<unsigned>(threads), shared_bytes,
             static_cast<cudaStream_t>(queue.stream)>>>(arguments...);
    error = cudaGetLastError();
  }
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}

}  // namespace streambp::cuda

#else

#include "streambp/ops/cuda/on_host.h"

#endif

namespace streambp::cuda {

/// Threads of a block, and the warps they make.
inline constexpr int kThreads = 256;
inline constexpr int kWarp = 32;

/// Blocks that share out `items`, `each` a block, in several rounds where there are more than a grid needs:
/// enough to fill any GPU many times.
inline int64_t blocks_for(int64_t items, int64_t each) {
  constexpr int64_t kMost = 1 << 20;
  const int64_t blocks = (items + each - 1) / each;
  return blocks < kMost ? blocks : kMost;
}

}  // namespace streambp::cuda
