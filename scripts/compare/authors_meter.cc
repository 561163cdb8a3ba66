// What the meter takes from torch_private.h, for a CPU and for versions of torch before those that the
// project builds with. It is compiled with the meter's own sources against the authors' torch
// (authors_environment.py), so that both sides of a comparison are counted by the same code.

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>

#include "streambp/runtime/torch_private.h"

namespace streambp::torch_private {

void set_allocators(c10::Allocator& cpu, c10::Allocator& meta) {
  constexpr uint8_t kBeforeAllOthers = 255;
  c10::SetCPUAllocator(&cpu, kBeforeAllOthers);
  c10::SetAllocator(c10::DeviceType::Meta, &meta, kBeforeAllOthers);
}

void hear_blocks(std::function<void(void*, int64_t, c10::Device)>) {}

void reset_gpu_peaks(c10::Device) {}

GpuMemory gpu_memory(c10::Device) {
  return {};
}

}  // namespace streambp::torch_private
