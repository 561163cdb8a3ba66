// Processes that are forked while other threads allocate.
#include "streambp/memory/fork_lock.h"

#include <atomic>
#include <chrono>
#include <functional>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <vector>

#include <ATen/ATen.h>
#include <c10/core/CPUAllocator.h>

#include "streambp/memory/meter.h"
#include "streambp/memory/recorder.h"
#include "verify/tests/turns.h"

namespace streambp {
namespace {

/// Whether a forked process that calls `work` ends within ten seconds.
bool child_ends(const std::function<void()>& work) {
  const pid_t child = fork();
  if (child == 0) {
    work();
    _exit(0);
  }
  for (int i = 0; i < 10000; ++i) {
    int status = 0;
    if (waitpid(child, &status, WNOHANG) == child) return WIFEXITED(status) && WEXITSTATUS(status) == 0;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  return false;
}

/// Threads that call `work` until the object goes.
class Busy {
 public:
  Busy(int threads, const std::function<void()>& work) {
    for (int i = 0; i < threads; ++i) {
      threads_.emplace_back([this, work] {
        while (!done_) work();
      });
    }
  }
  ~Busy() {
    done_ = true;
    for (std::thread& thread : threads_) thread.join();
  }

 private:
  std::atomic<bool> done_{false};
  std::vector<std::thread> threads_;
};

class ForkLocks : public testing::Test {
 protected:
  static void SetUpTestSuite() { install_meters(); }
};

void allocate() {
  const MemoryScope scope("forked");
  at::empty({300000});  // a block that the allocator keeps
  at::empty({100});
}

TEST_F(ForkLocks, ChildrenAllocateWhileThreadsOfTheirParentDo) {
  allocate();  // what torch's operators make at their first call is behind no lock of ours
  const Busy busy(2, allocate);
  for (int i = 0; i < (verify::is_thorough() ? 500 : 200); ++i)
    ASSERT_TRUE(child_ends(allocate)) << "child " << i << " hangs";
}

/// By the allocator alone, without torch's operators.
void allocate_below_torch() {
  const MemoryScope scope("forked");
  c10::GetCPUAllocator()->allocate(1200000);
}

/// What a thread makes at its first call it makes once: each process here is a fresh one, and its first child
/// is forked as the thread begins.
TEST_F(ForkLocks, ChildrenAllocateAtAThreadsFirstCall) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  for (int i = 0; i < (verify::is_thorough() ? 20 : 8); ++i) {
    EXPECT_EXIT(
        {
          const Busy busy(2, allocate_below_torch);
          for (int child = 0; child < 20; ++child) {
            if (!child_ends(allocate_below_torch)) _exit(1);
          }
          _exit(0);
        },
        testing::ExitedWithCode(0), "")
        << "process " << i << ": a child hangs";
  }
}

TEST_F(ForkLocks, ChildrenAllocateWhileTheirParentRecords) {
  allocate();
  Recorder recorder(at::kCPU);
  {
    const Busy busy(2, [] {
      const Span span("forked");
      allocate();
    });
    for (int i = 0; i < 100; ++i) ASSERT_TRUE(child_ends(allocate)) << "child " << i << " hangs";
  }
  EXPECT_GT(recorder.stop().entries.size(), 100U);
}

TEST_F(ForkLocks, LongOnesAreFreeInAChildThoughTheyAreHeld) {
  ForkLock lock(ForkLock::Kind::kLong);
  lock.lock();
  EXPECT_TRUE(child_ends([&] {
    lock.lock();
    lock.unlock();
  }));
  lock.unlock();
}

TEST_F(ForkLocks, BriefOnesAreWaitedFor) {
  ForkLock lock(ForkLock::kNone);
  std::atomic<int> state{0};
  std::thread holder([&] {
    lock.lock();
    state = 1;
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    state = 2;
    lock.unlock();
  });
  while (state == 0) std::this_thread::yield();
  EXPECT_TRUE(child_ends([&] {
    if (state != 2) _exit(1);  // forked inside of what the lock guards
    lock.lock();
  }));
  holder.join();
}

}  // namespace
}  // namespace streambp
