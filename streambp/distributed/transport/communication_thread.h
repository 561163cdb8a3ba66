// A thread for messages, so that a rank goes on computing while they are sent.
#pragma once

#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <future>
#include <mutex>
#include <thread>

namespace streambp {

/// Runs tasks one after another, in the order in which they were given. After one that has thrown, all later
/// ones fail with its exception: ranks would no longer be at the same message.
class CommunicationThread {
 public:
  CommunicationThread();
  /// Waits for all tasks.
  ~CommunicationThread();
  CommunicationThread(const CommunicationThread&) = delete;
  CommunicationThread& operator=(const CommunicationThread&) = delete;

  /// Gives it a task. The future holds the exception that has ended it, or an earlier one.
  std::future<void> start(std::function<void()> task);

  /// Gives it a task and waits; throws what it throws.
  void run(std::function<void()> task) { start(std::move(task)).get(); }

  bool is_this_thread() const { return std::this_thread::get_id() == thread_.get_id(); }

 private:
  void work();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::packaged_task<void()>> tasks_;
  bool ends_ = false;
  std::exception_ptr failure_;  // its own thread's alone
  std::thread thread_;
};

}  // namespace streambp
