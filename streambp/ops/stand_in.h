// Whose kernels serve a tensor: the CPU's, or CUDA's.
#pragma once

#include <ATen/ATen.h>

namespace streambp {

/// For which device the meta device's shapes are computed: its kernels' scratch space and its allocator's
/// rounding are what a dry run counts. The CPU until this is called. Throws InputError for a device other
/// than these two.
void set_meta_stands_for(c10::DeviceType device);
c10::DeviceType meta_stands_for();

/// Whether the device is CUDA's, or the meta device while that stands for it.
bool is_for_cuda(c10::Device device);

/// Whether x is CUDA's to work on: lies on such a device (or on the CPU while a test makes CUDA's kernels
/// serve it).
bool is_for_cuda(const at::Tensor& x);

}  // namespace streambp
