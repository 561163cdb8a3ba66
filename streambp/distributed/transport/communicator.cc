#include "streambp/distributed/transport/communicator.h"

#include <algorithm>
#include <chrono>
#include <thread>

#include "streambp/distributed/transport/communication_thread.h"
#include "streambp/error.h"
#include "streambp/memory/meter.h"
#include "streambp/ops/sum_dtype.h"

namespace streambp {
namespace {

constexpr int64_t kBufferedNumbers = int64_t{1} << 22;
constexpr int64_t kLeastPiece = 1024;

void require_sums(at::ScalarType dtype) {
  if (dtype == at::kDouble || dtype == at::kFloat || dtype == at::kBFloat16 || dtype == at::kHalf) return;
  throw InputError("a sum over ranks in {}, expected float64, float32, bfloat16 or float16",
                   c10::toString(dtype));
}

class SingleRank final : public Communicator {
 public:
  SingleRank() : Communicator(0, 1) {}

 protected:
  void exchange(Collective collective, const at::Tensor&, int64_t to, const at::Tensor&, int64_t) override {
    throw CommunicationError(
        fmt::format("{}: a message to rank {} of one rank", collective_name(collective), to));
  }
};

class CountedRank final : public Communicator {
 public:
  using Communicator::Communicator;

 protected:
  void exchange(Collective, const at::Tensor& sent, int64_t, const at::Tensor& received, int64_t) override {
    if (!received.is_meta() && sent.numel() == received.numel()) received.copy_(sent);
  }
  bool has_values() const override { return false; }
};

}  // namespace

const char* collective_name(Collective collective) {
  constexpr std::array<const char*, kCollectives> names{"all_reduce", "reduce_scatter", "all_gather",
                                                        "send_receive", "barrier"};
  return names.at(static_cast<size_t>(collective));
}

int64_t piece_of_share(int64_t ranks) {
  return std::max(kBufferedNumbers / ranks, kLeastPiece);
}

Communicator::Communicator(int64_t rank, int64_t size) : rank_(rank), size_(size) {
  if (size < 1 || rank < 0 || rank >= size)
    throw InputError("rank {} of {}, expected a rank from 0 to one less than their number", rank, size);
}

Traffic Communicator::traffic() const {
  Traffic all;
  for (const Traffic& traffic : traffic_) {
    all.bytes += traffic.bytes;
    all.messages += traffic.messages;
  }
  return all;
}

void Communicator::counted_exchange(Collective collective, const at::Tensor& sent, int64_t to,
                                    const at::Tensor& received, int64_t from) {
  const auto start = std::chrono::steady_clock::now();
  exchange(collective, sent, to, received, from);
  if (link_ > 0.0) {
    const auto bytes = static_cast<double>(std::max(sent.nbytes(), received.nbytes()));
    std::this_thread::sleep_until(start + std::chrono::duration<double>(bytes / link_));
  }
  if (sent.numel() == 0) return;
  Traffic& traffic = traffic_[static_cast<size_t>(collective)];
  traffic.bytes += static_cast<int64_t>(sent.nbytes());
  ++traffic.messages;
}

at::Tensor Communicator::sum_piece(Collective collective, const Concatenation& numbers, int64_t begin,
                                   int64_t end) {
  // A share's last piece may reach beyond it.
  const auto piece_of = [&](int64_t rank) {
    const auto [first, last] = shard_of(numbers.size(), rank, size_);
    return std::pair{std::min(first + begin, last), std::min(first + end, last)};
  };
  const auto [own_begin, own_end] = piece_of(rank_);
  const at::Tensor own = numbers.read(own_begin, own_end);
  if (size_ == 1) return own;
  const at::Tensor arrived = at::empty({size_, own.numel()}, numbers.options());
  for (int64_t step = 1; step < size_; ++step) {
    const int64_t to = (rank_ + step) % size_, from = (rank_ - step + size_) % size_;
    const auto [to_begin, to_end] = piece_of(to);
    counted_exchange(collective, numbers.read(to_begin, to_end), to, arrived[from], from);
  }
  const at::Tensor sum = (rank_ == 0 ? own : arrived[0]).to(sum_dtype(numbers.dtype()), false, /*copy=*/true);
  for (int64_t rank = 1; rank < size_; ++rank) sum.add_(rank == rank_ ? own : arrived[rank]);
  return sum;
}

at::Tensor Communicator::reduce_scatter(Collective collective, const Concatenation& numbers) {
  require_sums(numbers.dtype());
  if (!has_values() && size_ > 1 && numbers.options().device() != at::kMeta)
    throw InputError("{}: a sum of values over ranks that are only counted, expected tensors on meta",
                     collective_name(collective));
  const auto [first, last] = shard_of(numbers.size(), rank_, size_);
  const at::Tensor sums = at::empty({last - first}, numbers.options());  // the caller's, by its scope
  const MemoryScope scope("communication");
  // Every rank takes part in all pieces of the largest share, the first rank's.
  const int64_t share = shard_of(numbers.size(), 0, size_).second;
  const int64_t piece = piece_of_share(size_);
  for (int64_t begin = 0; begin < share; begin += piece) {
    const at::Tensor sum = sum_piece(collective, numbers, begin, std::min(begin + piece, share));
    if (sum.numel() > 0) sums.narrow(0, begin, sum.numel()).copy_(sum);
  }
  return sums;
}

void Communicator::all_gather(Collective collective, const at::Tensor& share, const Concatenation& numbers) {
  const auto [own_begin, own_end] = shard_of(numbers.size(), rank_, size_);
  if (share.dim() != 1 || share.size(0) != own_end - own_begin || share.scalar_type() != numbers.dtype())
    throw InputError("{}: a share of shape [{}] in {}, expected [{}] in {}", collective_name(collective),
                     fmt::join(share.sizes(), ", "), c10::toString(share.scalar_type()), own_end - own_begin,
                     c10::toString(numbers.dtype()));
  const MemoryScope scope("communication");
  numbers.write(own_begin, share);
  const int64_t largest = shard_of(numbers.size(), 0, size_).second;
  const int64_t piece = kBufferedNumbers;
  for (int64_t begin = 0; begin < largest; begin += piece) {
    const auto piece_of = [&](int64_t rank) {
      const auto [first, last] = shard_of(numbers.size(), rank, size_);
      return std::pair{std::min(first + begin, last), std::min(first + begin + piece, last)};
    };
    const auto [first, last] = piece_of(rank_);
    const at::Tensor sent = share.narrow(0, first - own_begin, last - first);
    for (int64_t step = 1; step < size_; ++step) {
      const int64_t to = (rank_ + step) % size_, from = (rank_ - step + size_) % size_;
      const auto [from_begin, from_end] = piece_of(from);
      const at::Tensor view = numbers.view(from_begin, from_end);
      const at::Tensor received =
          view.defined() ? view : at::empty({from_end - from_begin}, numbers.options());
      counted_exchange(collective, sent, to, received, from);
      if (!view.defined()) numbers.write(from_begin, received);
    }
  }
}

template <typename Body>
auto Communicator::in_turn(const Body& body) {
  if (thread_ == nullptr || thread_->is_this_thread()) return body();
  decltype(body()) result;
  thread_->run([&] { result = body(); });
  return result;
}

void Communicator::all_reduce(const Concatenation& numbers) {
  in_turn([&] {
    all_gather(Collective::kAllReduce, reduce_scatter(Collective::kAllReduce, numbers), numbers);
    return true;
  });
}

at::Tensor Communicator::reduce_scatter(const Concatenation& numbers) {
  return in_turn([&] { return reduce_scatter(Collective::kReduceScatter, numbers); });
}

void Communicator::all_gather(const at::Tensor& share, const Concatenation& numbers) {
  in_turn([&] {
    all_gather(Collective::kAllGather, share, numbers);
    return true;
  });
}

at::Tensor Communicator::all_gather(const at::Tensor& tensor) {
  std::vector<int64_t> shape = tensor.sizes().vec();
  shape.insert(shape.begin(), size_);
  const at::Tensor all = at::empty(shape, tensor.options());
  if (tensor.numel() > 0) all_gather(tensor.contiguous().view({-1}), Concatenation(all));
  return all;
}

void Communicator::send_receive(const at::Tensor& sent, int64_t to, const at::Tensor& received,
                                int64_t from) {
  for (const int64_t rank : {to, from}) {
    if (rank < 0 || rank >= size_ || rank == rank_)
      throw InputError("send_receive: rank {} with rank {} of {}, expected another one", rank_, rank, size_);
  }
  in_turn([&] {
    counted_exchange(Collective::kSendReceive, Concatenation(sent).view(0, sent.numel()), to,
                     Concatenation(received).view(0, received.numel()), from);
    return true;
  });
}

void Communicator::barrier() {
  if (thread_ != nullptr && !thread_->is_this_thread()) return thread_->run([this] { barrier(); });
  const at::Tensor sent = at::zeros({1}, at::kByte);
  // After round k a rank knows of the 2^(k + 1) ranks up to itself.
  for (int64_t distance = 1; distance < size_; distance *= 2) {
    counted_exchange(Collective::kBarrier, sent, (rank_ + distance) % size_, at::zeros({1}, at::kByte),
                     (rank_ - distance + size_) % size_);
  }
}

std::unique_ptr<Communicator> single_rank() {
  return std::make_unique<SingleRank>();
}

std::unique_ptr<Communicator> counted_rank(int64_t rank, int64_t size) {
  return std::make_unique<CountedRank>(rank, size);
}

}  // namespace streambp
