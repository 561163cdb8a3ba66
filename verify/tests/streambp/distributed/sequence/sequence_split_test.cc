// Which rows of a batch each rank has: every row once, balanced, and with at least one row on every rank.
#include "streambp/distributed/sequence/sequence_split.h"

#include <algorithm>
#include <gtest/gtest.h>
#include <numeric>

#include "streambp/distributed/sequence/row_routes.h"
#include "streambp/error.h"
#include "verify/tests/streambp/model/file_testing.h"

namespace streambp {
namespace {

std::vector<int64_t> offsets_of(const std::vector<int64_t>& lengths) {
  std::vector<int64_t> offsets{0};
  for (const int64_t length : lengths) offsets.push_back(offsets.back() + length);
  return offsets;
}

/// The rank of every row; a row that is on two ranks, or on none, fails.
std::vector<int64_t> ranks_of_rows(const SequenceSplit& split, const std::vector<int64_t>& offsets) {
  std::vector<int64_t> ranks(static_cast<size_t>(offsets.back()), -1);
  for (int64_t rank = 0; rank < split.ranks(); ++rank) {
    for (const Piece& piece : split.pieces(rank)) {
      EXPECT_LT(piece.begin, piece.end);
      for (int64_t row = piece.begin; row < piece.end; ++row) {
        EXPECT_EQ(ranks[static_cast<size_t>(row)], -1);
        ranks[static_cast<size_t>(row)] = rank;
        const auto sequence = std::upper_bound(offsets.begin(), offsets.end(), row) - 1;
        EXPECT_EQ(piece.sequence_begin, *sequence);
      }
    }
  }
  EXPECT_EQ(std::count(ranks.begin(), ranks.end(), -1), 0);
  return ranks;
}

std::vector<double> work_of_ranks(const Config& config, const SequenceSplit& split) {
  const SequenceWork work(config);
  std::vector<double> sums;
  for (int64_t rank = 0; rank < split.ranks(); ++rank) {
    double sum = 0.0;
    for (const Piece& piece : split.pieces(rank))
      sum += work.of(piece.end - piece.sequence_begin) - work.of(piece.begin - piece.sequence_begin);
    sums.push_back(sum);
  }
  return sums;
}

TEST(SequenceSplit, ASequenceIsCutInZigzag) {
  const SequenceSplit split(preset("qwen3-tiny"), {0, 19}, 3);
  const auto expect = [&](int64_t rank, const std::vector<RowRange>& ranges) {
    std::vector<RowRange> got;
    for (const Piece& piece : split.pieces(rank)) got.push_back({piece.begin, piece.end});
    EXPECT_EQ(got, ranges) << rank;
  };
  expect(0, {{0, 4}, {16, 19}});
  expect(1, {{4, 7}, {13, 16}});
  expect(2, {{7, 13}});
  EXPECT_FALSE(split.is_contiguous());
}

TEST(SequenceSplit, EveryRowIsOnOneRank) {
  for (const char* name : {"qwen3-tiny", "gemma3-tiny", "qwen3.5-tiny", "deepseek-v3-tiny", "gpt-oss-tiny"}) {
    for (const std::vector<int64_t>& lengths :
         std::vector<std::vector<int64_t>>{{4},
                                           {5},
                                           {97},
                                           {2, 2},
                                           {1, 1, 1, 1},
                                           {3, 1},
                                           {40, 1, 3, 17, 2, 90, 5, 5, 5, 33},
                                           {300, 1, 1, 1}}) {
      const std::vector<int64_t> offsets = offsets_of(lengths);
      for (const int64_t ranks : {1, 2, 3, 4}) {
        SCOPED_TRACE(fmt::format("{} [{}] on {}", name, fmt::join(lengths, ", "), ranks));
        const SequenceSplit split(preset(name), offsets, ranks);
        ranks_of_rows(split, offsets);
        for (int64_t rank = 0; rank < ranks; ++rank) EXPECT_GE(split.rows(rank), 1);
      }
    }
  }
}

/// Of the counted work no rank has more than a twentieth above its share, and of a long sequence's rows
/// none more than one above another's.
TEST(SequenceSplit, WorkIsBalanced) {
  const std::vector<std::vector<int64_t>> all{{100003}, {60000, 30001, 10000, 7, 500, 12345}};
  for (const char* name : {"qwen3-8b", "gemma3-tiny", "gpt-oss-tiny", "deepseek-v3-tiny"}) {
    for (const std::vector<int64_t>& lengths : all) {
      for (const int64_t ranks : {2, 3, 8, 64}) {
        SCOPED_TRACE(fmt::format("{} [{}] on {}", name, fmt::join(lengths, ", "), ranks));
        const SequenceSplit split(preset(name), offsets_of(lengths), ranks);
        const std::vector<double> work = work_of_ranks(preset(name), split);
        const double share = std::accumulate(work.begin(), work.end(), 0.0) / static_cast<double>(ranks);
        EXPECT_LE(*std::max_element(work.begin(), work.end()), 1.05 * share);
        if (lengths.size() > 1) continue;
        for (int64_t rank = 1; rank < ranks; ++rank) EXPECT_LE(std::abs(split.rows(rank) - split.rows(0)), 1);
      }
    }
  }
}

/// States pass from rank to rank: one run of rows each, as much work on all but for a row's.
TEST(SequenceSplit, RecurrentLayersKeepRowsTogether) {
  const Config config = preset("qwen3.5-tiny");
  const std::vector<int64_t> offsets = offsets_of({5000, 1, 2500, 7001});
  for (const int64_t ranks : {2, 3, 8}) {
    const SequenceSplit split(config, offsets, ranks);
    EXPECT_TRUE(split.is_contiguous());
    const std::vector<int64_t> of_rows = ranks_of_rows(split, offsets);
    EXPECT_TRUE(std::is_sorted(of_rows.begin(), of_rows.end()));
    const std::vector<double> work = work_of_ranks(config, split);
    const auto [least, most] = std::minmax_element(work.begin(), work.end());
    EXPECT_LE(*most / *least, 1.01);
  }
}

TEST(SequenceSplit, RefusesFewerRowsThanRanks) {
  for (const char* name : {"qwen3-tiny", "qwen3.5-tiny"}) {
    EXPECT_TRUE(refused(
        [&] {
          SequenceSplit(preset(name), {0, 3}, 4);
        },
        "3 rows over 4 ranks, expected at least one row on every rank"));
  }
}

/// An indexer picks among rows that other ranks would hold.
TEST(SequenceSplit, RefusesIndexersByName) {
  for (const char* name : {"deepseek-v32-tiny", "glm-moe-dsa-tiny", "hy-v4-tiny", "deepseek-v4-tiny",
                           "mistral-large4-tiny", "minimax-m3-tiny", "glm5-next-tiny", "qwen4-exp-tiny"}) {
    EXPECT_TRUE(refused(
        [&] {
          SequenceSplit(preset(name), {0, 9}, 2);
        },
        "expected whole sequences on every rank"));
    EXPECT_EQ(SequenceSplit(preset(name), {0, 9}, 1).ranks(), 1);
  }
}

/// The state that a chunk leaves needs attention to rows that other ranks would hold.
TEST(SequenceSplit, RefusesSharedBlocksByName) {
  EXPECT_TRUE(refused(
      [] {
        SequenceSplit(preset("zamba2-tiny"), {0, 9}, 2);
      },
      "rows of zamba2 over 2 ranks", "expected whole sequences on every rank"));
  EXPECT_EQ(SequenceSplit(preset("zamba2-tiny"), {0, 9}, 1).ranks(), 1);
}

TEST(SequenceSplit, ABatchKeepsPositionsAndTargets) {
  const Batch whole = random_batch({11, 7}, 101, 5);
  const SequenceSplit split(preset("qwen3-tiny"), whole.offsets, 3);
  for (int64_t rank = 0; rank < 3; ++rank) {
    const Batch own = split.batch_of(whole, rank);
    ASSERT_EQ(own.offsets.size(), split.pieces(rank).size() + 1);
    EXPECT_EQ(own.rope_length, 11);
    for (size_t i = 0; i < split.pieces(rank).size(); ++i) {
      const Piece& piece = split.pieces(rank)[i];
      for (const auto& [got, expected] :
           {std::pair{own.tokens, whole.tokens}, std::pair{own.positions, whole.positions},
            std::pair{own.targets, whole.targets}}) {
        EXPECT_TRUE(at::equal(got.narrow(0, own.offsets[i], piece.size()),
                              expected.narrow(0, piece.begin, piece.size())));
      }
    }
  }
}

TEST(RowRoutes, AWindowEndsWhatIsLent) {
  const SequenceSplit split(preset("mistral-tiny"), {0, 24}, 2);  // 0-5 and 18-23; 6-17
  const RowRoutes first(split, 0, 4), second(split, 1, 4), all(split, 0, 0);
  EXPECT_EQ(first.seen()[1], (RowRanges{{15, 18}}));
  EXPECT_EQ(first.lent()[1], (RowRanges{{3, 6}}));
  EXPECT_EQ(second.seen()[0], first.lent()[1]);
  EXPECT_EQ(second.lent()[0], first.seen()[1]);
  EXPECT_EQ(all.seen()[1], (RowRanges{{6, 18}}));
  EXPECT_EQ(first.size(), 15);
  EXPECT_EQ(first.index_of(15), 6);
  EXPECT_TRUE(first.is_lent({0, 4}));
  EXPECT_FALSE(first.is_lent({18, 24}));
  EXPECT_EQ(in_ranges_of({{0, 5}, {7, 8}}, 2), (RowRanges{{0, 2}, {2, 4}, {4, 5}, {7, 8}}));
}

}  // namespace
}  // namespace streambp
