// The sweep sees mistakes: ops that are slightly wrong, planted under a name of their own and under that of a
// baseline.
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
  explicit WrongNorms(double factor) : factor_(factor) {}
  at::Tensor rms_norm(const at::Tensor& x, const RmsNorm& norm) const override {
    return ModelOps::rms_norm(x, norm) * factor_;
  }

 private:
  double factor_;
};

/// The first ops under a name stay: sweeps of this program run these in place of their own "trl".
const WrongNorms in_the_last_bits(1.0 + 0x1p-51);
const bool planted = [] {
  add_model_ops("trl", in_the_last_bits);
  return true;
}();

EqualityOptions options_of(const char* method, const std::string& baseline) {
  EqualityOptions options;
  options.models = {"qwen3-tiny"};
  options.methods = {method};
  Settings settings;
  settings.baseline = baseline;
  settings.stream_head = false;
  options.alone = settings;
  return options;
}

EqualityRow checked(const EqualityOptions& options) {
  return check_row(options, {"qwen3-tiny", "sft", {}, "full", "three", 13});
}

TEST(EqualityCheck, WrongOpsAreSeenFromStandardAndFromTheReference) {
  static const WrongNorms wrong(1.0 + 1e-6), right(1.0);
  add_model_ops("test-wrong-norms", wrong);
  add_model_ops("test-right-norms", right);
  for (const char* method : {"checkpoint", "tiled"}) {
    const EqualityRow good = checked(options_of(method, "test-right-norms"));
    EXPECT_EQ(good.verdict(), "pass");
    EXPECT_EQ(good.failed, 0);
    EXPECT_GT(good.comparisons, 2 * 20);
    EXPECT_TRUE(good.standard_error <= kStandardLimit) << good.standard_error;

    const EqualityRow bad = checked(options_of(method, "test-wrong-norms"));
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
  static const WrongNorms nothing(std::numeric_limits<double>::quiet_NaN());
  add_model_ops("test-nan-norms", nothing);
  const EqualityRow bad = checked(options_of("checkpoint", "test-nan-norms"));
  EXPECT_EQ(bad.verdict(), "FAIL");
  EXPECT_TRUE(std::isnan(bad.standard_error));
  EXPECT_TRUE(std::isnan(bad.reference_error));
  EXPECT_TRUE(std::isnan(bad.worst.error));
}

TEST(EqualityCheck, SettingsThatShouldChangeNoBitAreHeldToIt) {
  ASSERT_TRUE(planted);
  EqualityOptions options;
  options.models = {"qwen3-tiny"};
  options.methods = {"standard"};
  options.head_chunks = {3};
  const EqualityRow row = check_row(options, {"qwen3-tiny", "sft", {}, "full", "three", 13});
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
