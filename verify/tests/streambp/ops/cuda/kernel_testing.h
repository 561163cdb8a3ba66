// What the tests of the CUDA kernels on the host share. No torch: they build in seconds with every sanitizer.
#pragma once

#include <cstdint>
#include <cstring>
#include <gtest/gtest.h>
#include <random>
#include <vector>

#include "streambp/ops/cuda/kernels.h"
#include "streambp/ops/cuda/on_host.h"

namespace streambp::cuda {

template <typename S>
S number_of(double x) {
  if constexpr (std::is_same_v<S, Bfloat16>) {
    const float wide = static_cast<float>(x);
    uint32_t bits;
    std::memcpy(&bits, &wide, sizeof(bits));
    return {static_cast<uint16_t>(bits >> 16)};
  } else {
    return static_cast<S>(x);
  }
}

/// Numbers between -1 and 1.
template <typename S>
std::vector<S> numbers(int64_t count, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::uniform_real_distribution<double> uniform(-1, 1);
  std::vector<S> all(static_cast<size_t>(count));
  for (S& one : all) one = number_of<S>(uniform(random));
  return all;
}

/// Orders and blocks as they were before, however a test ends.
struct RestoredGrid {
  ~RestoredGrid() {
    on_host::set_order({});
    on_host::set_blocks({});
  }
};

#if defined(__SANITIZE_THREAD__)
inline constexpr bool kWatchesRaces = true;
#else
inline constexpr bool kWatchesRaces = false;
#endif
/// How many races the thread sanitizer has reported since the last call; 0 without it.
int take_races();

/// What every kernel is tested with.
inline const Queue kQueue;
using Types = testing::Types<float, double, Bfloat16>;

}  // namespace streambp::cuda
