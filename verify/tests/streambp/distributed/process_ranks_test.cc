// Ranks as processes over Gloo: rank_parts.cc, started several times.
#include "streambp/distributed/process_ranks.h"

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <gtest/gtest.h>

#include "streambp/distributed/local_ranks.h"
#include "streambp/error.h"

namespace streambp {
namespace {

RanksEnd run_part(int64_t ranks, const std::string& part) {
  return run_local_ranks(ranks, {STREAMBP_RANK_PARTS, part});
}

void expect_good(const RanksEnd& end) {
  EXPECT_EQ(end.status, 0) << "rank " << end.rank << ": " << end.message;
}

TEST(ProcessRanks, SumToTheBitsOfThreads) {
  for (const int64_t ranks : {1, 2, 3}) expect_good(run_part(ranks, "sum"));
}

TEST(ProcessRanks, TrainToTheBitsOfThreads) {
  expect_good(run_part(2, "train"));
}

TEST(ProcessRanks, NameTheOneThatHasLeft) {
  expect_good(run_part(3, "leave"));
}

TEST(ProcessRanks, NameTheOneThatNeverConnects) {
  expect_good(run_part(3, "absent"));
}

TEST(ProcessRanks, NameTheOneThatHangs) {
  expect_good(run_part(3, "hang"));
}

/// The others end long before their patience has.
TEST(ProcessRanks, EndWhenOneIsKilled) {
  const auto start = std::chrono::steady_clock::now();
  const RanksEnd end = run_part(3, "killed");
  EXPECT_EQ(end.status, 128 + SIGKILL) << end.message;
  EXPECT_EQ(end.rank, 2);
  EXPECT_NE(end.message.find("rank 2 was ended by signal 9"), std::string::npos) << end.message;
  EXPECT_LT(std::chrono::steady_clock::now() - start, kPatience);
}

TEST(ProcessRanks, ReportWhatAFailingOneWrote) {
  const RanksEnd end = run_part(2, "no such part");
  EXPECT_EQ(end.status, 1);
  EXPECT_EQ(end.message, "expected a rank's environment and a part by its name\n");
}

TEST(ProcessRanks, RefuseWhatCannotBeStarted) {
  EXPECT_THROW(run_local_ranks(0, {STREAMBP_RANK_PARTS}), InputError);
  EXPECT_THROW(run_local_ranks(2, {"/no/such/program"}), InputError);
}

}  // namespace
}  // namespace streambp
