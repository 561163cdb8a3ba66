// What ranks say to each other: collectives that are made of messages between two ranks, so that every
// transport gives the same bits and the same counts.
//
// A collective is a fixed schedule of exchanges: in step k of 1 ... P - 1 a rank sends to rank + k and
// receives from rank - k (modulo P). A transport states how one exchange is done (threads, sockets, nothing
// at all). Sums are taken in the order of ranks, wide for half precision, and rounded once.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>

#include <ATen/ATen.h>

#include "streambp/distributed/transport/concatenation.h"

namespace streambp {

class CommunicationThread;

/// A rank that does not answer, or is at something else. The message names it.
class CommunicationError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

enum class Collective { kAllReduce, kReduceScatter, kAllGather, kSendReceive, kBarrier };
inline constexpr int kCollectives = 5;

/// "all_reduce", ...
const char* collective_name(Collective collective);

/// What a rank has sent.
struct Traffic {
  int64_t bytes = 0;
  int64_t messages = 0;

  bool operator==(const Traffic&) const = default;
};

/// One rank's end of the connections among `size` ranks. All ranks call the same functions in the same order,
/// with tensors of the same sizes and dtypes: float64, float32, bfloat16 or float16 where they are summed.
/// Functions throw InputError for what can't be summed or is not as large as it has to be, CommunicationError
/// where another rank fails, does something else or keeps this one waiting for too long.
class Communicator {
 public:
  Communicator(int64_t rank, int64_t size);
  virtual ~Communicator() = default;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  int64_t rank() const { return rank_; }
  int64_t size() const { return size_; }

  /// From now on all calls are made by `thread`, in the order in which they were asked for, by whichever
  /// thread; each returns when its own is done. Null: by the thread that asks. The thread outlives this, or
  /// is let go of before it ends.
  void send_from(CommunicationThread* thread) { thread_ = thread; }

  /// From now on an exchange takes at least as long as `bytes_per_second` in each direction make it take; its
  /// thread sleeps for the rest. A simulation, for ranks of one machine; 0: as fast as messages are.
  void simulate_link(double bytes_per_second) { link_ = bytes_per_second; }

  /// The thread that calls are made by; null: each asking one.
  CommunicationThread* thread() const { return thread_; }

  /// Replaces the n numbers by their sums over ranks, the same bits on every rank.
  void all_reduce(const Concatenation& numbers);

  /// The sums over ranks of this rank's share (shard_of) of n numbers, in their dtype; the numbers stay as
  /// they are. A rank sends the n numbers without its own share: (P - 1) / P of them where P divides n.
  at::Tensor reduce_scatter(const Concatenation& numbers);

  /// Puts each rank's share of n numbers, of which `share` is this one's, into `numbers`.
  void all_gather(const at::Tensor& share, const Concatenation& numbers);

  /// The tensor [...] of every rank, all of this one's shape: [P, ...].
  at::Tensor all_gather(const at::Tensor& tensor);

  /// Sends to one rank while it receives from another, both contiguous; an empty tensor is no message.
  void send_receive(const at::Tensor& sent, int64_t to, const at::Tensor& received, int64_t from);

  /// Returns when all ranks have called it.
  void barrier();

  const Traffic& traffic(Collective collective) const { return traffic_[static_cast<size_t>(collective)]; }
  Traffic traffic() const;
  void reset_traffic() { traffic_ = {}; }

 protected:
  /// Sends `sent` [n], if it is not empty, to rank `to` and fills `received` [m], if it is not empty, from
  /// rank `from`; neither is this rank. Ranks that send and receive at once must not wait for each other.
  virtual void exchange(Collective collective, const at::Tensor& sent, int64_t to, const at::Tensor& received,
                        int64_t from) = 0;

  /// Whether what is received has values that can be summed.
  virtual bool has_values() const { return true; }

 private:
  /// What body() returns, on the thread that calls are made by.
  template <typename Body>
  auto in_turn(const Body& body);
  void counted_exchange(Collective collective, const at::Tensor& sent, int64_t to, const at::Tensor& received,
                        int64_t from);
  at::Tensor reduce_scatter(Collective collective, const Concatenation& numbers);
  void all_gather(Collective collective, const at::Tensor& share, const Concatenation& numbers);
  /// The sums of [begin, end) of every rank's share; of the shares of other ranks as much is sent.
  at::Tensor sum_piece(Collective collective, const Concatenation& numbers, int64_t begin, int64_t end);

  int64_t rank_, size_;
  std::array<Traffic, kCollectives> traffic_{};
  CommunicationThread* thread_ = nullptr;
  double link_ = 0.0;
};

/// How many numbers of a share are exchanged and summed at a time, on each of `ranks` ranks: what arrives is
/// then a buffer of at most 2^22 numbers, whatever is reduced.
int64_t piece_of_share(int64_t ranks);

/// One rank, which has nobody to talk to.
std::unique_ptr<Communicator> single_rank();

/// Rank `rank` of `size`, alone: messages are counted and arrive without values, for tensors on the meta
/// device. all_gather of tensors that have values gives every rank this one's, as if all held the same; sums
/// of values are refused.
std::unique_ptr<Communicator> counted_rank(int64_t rank, int64_t size);

}  // namespace streambp
