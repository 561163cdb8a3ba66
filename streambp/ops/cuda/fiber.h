// Threads of control that take turns by themselves, for the grid on the host (on_host.h), and that the
// address and the thread sanitizer know of: to the latter a change of turn orders nothing, so that what one
// fiber writes and another reads is a race unless both say when (Meeting).
#pragma once

#include <cstddef>
#include <memory>
#include <ucontext.h>

namespace streambp::cuda::on_host {

// Defined where the rest of the program is built with the thread sanitizer. This file is not: it would see
// every change of turn as a race.
#if defined(STREAMBP_FINDS_RACES)
inline constexpr bool kFindsRaces = true;
#else
inline constexpr bool kFindsRaces = false;
#endif

class Fiber {
 public:
  Fiber() = default;
  Fiber(Fiber&& other) noexcept;
  Fiber& operator=(Fiber&&) = delete;
  ~Fiber();

  /// Begins anew: the next resume() calls body(data).
  void start(void (*body)(void*), void* data);
  /// By the thread that owns the fibers: runs until body yields or is through.
  void resume();
  /// By body: returns at the next resume().
  void yield();

 private:
  static void enter();
  void begin();

  ucontext_t context_ = {}, owner_ = {};
  std::unique_ptr<char[]> stack_;
  void (*body_)(void*) = nullptr;
  void* data_ = nullptr;
  // What the sanitizers know it, and its owner, by.
  void *id_ = nullptr, *owner_id_ = nullptr;
  void *frames_ = nullptr, *owner_frames_ = nullptr;
  const void* owner_stack_ = nullptr;
  size_t owner_stack_bytes_ = 0;
};

/// Orders what fibers did before they arrived and what others do after they have left. No fiber arrives again
/// before all have left: what it did in between would seem to be ordered too.
class Meeting {
 public:
  void arrive();
  void leave();
};

}  // namespace streambp::cuda::on_host
