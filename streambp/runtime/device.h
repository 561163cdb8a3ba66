// Devices by name, made ready for work.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

namespace streambp {

struct DeviceOptions {
  /// Bytes that the CUDA caching allocator may hold at most, so that a larger GPU stands for a smaller one.
  std::optional<int64_t> memory_limit = std::nullopt;
  /// Equal passes give equal bits: ATen and cuBLAS leave out what adds up in any order.
  bool deterministic = false;
};

/// A device by name: cpu, cuda, cuda:1, meta, and meta:cuda, the meta device that stands for a GPU (see
/// backend.h). For cuda, loads torch's CUDA library and our kernels; to be called once then, before anything
/// else asks for CUDA. Throws InputError where that library or a device is missing, for a limit beyond the
/// device's memory, and for options that mean nothing to the device: the CPU's passes repeat to the bit
/// anyway, its limit and the meta device's are set_memory_limit's.
c10::Device open_device(const std::string& name, const DeviceOptions& options = {});

/// While it lives, the meta device stands for `device`, the CPU or CUDA: a dry run counts the scratch space
/// of that device's kernels, what cuBLAS keeps, and its allocator's rounding. Nests; one for the device that
/// meta stands for already changes nothing.
class MetaStandIn {
 public:
  explicit MetaStandIn(c10::DeviceType device);
  ~MetaStandIn();
  MetaStandIn(const MetaStandIn&) = delete;
  MetaStandIn& operator=(const MetaStandIn&) = delete;

 private:
  c10::DeviceType before_;
  at::Tensor blas_workspace_;
};

}  // namespace streambp
