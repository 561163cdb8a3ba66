#include "streambp/ops/cuda/fiber.h"

#include <utility>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif
#if defined(STREAMBP_FINDS_RACES)
#include <sanitizer/tsan_interface.h>
#endif

namespace streambp::cuda::on_host {
namespace {

constexpr size_t kStackBytes = 64 * 1024;

Fiber* entered = nullptr;  // the fiber whose first turn this is

}  // namespace

Fiber::Fiber(Fiber&& other) noexcept
    : stack_(std::move(other.stack_)), id_(std::exchange(other.id_, nullptr)) {}

Fiber::~Fiber() {
#if defined(STREAMBP_FINDS_RACES)
  if (id_ != nullptr) __tsan_destroy_fiber(id_);
#endif
}

void Fiber::start(void (*body)(void*), void* data) {
  if (!stack_) stack_ = std::make_unique_for_overwrite<char[]>(kStackBytes);
#if defined(STREAMBP_FINDS_RACES)
  if (id_ == nullptr) id_ = __tsan_create_fiber(0);
#endif
  body_ = body;
  data_ = data;
  getcontext(&context_);
  context_.uc_stack.ss_sp = stack_.get();
  context_.uc_stack.ss_size = kStackBytes;
  context_.uc_link = nullptr;
  makecontext(&context_, &Fiber::enter, 0);
}

void Fiber::enter() {
  entered->begin();
}

void Fiber::begin() {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(nullptr, &owner_stack_, &owner_stack_bytes_);
#endif
  body_(data_);
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(nullptr, owner_stack_, owner_stack_bytes_);
#endif
#if defined(STREAMBP_FINDS_RACES)
  __tsan_switch_to_fiber(owner_id_, __tsan_switch_to_fiber_no_sync);
#endif
  setcontext(&owner_);
}

void Fiber::resume() {
  entered = this;
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(&owner_frames_, stack_.get(), kStackBytes);
#endif
#if defined(STREAMBP_FINDS_RACES)
  owner_id_ = __tsan_get_current_fiber();
  __tsan_switch_to_fiber(id_, __tsan_switch_to_fiber_no_sync);
#endif
  swapcontext(&owner_, &context_);
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(owner_frames_, nullptr, nullptr);
#endif
}

void Fiber::yield() {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(&frames_, owner_stack_, owner_stack_bytes_);
#endif
#if defined(STREAMBP_FINDS_RACES)
  __tsan_switch_to_fiber(owner_id_, __tsan_switch_to_fiber_no_sync);
#endif
  swapcontext(&context_, &owner_);
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(frames_, &owner_stack_, &owner_stack_bytes_);
#endif
}

void Meeting::arrive() {
#if defined(STREAMBP_FINDS_RACES)
  __tsan_release(this);
#endif
}

void Meeting::leave() {
#if defined(STREAMBP_FINDS_RACES)
  __tsan_acquire(this);
#endif
}

}  // namespace streambp::cuda::on_host
