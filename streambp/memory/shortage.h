// What an allocation that failed says of memory.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "streambp/error.h"

namespace streambp {

/// Bytes at the moment at which memory ran out; each where the failure knows it.
struct MemoryShortage {
  std::optional<int64_t> asked;  // by the allocation that failed
  std::optional<int64_t> alive;  // in use then
  std::optional<int64_t> limit;  // on both together

  /// What would have been in use: the least that the run needs.
  std::optional<int64_t> needed() const {
    return asked && alive ? std::optional(*asked + *alive) : std::nullopt;
  }
};

/// Bytes that a device is counted to have where nothing else limits it: with one more block of as many, 64
/// bits hold the sum.
inline constexpr int64_t kMostCounted = int64_t{1} << 62;

/// OutOfMemory with its numbers.
class AllocationFailed : public OutOfMemory {
 public:
  AllocationFailed(const std::string& message, MemoryShortage shortage)
      : OutOfMemory(message), shortage_(shortage) {}
  /// Of `bytes` for `scope` on `device`, of which `alive` are in use, beyond `limit` (0: kMostCounted). Bytes
  /// below 0 or beyond kMostCounted are a size that 64 bits don't hold.
  AllocationFailed(std::string_view device, std::string_view scope, int64_t bytes, int64_t alive,
                   int64_t limit);
  const MemoryShortage& shortage() const { return shortage_; }

 private:
  MemoryShortage shortage_;
};

/// The numbers of an error for which is_out_of_memory() holds: AllocationFailed's own, those that PyTorch's
/// allocators have in their texts (on CUDA to two digits after the point of the unit that they are printed
/// in; `alive` is then what all processes have on the card, or, below a cap on this process, what it has),
/// or none.
MemoryShortage shortage_of(const std::exception& error);

}  // namespace streambp
