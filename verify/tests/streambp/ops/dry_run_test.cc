// What a dry run leaves out: steps that others stand for, and values.
#include "streambp/ops/dry_run.h"

#include <gtest/gtest.h>
#include <vector>

namespace streambp {
namespace {

using Steps = std::vector<int64_t>;

TEST(DryRun, RunsTheCostliestStepOfEachKind) {
  const Steps kinds{0, 1, 0, 1, 2, 0}, costs{1, 7, 3, 7, 0, 2};
  const auto steps = [&](c10::Device device) {
    return steps_to_run(
        device, 6, [&](int64_t i) { return kinds[static_cast<size_t>(i)]; },
        [&](int64_t i) { return costs[static_cast<size_t>(i)]; });
  };
  EXPECT_EQ(steps(at::kCPU), (Steps{0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(steps(at::kMeta), (Steps{1, 2, 4})) << "of equal costs the first";
  EXPECT_EQ(steps_in_one(at::kCPU, 5), 1);
  EXPECT_EQ(steps_in_one(at::kMeta, 5), 5);
}

TEST(DryRun, HasShapesWithoutValues) {
  const at::Tensor x = at::empty({3, 4}, at::TensorOptions().device(at::kMeta));
  const at::Tensor index = at::empty({5}, x.options().dtype(at::kLong));
  EXPECT_TRUE(!has_values(x) && has_values(at::ones({1})));
  EXPECT_EQ(item_or_zero(at::full({}, 2.5)), 2.5);
  EXPECT_EQ(item_or_zero(x.select(0, 0).select(0, 0)), 0.0);
  EXPECT_EQ(x.index_select(0, index).sizes(), at::IntArrayRef({5, 4}));
  EXPECT_EQ(x.index_select(1, index).sizes(), at::IntArrayRef({3, 5}));
  EXPECT_EQ(x.t().flip({0}).sizes(), at::IntArrayRef({4, 3}));
  EXPECT_TRUE(x.t().flip({0}).is_contiguous());
}

}  // namespace
}  // namespace streambp
