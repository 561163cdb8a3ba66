#include "streambp/distributed/transport/communication_thread.h"

#include <utility>

#include <ATen/core/grad_mode.h>

#ifdef _OPENMP
#include <omp.h>
#endif

namespace streambp {

CommunicationThread::CommunicationThread() : thread_([this] { work(); }) {}

CommunicationThread::~CommunicationThread() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

std::future<void> CommunicationThread::start(std::function<void()> task) {
  std::packaged_task<void()> guarded([this, task = std::move(task)] {
    if (failure_) std::rethrow_exception(failure_);
    try {
      task();
    } catch (...) {
      failure_ = std::current_exception();
      throw;
    }
  });
  std::future<void> done = guarded.get_future();
  {
    const std::lock_guard lock(mutex_);
    tasks_.push_back(std::move(guarded));
  }
  changed_.notify_one();
  return done;
}

void CommunicationThread::work() {
  const at::NoGradGuard no_grad;
#ifdef _OPENMP
  omp_set_num_threads(1);  // of this thread's loops alone: the others' cores are the pass's
#endif
  while (true) {
    std::packaged_task<void()> task;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return ends_ || !tasks_.empty(); });
      if (tasks_.empty()) return;
      task = std::move(tasks_.front());
      tasks_.pop_front();
    }
    task();
  }
}

}  // namespace streambp
