// libnvrtc as torch's wheels lay it out, with another library under its name.
#include "streambp/runtime/wheel_libraries.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <gtest/gtest.h>
#include <unistd.h>

namespace streambp {
namespace {

namespace fs = std::filesystem;

class WheelLibraries : public testing::Test {
 protected:
  void SetUp() override {
    // A folder for each test: a library that is open is found by its path, whatever lies there now.
    const std::string test = testing::UnitTest::GetInstance()->current_test_info()->name();
    packages_ = fs::path(testing::TempDir()) / ("wheel-" + test + std::to_string(getpid()));
    fs::create_directories(torch());
  }
  void TearDown() override { fs::remove_all(packages_); }

  fs::path torch() const { return packages_ / "torch/lib"; }

  /// A library that can be opened.
  std::string add(const std::string& file) {
    fs::create_directories((packages_ / file).parent_path());
    fs::copy_file(folder_of_library("libgomp.so.1") / "libgomp.so.1", packages_ / file);
    return packages_ / file;
  }

 private:
  fs::path packages_;
};

TEST_F(WheelLibraries, KnowsWhereALoadedLibraryLies) {
  EXPECT_TRUE(fs::exists(folder_of_library("libtorch_cpu.so") / "libtorch_cpu.so"));
  EXPECT_TRUE(folder_of_library("libnosuch.so").empty());
}

TEST_F(WheelLibraries, OpenNvrtcOfEitherLayout) {
  EXPECT_TRUE(open_nvrtc(torch()).empty()) << "a wheel without CUDA";
  const std::string old = add("nvidia/cuda_nvrtc/lib/libnvrtc.so.12");
  EXPECT_EQ(open_nvrtc(torch()), std::vector<std::string>{old});
  const std::string library = add("nvidia/cu13/lib/libnvrtc.so.13"),
                    builtins = add("nvidia/cu13/lib/libnvrtc-builtins.so.13.0");
  add("nvidia/cu13/lib/libnvrtc.alt.so.13");
  EXPECT_EQ(open_nvrtc(torch()), (std::vector<std::string>{library, builtins}));
}

TEST_F(WheelLibraries, PassOverWhatIsNoLibrary) {
  const std::string library = add("nvidia/cuda_nvrtc/lib/libnvrtc.so.13");
  const fs::path folder = torch() / "../../nvidia/cu13/lib";
  fs::create_directories(folder);
  std::ofstream(folder / "libnvrtc.so.13") << "a text";
  EXPECT_EQ(open_nvrtc(torch()), std::vector<std::string>{library});
}

}  // namespace
}  // namespace streambp
