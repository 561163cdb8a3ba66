// Where the CPU's tensors lie. A freed large block is kept for the next one of its size: a pass allocates and
// frees the same large tensors chunk after chunk and layer after layer, and fresh memory comes a page fault
// at a time (measured on a virtual machine: 1.2 ms a MiB, against 0.04 ms for writing to a MiB that is there;
// with huge pages a pass was slower still). CUDA's caching allocator does the same for the same reason.
#pragma once

#include <cstddef>

namespace streambp {

/// `bytes` > 0 bytes, aligned to 64; null where the system has none.
void* take_host_block(size_t bytes) noexcept;

/// Gives a block of that size back. What is kept together with what is in use never exceeds the most that
/// ever was in use by more than kHostBlockSlack: the process does not grow.
void give_back_host_block(void* block, size_t bytes) noexcept;

/// Off: every block comes from the C library and goes back to it, as in a stock LibTorch. To be called before
/// the first block is taken.
void keep_host_blocks(bool keep) noexcept;

inline constexpr size_t kHostBlockSlack = size_t{64} << 20;

}  // namespace streambp
