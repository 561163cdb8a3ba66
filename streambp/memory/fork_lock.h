// Locks that a forked process finds free, whatever the other threads of its parent were doing.
#pragma once

#include <mutex>

namespace streambp {

/// A mutex whose fork() is safe. A child process has one thread, the one that forked: a lock that another
/// thread held at that moment would stay locked there for ever, and the first allocation of a DataLoader's
/// worker would wait for it.
///
/// kBrief: fork() waits until the lock is free, so that what it guards is whole in the child. Such locks are
/// taken together, by rising `order`, which has to be the order in which a thread nests them.
/// kLong: held while a pass runs, which fork() can't wait for (it may be called from within): the child's is
/// free, and whoever takes it there begins anew.
class ForkLock {
 public:
  enum class Kind { kBrief, kLong };
  /// Of the brief ones, outer before inner.
  enum Order { kRecorder, kReports, kLedger, kListener, kNames, kBlocks, kNone };

  explicit ForkLock(Order order);
  explicit ForkLock(Kind kind);
  ~ForkLock();
  ForkLock(const ForkLock&) = delete;
  ForkLock& operator=(const ForkLock&) = delete;

  void lock() { mutex_.lock(); }
  void unlock() { mutex_.unlock(); }

 private:
  friend struct ForkHandlers;
  ForkLock(Kind kind, Order order);

  const Kind kind_;
  const Order order_;
  std::mutex mutex_;
};

}  // namespace streambp
