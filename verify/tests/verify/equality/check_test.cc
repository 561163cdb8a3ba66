// The sweep sees mistakes: ops that are slightly wrong, planted under the name of a baseline.
#include "verify/equality/check.h"

#include <cmath>
#include <gtest/gtest.h>
#include <limits>

#include "streambp/model/model_ops.h"
#include "verify/equality/batches.h"

namespace streambp::verify {
namespace {

/// Norms whose values and gradients are off by a factor.
class WrongNorms final : public ModelOps {
 public:
  at::Tensor rms_norm(const at::Tensor& x, const RmsNorm& norm) const override {
    return ModelOps::rms_norm(x, norm) * factor;
  }

  double factor = 1.0;
};

/// The first ops under a name stay: sweeps of this program run these in place of their own "trl".
WrongNorms& planted() {
  static WrongNorms ops;
  return ops;
}

const bool is_planted = [] {
  add_model_ops("trl", planted());
  return true;
}();

EqualityRow checked(const EqualityOptions& options) {
  return check_row(options, {"qwen3-tiny", "sft", {}, "full", "three", 13});
}

/// One run of `method` with the planted ops.
EqualityRow checked_alone(const char* method, double factor) {
  planted().factor = factor;
  EqualityOptions options;
  options.models = {"qwen3-tiny"};
  options.methods = {method};
  Settings settings;
  settings.baseline = "trl";
  settings.stream_head = false;
  options.alone = settings;
  return checked(options);
}

TEST(EqualityCheck, WrongOpsAreSeenFromStandardAndFromTheReference) {
  ASSERT_TRUE(is_planted);
  for (const char* method : {"checkpoint", "tiled"}) {
    const EqualityRow good = checked_alone(method, 1.0);
    EXPECT_EQ(good.verdict(), "pass");
    EXPECT_EQ(good.failed, 0);
    EXPECT_GT(good.comparisons, 2 * 20);
    EXPECT_TRUE(good.standard_error <= kStandardLimit) << good.standard_error;

    const EqualityRow bad = checked_alone(method, 1.0 + 1e-6);
    EXPECT_EQ(bad.verdict(), "FAIL");
    EXPECT_EQ(bad.comparisons, good.comparisons);
    ASSERT_EQ(bad.failures.size(), 2u) << "against standard and against the reference";
    EXPECT_NE(bad.failures[0].what.find("against standard"), std::string::npos) << bad.failures[0].what;
    EXPECT_NE(bad.failures[1].what.find("against the reference"), std::string::npos) << bad.failures[1].what;
    EXPECT_TRUE(bad.standard_error >= 1e-8 && bad.standard_error < 1e-3) << bad.standard_error;
    EXPECT_TRUE(bad.reference_error >= 1e-8 && bad.reference_error < 1e-3) << bad.reference_error;
    EXPECT_EQ(bad.worst.error, bad.standard_error);
    EXPECT_FALSE(bad.worst.name.empty());
    // Nearly all gradients are off, and so is the loss.
    EXPECT_GT(bad.failed, bad.comparisons / 2);
    EXPECT_LE(bad.failed, bad.comparisons);
    EXPECT_NE(bad.failures[0].error.find(bad.worst.name), std::string::npos) << bad.failures[0].error;
    EXPECT_NE(bad.failures[0].repeat.find("--alone"), std::string::npos) << bad.failures[0].repeat;
  }
}

TEST(EqualityCheck, NaNIsAFailure) {
  const EqualityRow bad = checked_alone("checkpoint", std::numeric_limits<double>::quiet_NaN());
  EXPECT_EQ(bad.verdict(), "FAIL");
  EXPECT_TRUE(std::isnan(bad.standard_error));
  EXPECT_TRUE(std::isnan(bad.reference_error));
  EXPECT_TRUE(std::isnan(bad.worst.error));
}

TEST(EqualityCheck, SettingsThatShouldChangeNoBitAreHeldToIt) {
  planted().factor = 1.0 + 0x1p-51;
  EqualityOptions options;
  options.models = {"qwen3-tiny"};
  options.methods = {"standard"};
  options.head_chunks = {3};
  const EqualityRow row = checked(options);
  EXPECT_EQ(row.verdict(), "FAIL");
  ASSERT_EQ(row.failures.size(), 1u);
  EXPECT_EQ(row.failed, 1);
  EXPECT_NE(row.failures.front().what.find("baseline trl, the same as standard"), std::string::npos)
      << row.failures.front().what;
  EXPECT_EQ(row.failures.front().error, "not so to the last bit");
  EXPECT_TRUE(row.standard_error <= kStandardLimit) << row.standard_error;
}

}  // namespace
}  // namespace streambp::verify
