#include "streambp/distributed/transport/thread_ranks.h"

#include <condition_variable>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "streambp/error.h"

namespace streambp {
namespace {

/// Where messages lie between two ranks: at most one in each direction, the sender's own tensor, which the
/// receiver copies while the sender waits.
class Mailboxes {
 public:
  explicit Mailboxes(std::chrono::milliseconds patience) : patience_(patience) {}

  void post(Collective collective, const at::Tensor& sent, int64_t from, int64_t to) {
    const std::lock_guard lock(mutex_);
    boxes_[{from, to}] = {collective, sent};
    changed_.notify_all();
  }

  void receive(Collective collective, const at::Tensor& received, int64_t from, int64_t to) {
    Message message;
    {
      std::unique_lock lock(mutex_);
      wait(lock, to, from, collective, [&] { return boxes_.contains({from, to}); });
      message = boxes_.at({from, to});
    }
    check(message, collective, received, from, to);
    received.copy_(message.tensor);
    message.tensor.reset();  // the sender is the last to hold it
    const std::lock_guard lock(mutex_);
    boxes_.erase({from, to});
    changed_.notify_all();
  }

  void wait_until_received(Collective collective, int64_t from, int64_t to) {
    std::unique_lock lock(mutex_);
    wait(lock, from, to, collective, [&] { return !boxes_.contains({from, to}); });
  }

  /// Ends all waiting.
  void close(const std::string& reason) {
    const std::lock_guard lock(mutex_);
    if (failure_.empty()) failure_ = reason;
    changed_.notify_all();
  }

 private:
  struct Message {
    Collective collective{};
    at::Tensor tensor;
  };

  template <typename Condition>
  void wait(std::unique_lock<std::mutex>& lock, int64_t rank, int64_t other, Collective collective,
            const Condition& condition) {
    const bool in_time = changed_.wait_for(lock, patience_, [&] { return condition() || !failure_.empty(); });
    if (condition()) return;
    if (in_time) throw CommunicationError(failure_);
    throw CommunicationError(fmt::format("rank {} has not answered rank {} in {} for {} ms", other, rank,
                                         collective_name(collective), patience_.count()));
  }

  static void check(const Message& message, Collective collective, const at::Tensor& expected, int64_t from,
                    int64_t to) {
    if (message.collective != collective) {
      throw CommunicationError(fmt::format("rank {} is in {}, rank {} in {}: expected the same calls on all",
                                           from, collective_name(message.collective), to,
                                           collective_name(collective)));
    }
    if (message.tensor.numel() == expected.numel() && message.tensor.scalar_type() == expected.scalar_type())
      return;
    throw CommunicationError(fmt::format("{}: rank {} sends {} numbers in {}, rank {} expects {} in {}",
                                         collective_name(collective), from, message.tensor.numel(),
                                         c10::toString(message.tensor.scalar_type()), to, expected.numel(),
                                         c10::toString(expected.scalar_type())));
  }

  std::chrono::milliseconds patience_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::pair<int64_t, int64_t>, Message> boxes_;  // by sender and receiver
  std::string failure_;
};

class ThreadRank final : public Communicator {
 public:
  ThreadRank(int64_t rank, int64_t size, Mailboxes& boxes) : Communicator(rank, size), boxes_(boxes) {}

 protected:
  void exchange(Collective collective, const at::Tensor& sent, int64_t to, const at::Tensor& received,
                int64_t from) override {
    if (sent.numel() > 0) boxes_.post(collective, sent, rank(), to);
    if (received.numel() > 0) boxes_.receive(collective, received, from, rank());
    if (sent.numel() > 0) boxes_.wait_until_received(collective, rank(), to);
  }

 private:
  Mailboxes& boxes_;
};

enum class Failure { kInput, kMemory, kOther };

/// Of the rank that failed first.
struct FirstFailure {
  std::mutex mutex;
  std::string message;  // empty: none
  Failure kind = Failure::kOther;

  void record(int64_t rank, Failure of_kind, const std::string& what) {
    const std::lock_guard lock(mutex);
    if (!message.empty()) return;
    message = fmt::format("rank {}: {}", rank, what);
    kind = of_kind;
  }

  void throw_again() const {
    if (message.empty()) return;
    if (kind == Failure::kInput) throw InputError("{}", message);
    if (kind == Failure::kMemory) throw OutOfMemory(message);
    throw CommunicationError(message);
  }
};

}  // namespace

void run_on_threads(int64_t ranks, const std::function<void(Communicator&)>& body,
                    std::chrono::milliseconds patience) {
  if (ranks < 1) throw InputError("{} ranks, expected 1 or more", ranks);
  Mailboxes boxes(patience);
  FirstFailure failure;
  const auto run = [&](int64_t rank) {
    const auto fail = [&](Failure kind, const char* what) {
      failure.record(rank, kind, what);
      boxes.close(fmt::format("rank {} has failed: {}", rank, what));
    };
    try {
      ThreadRank communicator(rank, ranks, boxes);
      body(communicator);
    } catch (const InputError& error) {
      fail(Failure::kInput, error.what());
    } catch (const std::bad_alloc& error) {
      fail(Failure::kMemory, error.what());
    } catch (const std::exception& error) {
      fail(Failure::kOther, error.what());
    }
  };
  std::vector<std::thread> threads;
  for (int64_t rank = 0; rank < ranks; ++rank) threads.emplace_back(run, rank);
  for (std::thread& thread : threads) thread.join();
  failure.throw_again();
}

}  // namespace streambp
