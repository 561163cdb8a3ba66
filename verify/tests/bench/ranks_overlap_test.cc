#include "bench/ranks/ranks_overlap.h"

#include <gtest/gtest.h>

namespace streambp::bench {
namespace {

using Kind = Recording::Kind;

/// Spans by their names' numbers, at whole seconds.
struct Spans {
  Recording recording;

  Spans() {
    recording.spans = {"sums over ranks", "waiting for sums over ranks", "layer {} backward",
                       "weights of layer {}"};
  }
  void add(Kind kind, int name, uint64_t second) {
    recording.entries.push_back({.address = 0,
                                 .bytes = name < 2 ? -1 : 7,
                                 .time = second * 1'000'000'000,
                                 .name = static_cast<uint64_t>(name),
                                 .kind = kind});
  }
};

TEST(Communications, AreHiddenButWhereThePassWaits) {
  Spans spans;
  spans.add(Kind::kSpanBegin, 2, 0);       // a layer's backward pass from 0 to 20
  spans.add(Kind::kOtherSpanBegin, 0, 1);  // sums from 1 to 9
  spans.add(Kind::kSpanBegin, 1, 7);       // waited for from 7 to 9
  spans.add(Kind::kOtherSpanEnd, 0, 9);
  spans.add(Kind::kSpanEnd, 1, 9);
  spans.add(Kind::kOtherSpanBegin, 3, 10);  // weights from 10 to 12
  spans.add(Kind::kOtherSpanEnd, 3, 12);
  spans.add(Kind::kSpanEnd, 2, 20);
  const Communication communication = communication_in(spans.recording);
  EXPECT_DOUBLE_EQ(communication.seconds, 10.0);
  EXPECT_DOUBLE_EQ(communication.waited, 2.0);
  EXPECT_DOUBLE_EQ(communication.hidden().value(), 0.8);
}

TEST(Communications, OfThePassItselfAreWaitedFor) {
  Spans spans;
  spans.add(Kind::kSpanBegin, 3, 2);
  spans.add(Kind::kSpanEnd, 3, 5);
  const Communication communication = communication_in(spans.recording);
  EXPECT_DOUBLE_EQ(communication.seconds, 3.0);
  EXPECT_DOUBLE_EQ(communication.waited, 3.0);
  EXPECT_EQ(communication.hidden(), 0.0);
}

/// The embedding's sums come when all layers have run.
TEST(Communications, OfTheLastGroupCannotBeHidden) {
  Spans spans;
  spans.add(Kind::kOtherSpanBegin, 0, 1);  // a layer's sums, from 1 to 5
  spans.add(Kind::kSpanBegin, 1, 4);       // waited for from 4 to 5
  spans.add(Kind::kOtherSpanEnd, 0, 5);
  spans.add(Kind::kSpanEnd, 1, 5);
  spans.add(Kind::kOtherSpanBegin, 0, 10);  // the embedding's, from 10 to 16
  spans.add(Kind::kSpanBegin, 1, 10);
  spans.add(Kind::kOtherSpanEnd, 0, 16);
  spans.add(Kind::kSpanEnd, 1, 16);
  const Communication communication = communication_in(spans.recording);
  EXPECT_DOUBLE_EQ(communication.last, 6.0);
  EXPECT_DOUBLE_EQ(communication.hidden().value(), 0.3);
  EXPECT_DOUBLE_EQ(communication.hidden_before_last().value(), 0.75);
}

TEST(Communications, OfNothingHaveNoShare) {
  EXPECT_EQ(communication_in(Recording{}).hidden(), std::nullopt);
  EXPECT_EQ(communication_in(Recording{}).hidden_before_last(), std::nullopt);
}

}  // namespace
}  // namespace streambp::bench
