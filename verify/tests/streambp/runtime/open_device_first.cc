// Opens the GPU before any test of the program runs, if one that wants it will run: autograd counts the
// devices at its first backward pass, one on the CPU too, and knows none that come later. ctest gives every
// test a process of its own; `cuda_test` by hand and in scripts/gpu.sh does not.
#include <gtest/gtest.h>
#include <string>

#include "streambp/error.h"
#include "streambp/runtime/device.h"

namespace streambp {
namespace {

/// Tests on a GPU have "cuda" or "device" in their names.
bool wants_device(const testing::TestInfo& test) {
  const std::string name = std::string(test.test_suite_name()) + "." + test.name();
  return name.find("cuda") != std::string::npos || name.find("device") != std::string::npos;
}

class OpenDeviceFirst : public testing::Environment {
 public:
  void SetUp() override {
    const testing::UnitTest& all = *testing::UnitTest::GetInstance();
    for (int suite = 0; suite < all.total_test_suite_count(); ++suite) {
      const testing::TestSuite& tests = *all.GetTestSuite(suite);
      for (int i = 0; i < tests.total_test_count(); ++i) {
        const testing::TestInfo& test = *tests.GetTestInfo(i);
        if (!test.should_run() || !wants_device(test)) continue;
        try {
          open_device("cuda");
        } catch (const InputError&) {  // those tests say so themselves
        }
        return;
      }
    }
  }
};

// gtest owns it.
[[maybe_unused]] const testing::Environment* const opens =
    testing::AddGlobalTestEnvironment(new OpenDeviceFirst);

}  // namespace
}  // namespace streambp
