#include "streambp/ops/cuda/on_host.h"

#include <algorithm>
#include <deque>
#include <numeric>
#include <random>
#include <stdexcept>
#include <utility>
#include <vector>

#include "streambp/ops/cuda/fiber.h"

namespace streambp::cuda::on_host {
namespace {

constexpr size_t kSlotBytes = 8;
constexpr size_t kGuardBytes = 64;
constexpr unsigned char kPoison = 0xff;  // NaN in every floating type
constexpr int kWarpThreads = 32;
constexpr int kMostThreads = 1024;  // of a block, as on a GPU

enum class State { kRuns, kWaitsForWarp, kWaitsForBlock, kDone };

Order chosen_order;
std::vector<int64_t> chosen_blocks;

/// Puts indices into the order that the tester has chosen.
template <typename T>
void arrange(std::vector<T>& indices, std::mt19937_64& random) {
  if (chosen_order.turns == Turns::kBackward) std::reverse(indices.begin(), indices.end());
  if (chosen_order.turns == Turns::kShuffled) std::shuffle(indices.begin(), indices.end(), random);
}

/// A block's threads, and the memory that they share.
class Block {
 public:
  void run(const ThreadIndex& index, size_t shared_bytes, const std::function<void()>& body,
           std::mt19937_64& random) {
    current_ = index;
    const auto threads = static_cast<size_t>(index.threads);
    fibers_.resize(std::max(fibers_.size(), threads));
    body_ = &body;
    states_.assign(threads, State::kRuns);
    barriers_.assign(threads, {});
    warp_barriers_.assign(threads, {});
    slots_.resize(threads * kSlotBytes);
    shared_.resize((shared_bytes + kGuardBytes) / sizeof(double) + 1);
    std::memset(shared_.data(), kPoison, shared_.size() * sizeof(double));
    for (size_t i = 0; i < threads; ++i) fibers_[i].start(&Block::run_thread, this);
    start_.arrive();
    run_all(random);
    const auto* const bytes = reinterpret_cast<const unsigned char*>(shared_.data());
    if (!std::all_of(bytes + shared_bytes, bytes + shared_bytes + kGuardBytes,
                     [](unsigned char byte) { return byte == kPoison; }))
      throw std::logic_error("a block wrote past its shared memory");
  }

  /// Orders all that the block's threads did, those that wait in vain included, before what follows.
  void join() {
    end_.leave();
    for (Meeting& meeting : meetings_) meeting.leave();
    for (auto& of_warp : warp_meetings_)
      for (Meeting& meeting : of_warp) meeting.leave();
  }

  ThreadIndex current() const { return current_; }
  void* shared_bytes() { return shared_.data(); }
  void* slot(int thread) {
    if (thread >= current_.threads) return outside_;  // a lane that the block does not have
    return slots_.data() + static_cast<size_t>(thread) * kSlotBytes;
  }

  void wait(State state) {
    const auto thread = static_cast<size_t>(current_.thread);
    const bool of_block = state == State::kWaitsForBlock;
    // A barrier and the next one, where some already are, have a meeting each.
    int& passed = (of_block ? barriers_ : warp_barriers_)[thread];
    Meeting& meeting = (of_block ? meetings_ : warp_meetings_[thread / kWarpThreads])[passed++ % 2];
    meeting.arrive();
    states_[thread] = state;
    fibers_[thread].yield();
    meeting.leave();
  }

 private:
  static void run_thread(void* self) {
    Block& block = *static_cast<Block*>(self);
    block.start_.leave();
    (*block.body_)();
    block.end_.arrive();
    block.states_[static_cast<size_t>(block.current_.thread)] = State::kDone;
  }

  void run_all(std::mt19937_64& random) {
    std::vector<int> order(states_.size());
    for (;;) {
      std::iota(order.begin(), order.end(), 0);
      arrange(order, random);
      for (const int thread : order) {
        const auto i = static_cast<size_t>(thread);
        if (states_[i] != State::kRuns) continue;
        current_.thread = thread;
        fibers_[i].resume();
      }
      if (all(0, states_.size(), State::kDone)) return;
      if (!release()) throw std::logic_error("threads of a block wait at different barriers");
    }
  }

  /// Lets those go on who have all arrived.
  bool release() {
    if (all(0, states_.size(), State::kWaitsForBlock)) {
      set(0, states_.size(), State::kRuns);
      return true;
    }
    bool any = false;
    for (size_t first = 0; first < states_.size(); first += kWarpThreads) {
      const size_t last = std::min(first + kWarpThreads, states_.size());
      if (!all(first, last, State::kWaitsForWarp)) continue;
      set(first, last, State::kRuns);
      any = true;
    }
    return any;
  }

  bool all(size_t first, size_t last, State state) const {
    return std::all_of(states_.data() + first, states_.data() + last,
                       [&](State one) { return one == state; });
  }
  void set(size_t first, size_t last, State state) {
    std::fill(states_.data() + first, states_.data() + last, state);
  }

  ThreadIndex current_;
  std::vector<Fiber> fibers_;
  std::vector<State> states_;
  std::vector<int> barriers_, warp_barriers_;  // of which a thread has come through so many
  Meeting start_, end_, meetings_[2], warp_meetings_[kMostThreads / kWarpThreads][2];
  const std::function<void()>* body_ = nullptr;
  std::vector<char> slots_;
  std::vector<double> shared_;
  double outside_[1] = {};
};

/// The one grid that runs.
class Grid {
 public:
  void run(int64_t count, int threads, size_t shared_bytes, const std::function<void()>& body) {
    if (threads > kMostThreads) throw std::logic_error("a block of more than 1024 threads");
    const Joined joined{blocks_};
    std::mt19937_64 random(chosen_order.seed);
    for (const int64_t index : blocks_of(count, random)) {
      // What another block has left in a stack or in shared memory is no race with this one.
      if (blocks_.empty() || kFindsRaces) blocks_.emplace_back();
      blocks_.back().run({0, threads, index, count}, shared_bytes, body, random);
    }
  }

  Block& running() { return blocks_.back(); }

 private:
  /// At the end of a launch, whether it throws or not.
  struct Joined {
    std::deque<Block>& blocks;
    ~Joined() {
      for (Block& block : blocks) block.join();
      if (kFindsRaces) blocks.clear();
    }
  };

  static std::vector<int64_t> blocks_of(int64_t count, std::mt19937_64& random) {
    std::vector<int64_t> blocks;
    for (const int64_t chosen : chosen_blocks) {
      const int64_t block = chosen < 0 ? count + chosen : chosen;
      if (block >= 0 && block < count) blocks.push_back(block);
    }
    if (chosen_blocks.empty()) {
      blocks.resize(static_cast<size_t>(count));
      std::iota(blocks.begin(), blocks.end(), 0);
    }
    arrange(blocks, random);
    return blocks;
  }

  std::deque<Block> blocks_;
};

Grid grid;

}  // namespace

void set_order(Order order) {
  chosen_order = order;
}

void set_blocks(std::vector<int64_t> blocks) {
  chosen_blocks = std::move(blocks);
}

void run(int64_t blocks, int threads, size_t shared_bytes, const std::function<void()>& body) {
  grid.run(blocks, threads, shared_bytes, body);
}

ThreadIndex current() {
  return grid.running().current();
}
void* shared_bytes() {
  return grid.running().shared_bytes();
}
void wait_for_block() {
  grid.running().wait(State::kWaitsForBlock);
}
void wait_for_warp() {
  grid.running().wait(State::kWaitsForWarp);
}
void* slot(int thread) {
  return grid.running().slot(thread);
}

}  // namespace streambp::cuda::on_host
