// What a meter reports of single blocks: each allocation, release and refusal, as it happens.
#pragma once

#include <cstdint>
#include <string>

#include <c10/core/Device.h>

namespace streambp {

/// Hears of every block of a device. Calls come one at a time, in the order in which the meter counts, from
/// whichever thread allocates or frees. They must not throw and must not allocate tensors.
class BlockListener {
 public:
  virtual ~BlockListener() = default;

  /// A block that was alive before anybody listened. Returns a mark (an address, say) that comes back when
  /// the block goes.
  virtual uint64_t present(int64_t bytes, int scope) noexcept = 0;
  /// A new block. Returns its mark.
  virtual uint64_t allocated(int64_t bytes, int scope) noexcept = 0;
  virtual void freed(uint64_t mark, int64_t bytes, int scope) noexcept = 0;
  /// An allocation that the limit forbids; `left` bytes were left under it.
  virtual void refused(int64_t bytes, int scope, int64_t left) noexcept = 0;
};

/// Makes `listener` hear of the CPU's, a GPU's or the meta device's blocks: of those alive first, then of
/// what happens. Null: none. Returns when no call to the earlier listener is running. Throws
/// InputError for another device.
void listen(c10::DeviceType device, BlockListener* listener);

/// The name of a scope by the number that listeners receive.
std::string scope_name(int scope);

}  // namespace streambp
