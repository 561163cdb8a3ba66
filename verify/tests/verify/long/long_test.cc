// The small part of `streambp-verify long`, and that its judgement can fail.
#include <gtest/gtest.h>
#include <limits>

#include "streambp/memory/meter.h"
#include "verify/error_measure.h"
#include "verify/long/case.h"
#include "verify/long/truth.h"
#include "verify/tests/turns.h"

namespace streambp::verify {

/// GoogleTest would print the bytes of the object, addresses among them, and CTest take them into the name.
void PrintTo(const LongCase& of, std::ostream* out) {
  *out << of.name;
}

namespace {

/// Whole passes in a thorough run alone, which `streambp-verify long` is too.
std::vector<LongCase> quick_cases() {
  std::vector<LongCase> quick;
  for (LongCase& of : long_cases()) {
    if (of.quick && (is_thorough() || !of.name.starts_with("pass-"))) quick.push_back(std::move(of));
  }
  return quick;
}

class QuickLongCase : public testing::TestWithParam<LongCase> {};

TEST_P(QuickLongCase, AgreesWithPlainLoops) {
  install_meters();
  const LongCase& of = GetParam();
  const LongOutcome outcome = run_long_case(of, 1'000'000'000);
  const LongCheck& check = outcome.check;
  fmt::print("{}: {} comparisons, worst {} (limit {}): {}\n", of.crosses, check.sampled(),
             error_text(check.worst_error()), error_text(check.worst_limit()), check.worst());
  EXPECT_EQ(outcome.verdict, LongVerdict::kPass) << outcome.message;
}

INSTANTIATE_TEST_SUITE_P(Long, QuickLongCase, testing::ValuesIn(quick_cases()), [](const auto& of) {
  std::string name = of.param.name;
  for (char& c : name) {
    if (c == '-') c = '_';
  }
  return name;
});

TEST(LongCheck, KeepsTheWorstAndFailsBeyondItsLimit) {
  LongCheck check;
  EXPECT_FALSE(check.good()) << "nothing was compared";
  check.error("near", 0.5, 1.0);
  check.error("small", 0.1, 100.0);
  EXPECT_TRUE(check.good());
  EXPECT_EQ(check.worst(), "near");
  check.error("unequal", 1e-300, 0.0);
  EXPECT_FALSE(check.good());
  EXPECT_EQ(check.worst(), "unequal");
  check.error("far", 2.0, 1.0);
  EXPECT_EQ(check.worst(), "unequal");
  check.error("nothing", std::numeric_limits<double>::quiet_NaN(), 1.0);
  EXPECT_EQ(check.worst(), "nothing");
  EXPECT_EQ(check.sampled(), 5);
}

TEST(LongCheck, OneWrongRowIsFound) {
  const at::Tensor truth = at::arange(1, 13, at::kDouble).view({4, 3});
  at::Tensor got = truth.clone();
  LongCheck equal;
  equal.rows("rows", got, truth, 0.0);
  equal.rows_of_one_scale("rows", got, truth, 0.0);
  EXPECT_TRUE(equal.good());
  EXPECT_EQ(equal.sampled(), 8);
  got[2][1].fill_(std::numeric_limits<double>::quiet_NaN());
  LongCheck unequal;
  unequal.rows_of_one_scale("rows", got, truth, 1e300);
  EXPECT_FALSE(unequal.good());
  LongCheck swapped;
  swapped.rows("rows", truth.flip({0}), truth, 0.1);
  EXPECT_FALSE(swapped.good());
  LongCheck missing;
  missing.rows("rows", truth.narrow(0, 0, 3), truth, 1e300);
  EXPECT_FALSE(missing.good());
}

TEST(LongCases, AreSkippedByNameOrEndInTheirLimit) {
  install_meters();
  LongCase of{"large", "", 1'000'000, false, [](LongCheck& check) {
                const at::Tensor x = at::zeros({1'000'000}, at::kDouble);
                check.error("x", x[0].item<double>(), 0.0);
              }};
  const LongOutcome skipped = run_long_case(of, 999'999);
  EXPECT_EQ(skipped.verdict, LongVerdict::kSkipped);
  EXPECT_EQ(skipped.check.sampled(), 0);
  EXPECT_EQ(run_long_case(of, 1'000'000).verdict, LongVerdict::kOutOfMemory);
  of.bytes = 9'000'000;
  EXPECT_EQ(run_long_case(of, 9'000'000).verdict, LongVerdict::kPass);
}

TEST(LongTruth, PatternsDifferWhereAnIndexWouldWrap) {
  const at::Tensor x = patterned_normal({3'000'000}, at::kFloat, 1);
  EXPECT_FALSE(at::equal(x.narrow(0, 0, 1000), x.narrow(0, 1 << 20, 1000)));
  EXPECT_TRUE(at::equal(x.narrow(0, 0, 1000), x.narrow(0, 1'000'003, 1000)));
  const std::vector<int64_t> indices = sampled_indices(100, {50, 1000, -7}, 0);
  EXPECT_EQ(indices, (std::vector<int64_t>{0, 1, 2, 48, 49, 50, 51, 52, 97, 98, 99}));
}

}  // namespace
}  // namespace streambp::verify
