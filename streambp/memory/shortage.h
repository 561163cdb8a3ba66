// What an allocation that failed says of memory.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

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

/// OutOfMemory with its numbers.
class AllocationFailed : public OutOfMemory {
 public:
  AllocationFailed(const std::string& message, MemoryShortage shortage)
      : OutOfMemory(message), shortage_(shortage) {}
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
