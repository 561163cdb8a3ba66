// Collectives of one to five ranks against the sums and concatenations that they stand for: bits, bytes and
// messages.
#include "streambp/distributed/transport/communicator.h"

#include <atomic>
#include <gtest/gtest.h>
#include <mutex>
#include <vector>

#include "streambp/distributed/transport/thread_ranks.h"
#include "streambp/error.h"
#include "verify/tests/streambp/ops/ops_testing.h"

namespace streambp {
namespace {

/// What rank `rank` has: normal, of very different sizes, so that another order of summation shows; of sums
/// that float16 can hold.
at::Tensor numbers_of(int64_t rank, int64_t n, at::ScalarType dtype) {
  const at::Tensor scales = random({n}, 1000 + static_cast<uint64_t>(rank)).mul(8.0).exp();
  return (random({n}, static_cast<uint64_t>(rank)) * scales).clamp(-1e4, 1e4).to(dtype);
}

/// Their sum in the order of ranks, wide, rounded once.
at::Tensor sum_of_all(int64_t ranks, int64_t n, at::ScalarType dtype) {
  at::Tensor sum = at::zeros({n}, dtype == at::kDouble ? at::kDouble : at::kFloat);
  for (int64_t rank = 0; rank < ranks; ++rank) sum += numbers_of(rank, n, dtype);
  return sum.to(dtype);
}

/// `n` numbers of a rank in three tensors of uneven shapes; the first one is empty where there are few.
std::vector<at::Tensor> in_three(const at::Tensor& numbers) {
  const int64_t n = numbers.numel(), third = n / 3;
  return {numbers.narrow(0, 0, third), numbers.narrow(0, third, n - third - third / 2),
          numbers.narrow(0, n - third / 2, third / 2)};
}

class Ranks : public testing::TestWithParam<int64_t> {
 protected:
  const int64_t ranks_ = GetParam();
};

TEST_P(Ranks, SumToTheBitsOfASumInTheirOrder) {
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const int64_t n : {1, 2, 7, 60, 1001}) {
      const at::Tensor expected = sum_of_all(ranks_, n, dtype);
      run_on_threads(ranks_, [&](Communicator& communicator) {
        const at::Tensor own = numbers_of(communicator.rank(), n, dtype), before = own.clone();
        const at::Tensor sums = communicator.reduce_scatter(Concatenation(in_three(own)));
        const auto [begin, end] = shard_of(n, communicator.rank(), ranks_);
        EXPECT_TRUE(at::equal(sums, expected.narrow(0, begin, end - begin))) << n << " " << dtype;
        EXPECT_TRUE(at::equal(own, before));
        communicator.all_reduce(Concatenation(in_three(own)));
        EXPECT_TRUE(at::equal(own, expected)) << n << " " << dtype;
      });
    }
  }
}

TEST_P(Ranks, GatherTheSharesOfAll) {
  const int64_t n = 23;
  run_on_threads(ranks_, [&](Communicator& communicator) {
    const auto [begin, end] = shard_of(n, communicator.rank(), ranks_);
    const at::Tensor all = numbers_of(7, n, at::kDouble), gathered = at::zeros({n}, at::kDouble);
    communicator.all_gather(all.narrow(0, begin, end - begin), Concatenation(in_three(gathered)));
    EXPECT_TRUE(at::equal(gathered, all));
    const at::Tensor stacked =
        communicator.all_gather(numbers_of(communicator.rank(), n, at::kFloat).view({1, n}));
    ASSERT_EQ(stacked.dim(), 3);
    for (int64_t rank = 0; rank < ranks_; ++rank)
      EXPECT_TRUE(at::equal(stacked[rank][0], numbers_of(rank, n, at::kFloat))) << rank;
  });
}

TEST_P(Ranks, SendRoundTheRing) {
  if (ranks_ == 1) return;
  run_on_threads(ranks_, [&](Communicator& communicator) {
    const int64_t next = (communicator.rank() + 1) % ranks_;
    const int64_t before = (communicator.rank() + ranks_ - 1) % ranks_;
    const at::Tensor sent = numbers_of(communicator.rank(), 12, at::kDouble).view({3, 4});
    const at::Tensor received = at::zeros({3, 4}, at::kDouble);
    communicator.send_receive(sent, next, received, before);
    EXPECT_TRUE(at::equal(received.view({-1}), numbers_of(before, 12, at::kDouble)));
    EXPECT_EQ(communicator.traffic(Collective::kSendReceive), (Traffic{96, 1}));
  });
}

TEST_P(Ranks, WaitForAllAtABarrier) {
  std::atomic<int64_t> arrived{0};
  run_on_threads(ranks_, [&](Communicator& communicator) {
    for (int64_t round = 1; round <= 20; ++round) {
      ++arrived;
      communicator.barrier();
      EXPECT_GE(arrived.load(), round * ranks_);
    }
  });
}

/// All numbers but the rank's own share, and every share to every other rank.
TEST_P(Ranks, SendWhatTheirSharesSay) {
  const int64_t n = 1009;
  std::atomic<int64_t> scattered{0};
  const auto run = [&](Communicator& communicator, const at::TensorOptions& options) {
    const at::Tensor own = at::zeros({n}, options);
    const auto [begin, end] = shard_of(n, communicator.rank(), ranks_);
    const int64_t share = end - begin;
    communicator.reduce_scatter(Concatenation(own));
    const Traffic reduced = communicator.traffic(Collective::kReduceScatter);
    EXPECT_EQ(reduced, (Traffic{4 * (n - share), ranks_ - 1}));
    scattered += reduced.bytes;
    communicator.all_gather(own.narrow(0, begin, share), Concatenation(own));
    EXPECT_EQ(communicator.traffic(Collective::kAllGather), (Traffic{4 * (ranks_ - 1) * share, ranks_ - 1}));
    EXPECT_EQ(communicator.traffic().bytes, 4 * (n - share + (ranks_ - 1) * share));
    communicator.reset_traffic();
    communicator.all_reduce(Concatenation(own));
    EXPECT_EQ(communicator.traffic(Collective::kAllReduce),
              (Traffic{4 * (n - share + (ranks_ - 1) * share), 2 * (ranks_ - 1)}));
    EXPECT_EQ(communicator.traffic(), communicator.traffic(Collective::kAllReduce));
  };
  run_on_threads(ranks_, [&](Communicator& communicator) { run(communicator, at::kFloat); });
  EXPECT_EQ(scattered.load(), 4 * (ranks_ - 1) * n);
  for (int64_t rank = 0; rank < ranks_; ++rank)
    run(*counted_rank(rank, ranks_), at::TensorOptions(at::kFloat).device(at::kMeta));
}

/// More than is exchanged at once: the same sums, more messages.
TEST_P(Ranks, ExchangeLargeSharesByPieces) {
  const int64_t n = ranks_ * (piece_of_share(ranks_) + 5);
  run_on_threads(ranks_, [&](Communicator& communicator) {
    const at::Tensor own = at::arange(n, at::kFloat).add_(static_cast<double>(communicator.rank()));
    const at::Tensor sums = communicator.reduce_scatter(Concatenation(in_three(own)));
    const auto [begin, end] = shard_of(n, communicator.rank(), ranks_);
    const double ranks = static_cast<double>(ranks_);
    const at::Tensor expected =
        at::arange(begin, end, at::kDouble).mul_(ranks).add_(ranks * (ranks - 1.0) / 2.0).to(at::kFloat);
    EXPECT_TRUE(at::allclose(sums, expected, 1e-6, 0.0));
    EXPECT_EQ(communicator.traffic(Collective::kReduceScatter),
              (Traffic{4 * (n - n / ranks_), 2 * (ranks_ - 1)}));
  });
}

INSTANTIATE_TEST_SUITE_P(OneToFive, Ranks, testing::Values(1, 2, 3, 4, 5));

TEST(Ranks, OneAloneSendsNothing) {
  const auto alone = single_rank();
  const at::Tensor numbers = numbers_of(3, 11, at::kDouble), before = numbers.clone();
  alone->all_reduce(Concatenation(numbers));
  EXPECT_TRUE(at::equal(numbers, before));
  alone->barrier();
  EXPECT_EQ(alone->traffic(), Traffic{});
  EXPECT_THROW(alone->send_receive(numbers, 0, numbers, 0), InputError);
}

std::string message_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

TEST(Ranks, FailTogetherAndNameTheFirst) {
  EXPECT_EQ(message_of([] {
              run_on_threads(3, [](Communicator& communicator) {
                if (communicator.rank() == 2) throw InputError("no such file");
                communicator.barrier();
              });
            }),
            "rank 2: no such file");
  EXPECT_THROW(run_on_threads(2,
                              [](Communicator& communicator) {
                                if (communicator.rank() == 1) throw OutOfMemory("full");
                                communicator.barrier();
                              }),
               OutOfMemory);
}

TEST(Ranks, FindThatOneIsAtSomethingElse) {
  const std::string other_call = message_of([] {
    run_on_threads(2, [](Communicator& communicator) {
      const at::Tensor one = at::zeros({2}, at::kByte);
      if (communicator.rank() == 0) communicator.barrier();
      if (communicator.rank() == 1) communicator.all_gather(one);
    });
  });
  EXPECT_NE(other_call.find("expected the same calls on all"), std::string::npos) << other_call;
  const std::string other_size = message_of([] {
    run_on_threads(2, [](Communicator& communicator) {
      communicator.all_gather(at::zeros({2 + communicator.rank()}, at::kDouble));
    });
  });
  EXPECT_NE(other_size.find("numbers in Double, rank"), std::string::npos) << other_size;
}

TEST(Ranks, GiveUpOnOneThatDoesNotAnswer) {
  const auto start = std::chrono::steady_clock::now();
  const std::string message = message_of([] {
    run_on_threads(
        2,
        [](Communicator& communicator) {
          if (communicator.rank() == 0) communicator.barrier();
        },
        std::chrono::milliseconds(200));
  });
  EXPECT_EQ(message, "rank 0: rank 1 has not answered rank 0 in barrier for 200 ms");
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(20));
}

/// A link of 2 MB/s: half of 400 kB take a tenth of a second.
TEST(Ranks, WaitForASimulatedLink) {
  run_on_threads(2, [](Communicator& communicator) {
    const at::Tensor numbers = at::ones({50000}, at::kDouble);
    communicator.simulate_link(2e6);
    const auto start = std::chrono::steady_clock::now();
    const at::Tensor sums = communicator.reduce_scatter(Concatenation(numbers));
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    EXPECT_TRUE(at::equal(sums, at::full({25000}, 2.0, at::kDouble)));
    EXPECT_GE(seconds.count(), 0.1);
    EXPECT_EQ(communicator.traffic(), (Traffic{200000, 1}));
    communicator.simulate_link(0.0);
  });
}

TEST(Ranks, RefuseWhatCannotBeSummed) {
  const auto alone = single_rank();
  EXPECT_THROW(alone->all_reduce(Concatenation(at::zeros({3}, at::kLong))), InputError);
  EXPECT_THROW(alone->all_gather(at::zeros({2}), Concatenation(at::zeros({3}))), InputError);
  EXPECT_THROW(Concatenation({at::zeros({3}), at::zeros({3}, at::kDouble)}), InputError);
  EXPECT_THROW(Concatenation(at::zeros({3, 4}).t()), InputError);
  EXPECT_THROW(Concatenation(std::vector<at::Tensor>{}), InputError);
  EXPECT_THROW(counted_rank(4, 4), InputError);
  EXPECT_THROW(counted_rank(0, 2)->all_reduce(Concatenation(at::zeros({3}))), InputError);
  EXPECT_THROW(run_on_threads(0, [](Communicator&) {}), InputError);
}

}  // namespace
}  // namespace streambp
