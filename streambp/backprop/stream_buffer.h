// A tensor with a row for each token of the stream, on the model's device or in the host's memory.
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/ATen.h>

namespace streambp {

/// Where a streamed backward pass keeps what it needs of each layer.
enum class Offload {
  kNone,  // on the model's device
  kHost,  // in the host's memory; chunks are copied to the device when their turn comes
};

/// [N, ...] rows that chunks are written to and read from. Undefined until it is allocated.
class StreamBuffer {
 public:
  StreamBuffer() = default;
  /// Uninitialised rows of `shape`, on the device of `options` or beside it. Where the device is the CPU
  /// itself or has no memory at all (meta), the host's memory is a ledger of its own: see HostMemoryScope.
  StreamBuffer(const std::vector<int64_t>& shape, const at::TensorOptions& options, Offload offload);

  bool defined() const { return rows_.defined(); }
  bool on_host() const { return on_host_; }

  /// Rows [begin, end) on the device: the buffer's own, or a copy of the host's.
  at::Tensor rows(int64_t begin, int64_t end) const;

  void store(int64_t begin, const at::Tensor& rows) const;

  /// All rows, of a buffer on the device: handed over.
  at::Tensor take();

  void reset() { rows_.reset(); }

 private:
  at::Tensor rows_;
  c10::Device device_ = at::kCPU;
  bool on_host_ = false;
};

}  // namespace streambp
