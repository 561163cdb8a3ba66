// A grid of threads on the host, for tests: blocks one after another, the threads of a block as fibers that
// run until they wait for one another. Slow, and strict: shared memory is NaN until it is written, threads
// that wait at different barriers are an error, and the order in which blocks and threads run is the tester's
// choice, so that a missing barrier shows as a wrong result. Built with the thread sanitizer it reports every
// pair of accesses, one of them a write, that no barrier orders, within a block and between two.
#pragma once

#include <cstdint>
#include <cstring>
#include <functional>
#include <vector>

#include "streambp/ops/cuda/kernels.h"

#define STREAMBP_GLOBAL
#define STREAMBP_DEVICE inline
#define STREAMBP_UNROLL

namespace streambp::cuda {
namespace on_host {

/// In which order blocks run, and the threads of a block between two barriers. Other seeds shuffle otherwise.
enum class Turns { kForward, kBackward, kShuffled };
struct Order {
  Turns turns = Turns::kForward;
  uint64_t seed = 0;
};
void set_order(Order order);

/// Lets only these blocks of every grid run, negative ones counted from the last, as far as there are such;
/// none: all of them. Tensors of which few rows are in memory can then be larger than it.
void set_blocks(std::vector<int64_t> blocks);

/// Runs body() once for each thread of each block. Throws std::logic_error where threads of a block wait for
/// one another in vain, or have written past the shared memory.
void run(int64_t blocks, int threads, size_t shared_bytes, const std::function<void()>& body);

struct ThreadIndex {
  int thread = 0;
  int threads = 0;
  int64_t block = 0;
  int64_t blocks = 0;
};
/// Of the thread that is running.
ThreadIndex current();
void* shared_bytes();
void wait_for_block();
void wait_for_warp();
/// Room for a thread of this block to leave up to 8 bytes for its warp.
void* slot(int thread);

}  // namespace on_host

inline int thread_index() {
  return on_host::current().thread;
}
inline int thread_count() {
  return on_host::current().threads;
}
inline int64_t block_index() {
  return on_host::current().block;
}
inline int64_t block_count() {
  return on_host::current().blocks;
}
inline void barrier() {
  on_host::wait_for_block();
}

template <typename T>
T shuffle_xor(T value, int mask) {
  const int thread = on_host::current().thread;
  std::memcpy(on_host::slot(thread), &value, sizeof(T));
  on_host::wait_for_warp();
  std::memcpy(&value, on_host::slot(thread ^ mask), sizeof(T));
  on_host::wait_for_warp();
  return value;
}

template <typename T>
T* shared_memory() {
  return static_cast<T*>(on_host::shared_bytes());
}

template <typename... Parameters, typename... Arguments>
Failure launch(const Queue&, void (*kernel)(Parameters...), int64_t blocks, int threads, size_t shared_bytes,
               Arguments... arguments) {
  on_host::run(blocks, threads, shared_bytes, [=] { kernel(arguments...); });
  return nullptr;
}

/// The kernels as they run here.
const KernelTable& kernels_on_host();

}  // namespace streambp::cuda
