// What ranks find out about each other before they begin.
#include "streambp/distributed/transport/agreement.h"

#include <gtest/gtest.h>

#include "streambp/distributed/transport/thread_ranks.h"
#include "streambp/error.h"

namespace streambp {
namespace {

TEST(Agreement, TextsOfAnyLengthArriveInTheOrderOfRanks) {
  std::vector<std::string> texts(3);
  texts[1] = "a text";
  texts[2] = std::string(1000, 'x').append("\n \"12 5");
  run_on_threads(3, [&](Communicator& communicator) {
    EXPECT_EQ(gather_texts(communicator, texts[static_cast<size_t>(communicator.rank())]), texts);
    EXPECT_EQ(gather_texts(communicator, ""), std::vector<std::string>(3));
  });
}

TEST(Agreement, HoldsWhereAllSayTheSame) {
  for (const int64_t ranks : {1, 2, 4})
    run_on_threads(ranks, [](Communicator& communicator) {
      require_agreement(communicator, {{"commit", "abc"}, {"seq-len", "12 3"}, {"", ""}});
      require_agreement(communicator, {});
    });
}

std::string disagreement(const std::map<std::string, std::string>& of_last) {
  try {
    run_on_threads(3, [&](Communicator& communicator) {
      const std::map<std::string, std::string> facts{{"commit", "abc"}, {"seq-len", "1024"}};
      require_agreement(communicator, communicator.rank() == 2 ? of_last : facts);
    });
  } catch (const InputError& error) {
    return std::string(error.what()).substr(std::string("rank 0: ").size());
  }
  return "";
}

TEST(Agreement, NamesTheFactAndTheRank) {
  EXPECT_EQ(disagreement({{"commit", "abc"}, {"seq-len", "2048"}}),
            "rank 2 disagrees with rank 0 on seq-len: '2048' and '1024', expected the same on all ranks");
  EXPECT_EQ(disagreement({{"seq-len", "1024"}}),
            "rank 2 disagrees with rank 0 on commit: '' and 'abc', expected the same on all ranks");
  EXPECT_EQ(disagreement({{"commit", "abc"}, {"more", ""}, {"seq-len", "1024"}}),
            "rank 2 disagrees with rank 0 on more: '' and '', expected the same on all ranks");
}

}  // namespace
}  // namespace streambp
