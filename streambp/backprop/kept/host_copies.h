// Copies between a device and the host's memory that overlap with the device's work; inside the library only.
#pragma once

#include <optional>
#include <vector>

#include <ATen/ATen.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

namespace streambp {

/// Rows that are being copied to the device.
struct Arriving {
  at::Tensor rows;  // on the device; to be read after HostCopies::arrive
  std::optional<c10::Event> ready;
};

/// One lane of copies in each direction. On a GPU each is a stream of its own: the host never waits, the
/// device's stream waits for the copy that it needs and for no other. Elsewhere a copy is done when its call
/// returns; tensors come and go in the same order, so that a dry run counts what a GPU would hold.
class HostCopies {
 public:
  /// `scope`: the MemoryScope of what arrives.
  explicit HostCopies(c10::Device device, const char* scope = "rows from the host");
  /// The device's stream waits for copies that have begun.
  ~HostCopies();
  HostCopies(const HostCopies&) = delete;
  HostCopies& operator=(const HostCopies&) = delete;

  /// Begins to copy `rows` of the device to the pieces of the host's memory `to`, which have as many rows
  /// together. `rows` must not be overwritten; it is held until settle().
  void leave(const at::Tensor& rows, const std::vector<at::Tensor>& to);

  /// Begins to copy the pieces `from` into a new tensor on the device, after all that has left so far.
  Arriving fetch(const std::vector<at::Tensor>& from);

  /// The rows, for work on the device's stream from here on.
  at::Tensor arrive(Arriving&& arriving) const;

  /// Lets go of what has left. The device's stream waits for it, so that its memory may be used again.
  void settle();

 private:
  struct Leaving {
    at::Tensor rows;
    std::optional<c10::Event> done;
  };

  c10::Device device_;
  const char* scope_;
  std::optional<c10::Stream> in_, out_;  // on a GPU
  std::vector<Leaving> leaving_;
};

}  // namespace streambp
