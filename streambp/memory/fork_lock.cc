#include "streambp/memory/fork_lock.h"

#include <algorithm>
#include <new>
#include <pthread.h>
#include <vector>

namespace streambp {

/// What happens to all locks before and after a fork.
struct ForkHandlers {
  std::mutex mutex;              // of `locks`; the first to be taken
  std::vector<ForkLock*> locks;  // by order

  static ForkHandlers& instance() {
    static ForkHandlers& handlers = *[] {
      pthread_atfork(prepare, release, free_in_child);
      return new ForkHandlers;  // outlives static locks
    }();
    return handlers;
  }

  void add(ForkLock* lock) {
    const std::lock_guard guard(mutex);
    const auto later = [](const ForkLock* a, const ForkLock* b) { return a->order_ < b->order_; };
    locks.insert(std::upper_bound(locks.begin(), locks.end(), lock, later), lock);
  }

  void remove(ForkLock* lock) {
    const std::lock_guard guard(mutex);
    locks.erase(std::find(locks.begin(), locks.end(), lock));
  }

  static void prepare() {
    ForkHandlers& all = instance();
    all.mutex.lock();
    for (ForkLock* lock : all.locks) {
      if (lock->kind_ == ForkLock::Kind::kBrief) lock->lock();
    }
  }

  static void release() {
    ForkHandlers& all = instance();
    for (auto lock = all.locks.rbegin(); lock != all.locks.rend(); ++lock) {
      if ((*lock)->kind_ == ForkLock::Kind::kBrief) (*lock)->unlock();
    }
    all.mutex.unlock();
  }

  static void free_in_child() {
    for (ForkLock* lock : instance().locks) {
      if (lock->kind_ == ForkLock::Kind::kLong) new (&lock->mutex_) std::mutex;
    }
    release();
  }
};

ForkLock::ForkLock(Kind kind, Order order) : kind_(kind), order_(order) {
  ForkHandlers::instance().add(this);
}

ForkLock::ForkLock(Order order) : ForkLock(Kind::kBrief, order) {}

ForkLock::ForkLock(Kind kind) : ForkLock(kind, kNone) {}

ForkLock::~ForkLock() {
  ForkHandlers::instance().remove(this);
}

}  // namespace streambp
