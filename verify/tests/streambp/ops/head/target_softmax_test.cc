// The softmax of logits in bfloat16; elementwise_test.cc has those of float32 and float64, by instruction
// set.
#include "streambp/ops/head/target_softmax.h"

#include <gtest/gtest.h>
#include <utility>

#include "verify/tests/streambp/ops/ops_testing.h"

namespace streambp {
namespace {

TEST(TargetSoftmax, Bfloat16LogitsGiveTheBitsOfTheirFloat32Copies) {
  for (const int64_t size : {1, 17, 2051, 5000}) {
    const at::Tensor logits = random({5, size}, 1).mul(3).to(at::kBFloat16), d = random({5}, 2);
    const at::Tensor targets = at::tensor({int64_t{0}, size - 1, size / 2, size - 1, size / 3}, at::kLong);
    const auto run = [&](at::ScalarType dtype) {
      at::Tensor gradient = logits.to(dtype).clone(), sums;
      const at::Tensor values = target_log_probabilities(gradient, targets, 0.7, sums);
      target_log_probabilities_backward(gradient, targets, 0.7, sums, d);
      return std::pair(values, gradient);
    };
    const auto [values, gradient] = run(at::kBFloat16);
    const auto [wide_values, wide_gradient] = run(at::kFloat);
    EXPECT_EQ(gradient.scalar_type(), at::kBFloat16);
    EXPECT_TRUE(at::equal(values, wide_values)) << "V " << size;
    EXPECT_TRUE(at::equal(gradient, wide_gradient.to(at::kBFloat16))) << "V " << size;
  }
}

}  // namespace
}  // namespace streambp
