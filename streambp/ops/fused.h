// Between the ops and our CPU kernels: which tensors the kernels take, and their dtypes.
#pragma once

#include <algorithm>
#include <initializer_list>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include "streambp/ops/cpu/kernels.h"

namespace streambp {

/// Whether our kernels take these tensors (undefined ones aside): all on the CPU or, where only shapes are
/// computed, on the meta device, and of one dtype, float32, float64 or bfloat16. Other tensors are left to
/// ATen.
inline bool has_fused_kernels(std::initializer_list<at::Tensor> tensors) {
  const at::Tensor& first = *tensors.begin();
  const at::ScalarType dtype = first.scalar_type();
  if (!first.is_cpu() && !first.is_meta()) return false;
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
