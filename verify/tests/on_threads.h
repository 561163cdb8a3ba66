// A piece of a test on a number of threads of LibTorch.
#pragma once

#include <utility>

#include <ATen/Parallel.h>

namespace streambp {

/// body() with `threads` threads, as many as before afterwards.
template <typename Body>
auto on_threads(int threads, Body body) {
  struct Restored {
    int before = at::get_num_threads();
    ~Restored() { at::set_num_threads(before); }
  } const restored;
  at::set_num_threads(threads);
  return body();
}

}  // namespace streambp
