#include "streambp/ops/cuda/on_host.h"

#include <algorithm>
#include <memory>
#include <numeric>
#include <random>
#include <stdexcept>
#include <ucontext.h>
#include <vector>

namespace streambp::cuda::on_host {
namespace {

constexpr size_t kStackBytes = 64 * 1024;
constexpr size_t kSlotBytes = 8;
constexpr size_t kGuardBytes = 64;
constexpr unsigned char kPoison = 0xff;  // NaN in every floating type
constexpr int kWarpThreads = 32;

enum class State { kRuns, kWaitsForWarp, kWaitsForBlock, kDone };

struct Fiber {
  ucontext_t context;
  std::unique_ptr<char[]> stack = std::make_unique<char[]>(kStackBytes);
  State state = State::kDone;
};

ThreadOrder chosen_order = ThreadOrder::kForward;

/// The one grid that runs.
class Grid {
 public:
  void run(int64_t blocks, int threads, size_t shared_bytes, const std::function<void()>& body) {
    if (fibers_.size() < static_cast<size_t>(threads)) fibers_.resize(static_cast<size_t>(threads));
    slots_.resize(static_cast<size_t>(threads) * kSlotBytes);
    shared_.resize((shared_bytes + kGuardBytes) / sizeof(double) + 1);
    body_ = &body;
    current_.threads = threads;
    current_.blocks = blocks;
    for (int64_t block = 0; block < blocks; ++block) {
      current_.block = block;
      std::memset(shared_.data(), kPoison, shared_.size() * sizeof(double));
      run_block();
      const auto* const bytes = reinterpret_cast<const unsigned char*>(shared_.data());
      if (!std::all_of(bytes + shared_bytes, bytes + shared_bytes + kGuardBytes,
                       [](unsigned char byte) { return byte == kPoison; }))
        throw std::logic_error("a block wrote past its shared memory");
    }
  }

  const ThreadIndex& current() const { return current_; }
  void* shared_bytes() { return shared_.data(); }
  void* slot(int thread) {
    if (thread >= current_.threads) return outside_;  // a lane that the block does not have
    return slots_.data() + static_cast<size_t>(thread) * kSlotBytes;
  }

  void wait(State state) {
    Fiber& fiber = fibers_[static_cast<size_t>(current_.thread)];
    fiber.state = state;
    swapcontext(&fiber.context, &scheduler_);
  }

 private:
  static void enter();

  void run_block() {
    for (int thread = 0; thread < current_.threads; ++thread) {
      Fiber& fiber = fibers_[static_cast<size_t>(thread)];
      getcontext(&fiber.context);
      fiber.context.uc_stack.ss_sp = fiber.stack.get();
      fiber.context.uc_stack.ss_size = kStackBytes;
      fiber.context.uc_link = &scheduler_;
      fiber.state = State::kRuns;
      makecontext(&fiber.context, &Grid::enter, 0);
    }
    for (;;) {
      for (const int thread : order()) {
        Fiber& fiber = fibers_[static_cast<size_t>(thread)];
        if (fiber.state != State::kRuns) continue;
        current_.thread = thread;
        swapcontext(&scheduler_, &fiber.context);
      }
      if (all(0, current_.threads, State::kDone)) return;
      if (!release()) throw std::logic_error("threads of a block wait at different barriers");
    }
  }

  /// Lets those go on who have all arrived.
  bool release() {
    if (all(0, current_.threads, State::kWaitsForBlock)) {
      set(0, current_.threads, State::kRuns);
      return true;
    }
    bool any = false;
    for (int first = 0; first < current_.threads; first += kWarpThreads) {
      const int last = std::min(first + kWarpThreads, current_.threads);
      if (!all(first, last, State::kWaitsForWarp)) continue;
      set(first, last, State::kRuns);
      any = true;
    }
    return any;
  }

  bool all(int first, int last, State state) const {
    return std::all_of(fibers_.begin() + first, fibers_.begin() + last,
                       [&](const Fiber& fiber) { return fiber.state == state; });
  }
  void set(int first, int last, State state) {
    std::for_each(fibers_.begin() + first, fibers_.begin() + last,
                  [&](Fiber& fiber) { fiber.state = state; });
  }

  std::vector<int> order() {
    std::vector<int> threads(static_cast<size_t>(current_.threads));
    std::iota(threads.begin(), threads.end(), 0);
    if (chosen_order == ThreadOrder::kBackward) std::reverse(threads.begin(), threads.end());
    if (chosen_order == ThreadOrder::kShuffled) std::shuffle(threads.begin(), threads.end(), random_);
    return threads;
  }

  ucontext_t scheduler_;
  std::vector<Fiber> fibers_;
  std::vector<char> slots_;
  std::vector<double> shared_;
  const std::function<void()>* body_ = nullptr;
  ThreadIndex current_;
  std::mt19937 random_{1};
  double outside_[1] = {};
};

Grid grid;

void Grid::enter() {
  (*grid.body_)();
  grid.fibers_[static_cast<size_t>(grid.current_.thread)].state = State::kDone;
}

}  // namespace

void set_thread_order(ThreadOrder order) {
  chosen_order = order;
}

void run(int64_t blocks, int threads, size_t shared_bytes, const std::function<void()>& body) {
  grid.run(blocks, threads, shared_bytes, body);
}

const ThreadIndex& current() {
  return grid.current();
}
void* shared_bytes() {
  return grid.shared_bytes();
}
void wait_for_block() {
  grid.wait(State::kWaitsForBlock);
}
void wait_for_warp() {
  grid.wait(State::kWaitsForWarp);
}
void* slot(int thread) {
  return grid.slot(thread);
}

}  // namespace streambp::cuda::on_host
