// Memory as the allocator sees it: live bytes, the peak, what was alive at the peak and in whose name, and a
// limit.
//
// Every tensor of a device passes through one allocator. On the CPU and on the meta device (shapes without
// storage) that allocator is ours and keeps a ledger; on CUDA the caching allocator's own statistics are
// read, and what it reports of single blocks is entered in a ledger by scope. What never passes through it is
// not counted: scratch space inside BLAS libraries, thread stacks, the program itself.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include <c10/core/Device.h>

namespace streambp {

/// Names the allocations made while it lives (weights, layer inputs, chunk, logits, ...); the innermost scope
/// counts. Scopes belong to a thread, so that passes may run in several at once. A thread that has opened
/// none takes the one that was opened last: autograd may run on a thread of its own while the caller waits.
class MemoryScope {
 public:
  explicit MemoryScope(const char* name);
  ~MemoryScope();
  MemoryScope(const MemoryScope&) = delete;
  MemoryScope& operator=(const MemoryScope&) = delete;

 private:
  int outer_;
};

/// Puts the allocations made while it lives on another ledger, that of the host's memory:
/// for what is kept off the device on purpose. On CUDA such memory is the host's anyway; on the CPU and the
/// meta device the ledger is all that tells the two apart.
class HostMemoryScope {
 public:
  HostMemoryScope();
  ~HostMemoryScope();
  HostMemoryScope(const HostMemoryScope&) = delete;
  HostMemoryScope& operator=(const HostMemoryScope&) = delete;

 private:
  bool outer_;
};

/// What the meter of a device has seen since the last reset_peak().
struct MemoryReading {
  int64_t live_bytes = 0;
  int64_t peak_bytes = 0;
  std::map<std::string, int64_t> at_peak;  // bytes by scope, summing to peak_bytes
  int64_t host_peak_bytes = 0;             // the most that was alive in the host's memory on purpose
  // On CUDA alone, 0 elsewhere. The caching allocator holds whole segments, and the driver a context,
  // cuBLAS's and cuDNN's code and other processes' memory in addition.
  int64_t reserved_peak_bytes = 0;
  int64_t device_bytes = 0;  // in use on the device when it was read, by whomever
};

/// Puts the counting allocators in place. Call once, before the first tensor: what was allocated earlier is
/// not seen.
void install_meters();

/// Enters what the CUDA caching allocator gives and takes back in a ledger, under the scopes, for this thread
/// and those that run its backward passes. Call once, before the first tensor on the device.
void install_cuda_meter();

/// Rounds the meta device's blocks up to whole multiples of `bytes`, as the allocator of the device that it
/// stands for does; 1: not at all.
void set_meta_block_bytes(int64_t bytes);

/// Starts a new measurement on `device` and of the host's memory: the peak becomes what is alive now.
void reset_peak(c10::Device device);

MemoryReading read_meter(c10::Device device);

/// Sets how many bytes may be alive at once on the CPU or the meta device; an allocation beyond throws
/// OutOfMemory. 0 removes the limit.
void set_memory_limit(c10::DeviceType device, int64_t bytes);
int64_t memory_limit(c10::DeviceType device);

/// The same of the host's memory.
void set_host_memory_limit(int64_t bytes);

/// Bytes this process could still take on this machine: the smaller of the system's available memory and what
/// its control group leaves. The kernel overcommits and kills later; a limit below this turns that into an
/// exception.
int64_t available_memory();

}  // namespace streambp
