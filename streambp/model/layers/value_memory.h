// The memory of a tensor that comes and goes while the tensor itself stays: its shape, and its views.
#pragma once

#include <ATen/ATen.h>

namespace streambp {

/// Frees the memory of `tensor`'s whole storage. The tensor and its views keep their shapes, dtype and
/// device; nobody may read or write them until there is memory again.
void free_memory(const at::Tensor& tensor) noexcept;

/// Gives the tensor's storage, where it has none, memory of its size, uninitialised. Its views share it.
/// Throws OutOfMemory (or c10's).
void allocate_memory(const at::Tensor& tensor);

/// Gives `tensor`, which has none, the memory of `from`: a tensor of as many bytes on the same device that
/// nobody else reads, and nobody does afterwards.
void move_memory(const at::Tensor& from, const at::Tensor& tensor);

}  // namespace streambp
