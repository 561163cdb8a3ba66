// The host's grid is strict enough to find what is wrong with a kernel.
#include "streambp/ops/cuda/on_host.h"

#include <algorithm>
#include <atomic>
#include <gtest/gtest.h>
#include <stdexcept>
#include <vector>

#include "streambp/ops/cuda/language.cuh"
#include "verify/tests/streambp/ops/cuda/kernel_testing.h"

namespace streambp::cuda {
namespace {

std::atomic<int> races = 0;

}  // namespace

int take_races() {
  return races.exchange(0);
}

namespace {

using on_host::Turns;

constexpr int kCount = 64;

void neighbours_without_a_barrier(int* out) {
  int* const left = shared_memory<int>();
  left[thread_index()] = thread_index();
  out[thread_index()] = left[(thread_index() + 1) % thread_count()];
}

void neighbours(int* out) {
  int* const left = shared_memory<int>();
  left[thread_index()] = thread_index();
  barrier();
  out[thread_index()] = left[(thread_index() + 1) % thread_count()];
}

void neighbours_overwritten(int* out) {
  neighbours(out);
  shared_memory<int>()[thread_index()] = -1;  // which others may still have to read
}

void last_block_wins(int64_t* out) {
  if (thread_index() == 0) *out = block_index();
}

void count_blocks(int* ran) {
  if (thread_index() == 0) ++ran[block_index()];
}

void some_wait() {
  if (thread_index() % 2 == 0) barrier();
}

void writes_too_far() {
  shared_memory<char>()[64 + thread_index()] = 1;
}

class GridOnHost : public testing::Test {
 protected:
  void SetUp() override { take_races(); }
  RestoredGrid restored_;
  Queue queue_;
};

TEST_F(GridOnHost, FindsAMissingBarrier) {
  std::vector<int> expected(kCount), got(kCount);
  for (int i = 0; i < kCount; ++i) expected[static_cast<size_t>(i)] = (i + 1) % kCount;
  const auto is_wrong = [&](auto kernel, Turns turns) {
    on_host::set_order({turns, 1});
    launch(queue_, kernel, 1, kCount, kCount * sizeof(int), got.data());
    return got != expected;
  };
  const Turns all[] = {Turns::kForward, Turns::kBackward, Turns::kShuffled};
  for (const Turns turns : all) EXPECT_FALSE(is_wrong(neighbours, turns));
  EXPECT_EQ(take_races(), 0);
  for (const Turns turns : all) EXPECT_TRUE(is_wrong(neighbours_without_a_barrier, turns));
  EXPECT_EQ(take_races() > 0, kWatchesRaces);
  for (const Turns turns : all) EXPECT_TRUE(is_wrong(neighbours_overwritten, turns));
  EXPECT_EQ(take_races() > 0, kWatchesRaces);
}

TEST_F(GridOnHost, FindsWhatDependsOnTheOrderOfBlocks) {
  int64_t last = -1;
  launch(queue_, last_block_wins, 8, 1, 0, &last);
  EXPECT_EQ(last, 7);
  on_host::set_order({Turns::kBackward});
  launch(queue_, last_block_wins, 8, 1, 0, &last);
  EXPECT_EQ(last, 0);
  std::vector<int64_t> winners;
  for (uint64_t seed = 0; seed < 20; ++seed) {
    on_host::set_order({Turns::kShuffled, seed});
    launch(queue_, last_block_wins, 8, 1, 0, &last);
    winners.push_back(last);
    launch(queue_, last_block_wins, 8, 1, 0, &last);
    EXPECT_EQ(last, winners.back()) << "seed " << seed;
  }
  std::sort(winners.begin(), winners.end());
  EXPECT_GT(std::unique(winners.begin(), winners.end()) - winners.begin(), 3);
  EXPECT_EQ(take_races() > 0, kWatchesRaces);
}

TEST_F(GridOnHost, RunsTheBlocksThatAreChosen) {
  std::vector<int> ran(6);
  on_host::set_blocks({1, -1, 6, -7});
  launch(queue_, count_blocks, 6, 2, 0, ran.data());
  EXPECT_EQ(ran, (std::vector<int>{0, 1, 0, 0, 0, 1}));
  on_host::set_blocks({});
  launch(queue_, count_blocks, 6, 2, 0, ran.data());
  EXPECT_EQ(ran, (std::vector<int>{1, 2, 1, 1, 1, 2}));
  EXPECT_EQ(take_races(), 0);
}

TEST_F(GridOnHost, RefusesADivergentBarrierAndAnOverrun) {
  EXPECT_THROW(launch(queue_, some_wait, 1, kCount, 0), std::logic_error);
  EXPECT_THROW(launch(queue_, writes_too_far, 1, kCount, 64), std::logic_error);
  EXPECT_EQ(take_races(), 0);
}

}  // namespace
}  // namespace streambp::cuda

#if defined(__SANITIZE_THREAD__)
// A report is not yet a failure: some are provoked here, and the tests say how many they expect.
extern "C" const char* __tsan_default_options() {
  return "exitcode=0:suppress_equal_addresses=0";
}
extern "C" void __tsan_on_report(void*) {
  ++streambp::cuda::races;
}
#endif
