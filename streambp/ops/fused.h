// Between the ops and our kernels: which tensors they take, their dtypes, and where work on a GPU goes.
#pragma once

#include <algorithm>
#include <fmt/format.h>
#include <initializer_list>
#include <stdexcept>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include "streambp/ops/backend.h"
#include "streambp/ops/cpu/kernels.h"
#include "streambp/ops/cuda/library.h"
#include "streambp/ops/dry_run.h"
#include "streambp/runtime/torch_private.h"

namespace streambp {

/// Whether kernels of ours serve a device: the CPU, a GPU that the loaded kernels have code for and, for
/// shapes alone, the meta device.
inline bool has_kernels(c10::Device device) {
  return device.is_cuda() ? cuda::kernels() != nullptr && !cuda::is_refused(device.index())
                          : device.is_cpu() || !has_values(device);
}

/// Whether our kernels take these tensors (undefined ones aside): all on one device with kernels, and of one
/// dtype, float32, float64 or bfloat16. Other tensors are left to ATen.
inline bool has_fused_kernels(std::initializer_list<at::Tensor> tensors) {
  const at::Tensor& first = *tensors.begin();
  const at::ScalarType dtype = first.scalar_type();
  if (!has_kernels(first.device())) return false;
  if (dtype != at::kFloat && dtype != at::kDouble && dtype != at::kBFloat16) return false;
  return std::all_of(tensors.begin(), tensors.end(), [&](const at::Tensor& x) {
    return !x.defined() || (x.scalar_type() == dtype && x.device() == first.device());
  });
}

/// Calls body(S{}) with the kernels' type for `dtype`.
template <typename Body>
void with_kernel_dtype(at::ScalarType dtype, Body body) {
  if (dtype == at::kDouble) {
    body(double{});
  } else if (dtype == at::kFloat) {
    body(float{});
  } else {
    body(cpu::Bfloat16{});
  }
}

/// The same for the dtype of x, to launch a kernel on x: does nothing where x has no values.
template <typename Body>
void launch_for(const at::Tensor& x, Body body) {
  if (has_values(x)) with_kernel_dtype(x.scalar_type(), body);
}

/// The queue of the calling thread for x's GPU.
inline cuda::Queue cuda_queue(const at::Tensor& x) {
  if (!x.is_cuda()) return {};
  return {x.get_device(), torch_private::stream_handle(x.device())};
}

/// Throws std::runtime_error where a launch failed.
inline void expect_launched(cuda::Failure failure, const char* kernel) {
  if (failure != nullptr)
    throw std::runtime_error(fmt::format("CUDA kernel '{}' was not launched: {}", kernel, failure));
}

/// Null where x is undefined.
template <typename S>
S* kernel_data(const at::Tensor& x) {
  return x.defined() ? static_cast<S*>(x.data_ptr()) : nullptr;
}

/// How many rows of `size` numbers are worth a thread's while.
inline int64_t rows_per_thread(int64_t size) {
  constexpr int64_t kNumbers = 16384;
  return std::max<int64_t>(1, kNumbers / std::max<int64_t>(1, size));
}

}  // namespace streambp
