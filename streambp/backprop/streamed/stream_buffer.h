// A tensor with a row for each token of the stream, on the model's device or in the host's memory.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include <ATen/ATen.h>

#include "streambp/backprop/kept/host_copies.h"

namespace streambp {

/// Where a streamed backward pass keeps what it needs of each layer.
enum class Offload {
  kNone,  // on the model's device
  kHost,  // in the host's memory; chunks are copied to the device when their turn comes
};

/// [N, ...] rows that chunks are written to and read from. Undefined until it is allocated.
class StreamBuffer {
 public:
  /// Bytes of the host's memory in one piece: page-locked memory comes in powers of two, and a whole long
  /// stream would waste up to half of it.
  static constexpr int64_t kPieceBytes = int64_t{64} << 20;

  StreamBuffer() = default;
  /// Uninitialised rows of `shape` on the device of `options`, or in the host's memory where there
  /// are `copies`, which the buffer goes through then. Where the device is the CPU itself or has no memory at
  /// all (meta), the host's memory is a ledger of its own: see HostMemoryScope.
  StreamBuffer(const std::vector<int64_t>& shape, const at::TensorOptions& options,
               std::shared_ptr<HostCopies> copies = nullptr, int64_t piece_bytes = kPieceBytes);
  /// Over `rows`, which stay their owner's.
  explicit StreamBuffer(at::Tensor rows) : piece_rows_(std::max<int64_t>(1, rows.size(0))) {
    pieces_.push_back(std::move(rows));
  }
  /// Rows that were expected and never read are waited for before their memory goes.
  ~StreamBuffer() { forget_expected(); }
  StreamBuffer(StreamBuffer&& other) noexcept { *this = std::move(other); }
  StreamBuffer& operator=(StreamBuffer&& other) noexcept;

  bool defined() const { return !pieces_.empty(); }
  bool on_host() const { return copies_ != nullptr; }

  /// Tells that rows [begin, end) will be read soon: their copy begins.
  void expect(int64_t begin, int64_t end) const;

  /// Lets go of rows that were expected and have not been read.
  void forget_expected() const;

  /// Rows [begin, end) on the device: the buffer's own, or a copy of the host's.
  at::Tensor rows(int64_t begin, int64_t end) const;

  /// All rows, of a buffer on the device.
  const at::Tensor& all() const { return pieces_.front(); }

  /// `rows` of a buffer in the host's memory are held until they have left: see HostCopies::leave.
  void store(int64_t begin, const at::Tensor& rows) const;

  /// All rows, of a buffer on the device, which is empty afterwards.
  at::Tensor take();

  void reset();

 private:
  struct Expected {
    int64_t begin = 0;
    int64_t end = 0;
    Arriving arriving;
  };

  /// Rows [begin, end), without a copy.
  std::vector<at::Tensor> pieces(int64_t begin, int64_t end) const;
  std::vector<Expected>::iterator find_expected(int64_t begin, int64_t end) const;

  std::vector<at::Tensor> pieces_;  // one, but for the host's memory
  int64_t piece_rows_ = 1;
  std::shared_ptr<HostCopies> copies_;      // null: the rows are on the device
  mutable std::vector<Expected> expected_;  // one or two
};

}  // namespace streambp
