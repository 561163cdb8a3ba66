#include "streambp/memory/host_blocks.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <list>
#include <mutex>
#include <sys/mman.h>
#include <unordered_map>

#include "streambp/memory/fork_lock.h"

namespace streambp {
namespace {

constexpr size_t kBlockAlignment = 64;
constexpr size_t kPage = 4096;
/// Smaller blocks come from the C library's heap, which reuses its pages.
constexpr size_t kLarge = size_t{1} << 20;

std::atomic<bool> keeps{true};

constexpr size_t round_up(size_t bytes, size_t to) {
  return (bytes + to - 1) / to * to;
}

bool is_large(size_t bytes) {
  return bytes >= kLarge && keeps.load(std::memory_order_relaxed);
}

/// Large blocks: those in use and those that are kept.
class LargeBlocks {
 public:
  void* take(size_t bytes) {
    const std::lock_guard lock(mutex_);
    const size_t wanted = round_up(bytes, kPage);
    Block block = best_kept(wanted);
    if (block.start == nullptr) block = map(wanted);
    if (block.start == nullptr) return nullptr;
    in_use_.emplace(block.start, block.size);
    used_ += block.size;
    most_used_ = std::max(most_used_, used_);
    return block.start;
  }

  void give_back(void* start) {
    const std::lock_guard lock(mutex_);
    const auto found = in_use_.find(start);
    const Block block{start, found->second};
    in_use_.erase(found);
    used_ -= block.size;
    kept_.push_front(block);
    kept_bytes_ += block.size;
    shrink(0);
  }

 private:
  struct Block {
    void* start = nullptr;
    size_t size = 0;
  };

  /// The smallest kept block that holds `wanted` bytes and wastes no more than an eighth, taken out.
  Block best_kept(size_t wanted) {
    auto best = kept_.end();
    for (auto block = kept_.begin(); block != kept_.end(); ++block) {
      const bool fits = block->size >= wanted && block->size <= wanted + wanted / 8;
      if (fits && (best == kept_.end() || block->size < best->size)) best = block;
    }
    if (best == kept_.end()) return {};
    const Block block = *best;
    kept_bytes_ -= block.size;
    kept_.erase(best);
    return block;
  }

  Block map(size_t size) {
    shrink(size);
    void* start = map_pages(size);
    if (start == nullptr) {
      while (!kept_.empty()) release_oldest();
      start = map_pages(size);
    }
    return {start, size};
  }

  static void* map_pages(size_t size) {
    void* const start = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return start == MAP_FAILED ? nullptr : start;
  }

  /// Makes room for a new block of `size` bytes: what lay unused the longest goes first.
  void shrink(size_t size) {
    const size_t most = std::max(most_used_, used_ + size) + kHostBlockSlack;
    while (!kept_.empty() && used_ + size + kept_bytes_ > most) release_oldest();
  }

  void release_oldest() {
    const Block block = kept_.back();
    munmap(block.start, block.size);
    kept_bytes_ -= block.size;
    kept_.pop_back();
  }

  ForkLock mutex_{ForkLock::kBlocks};
  std::unordered_map<void*, size_t> in_use_;
  std::list<Block> kept_;  // the last freed first
  size_t used_ = 0;
  size_t most_used_ = 0;
  size_t kept_bytes_ = 0;
};

LargeBlocks& large_blocks() {
  static auto* const blocks = new LargeBlocks;  // outlives static tensors
  return *blocks;
}

// As the library loads: a child that is forked while a thread makes them would wait without end.
[[maybe_unused]] const LargeBlocks& made_blocks = large_blocks();

}  // namespace

void* take_host_block(size_t bytes) noexcept {
  if (is_large(bytes)) return large_blocks().take(bytes);
  return std::aligned_alloc(kBlockAlignment, round_up(bytes, kBlockAlignment));
}

void give_back_host_block(void* block, size_t bytes) noexcept {
  if (is_large(bytes)) {
    large_blocks().give_back(block);
  } else {
    std::free(block);
  }
}

void keep_host_blocks(bool keep) noexcept {
  keeps.store(keep, std::memory_order_relaxed);
}

}  // namespace streambp
