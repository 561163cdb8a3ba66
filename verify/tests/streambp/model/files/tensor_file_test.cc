#include "streambp/model/files/tensor_file.h"

#include <gtest/gtest.h>

#include "streambp/memory/meter.h"
#include "verify/tests/streambp/model/file_testing.h"

namespace streambp {
namespace {

/// More than are converted at a time, and no multiple of it.
constexpr int64_t kSize = (int64_t{1} << 20) + 77;

TEST(TensorFile, ReadsIntoAnyDtypeInParts) {
  const TempFolder folder;
  const auto path = folder.path() / "x.safetensors";
  const at::Tensor wide = at::randn({7, kSize / 7 + 1}, at::kDouble);
  for (const at::ScalarType stored : {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf}) {
    write_tensors(path, {{"x", wide.to(stored)}});
    const SafetensorsFile file = SafetensorsFile::open(path);
    EXPECT_TRUE(read_tensor(file, "x").equal(wide.to(stored)));
    for (const at::ScalarType wanted : {at::kDouble, at::kFloat, at::kBFloat16}) {
      const at::Tensor into = at::empty(wide.sizes(), wanted);
      read_into({file, "x"}, into);
      EXPECT_TRUE(into.equal(wide.to(stored).to(wanted))) << dtype_name(stored) << " " << dtype_name(wanted);
    }
  }
}

TEST(TensorFile, ConvertsWithoutASecondCopy) {
  install_meters();
  const TempFolder folder;
  const auto path = folder.path() / "x.safetensors";
  write_tensors(path, {{"x", at::ones({8 * kSize}, at::kBFloat16)}});
  const SafetensorsFile file = SafetensorsFile::open(path);
  const at::Tensor into = at::empty({8 * kSize}, at::kFloat);
  reset_peak(at::kCPU);
  const int64_t before = read_meter(at::kCPU).peak_bytes;
  read_into({file, "x"}, into);
  EXPECT_LE(read_meter(at::kCPU).peak_bytes, before + 100'000);
  EXPECT_TRUE(into.eq(1.0).all().item<bool>());
}

TEST(TensorFile, RefusesShapesThatTensorsCannotHave) {
  const TempFolder folder;
  const auto refuses = [&](const std::string& shape, const std::string& part) {
    const std::string header = R"({"x":{"dtype":"I64","shape":)" + shape + R"(,"data_offsets":[0,0]}})";
    std::string text(8, '\0');
    text[0] = static_cast<char>(header.size());
    const SafetensorsFile file = SafetensorsFile::open(folder.write("x.safetensors", text + header));
    return refused([&] { read_tensor(file, "x"); }, "x.safetensors", "\"x\"", part);
  };
  EXPECT_TRUE(refuses("[0,4611686018427387904,4]", "overflows 63 bits"));
  EXPECT_TRUE(refuses("[0,4611686018427387904,4611686018427387904]", "[0, 4611686018427387904"));
}

TEST(TensorFile, SaysThatAFileWasTruncatedMeanwhile) {
  const TempFolder folder;
  const auto path = folder.path() / "x.safetensors";
  write_tensors(path, {{"x", at::ones({kSize}, at::kFloat)}});
  const SafetensorsFile file = SafetensorsFile::open(path);
  std::filesystem::resize_file(path, 4'000'000);
  EXPECT_TRUE(refused([&] { read_tensor(file, "x"); }, path.string(), "truncated meanwhile"));
  EXPECT_TRUE(refused(
      [&] {
        read_into({file, "x"}, at::empty({kSize}, at::kDouble));
      },
      "truncated meanwhile"));
}

}  // namespace
}  // namespace streambp
