// Matrices in 4 and 8 bits: the bits of bitsandbytes, which made the file that is read here.
#include "streambp/model/quantized/quantized.h"

#include <cmath>
#include <gtest/gtest.h>

#include "streambp/model/files/tensor_file.h"
#include "verify/tests/streambp/model/file_testing.h"

namespace streambp {
namespace {

/// A matrix of verify/goldens/quantized/matrices.safetensors.
struct Case {
  std::string name;
  Quantization quantization;
  at::Tensor value, dequantised;
  std::map<std::string, StoredTensor> stored;  // by the names that a model's parameter would have
  QuantizedTensor quantized;

  std::string weight() const { return name + ".weight"; }
};

std::vector<Case> cases() {
  const auto path = std::filesystem::path(STREAMBP_GOLDENS) / "quantized" / "matrices.safetensors";
  const SafetensorsFile file = SafetensorsFile::open(path);
  std::map<std::string, StoredTensor> all;
  for (const auto& [name, entry] : file.entries()) all.emplace(name, StoredTensor{file, name});
  std::vector<Case> found;
  for (const auto& [name, entry] : file.entries()) {
    if (!name.ends_with(".value")) continue;
    Case one;
    one.name = module_of(name);
    one.quantization = *parse_quantization(one.name.substr(0, one.name.find('-')),
                                           one.name.find("-double") != std::string::npos);
    one.value = read_tensor(file, name);
    one.dequantised = read_tensor(file, one.name + ".dequantised");
    one.stored = quantized_entries({one.weight(), entry.shape}, one.quantization, all);
    one.quantized =
        read_quantized([&](const std::string& part) -> const StoredTensor& { return one.stored.at(part); },
                       one.weight(), entry.shape, at::kCPU);
    found.push_back(std::move(one));
  }
  return found;
}

at::Tensor dequantised(const QuantizedTensor& quantized, at::ScalarType dtype) {
  const at::Tensor into = at::full(quantized.shape, 7.0, dtype);
  dequantize_into(quantized, into);
  return into;
}

TEST(Quantized, GivesTheNumbersOfBitsandbytes) {
  const std::vector<Case> all = cases();
  ASSERT_EQ(all.size(), 30u);
  for (const Case& one : all) {
    EXPECT_EQ(one.quantized.dtype, one.dequantised.scalar_type()) << one.name;
    EXPECT_TRUE(at::equal(dequantised(one.quantized, one.quantized.dtype), one.dequantised)) << one.name;
    EXPECT_GT(one.dequantised.abs().max().item<double>(), 0.0) << one.name;
  }
}

TEST(Quantized, WidensWhatWasRoundedAndRoundsWhatIsWider) {
  for (const Case& one : cases()) {
    for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf})
      EXPECT_TRUE(at::equal(dequantised(one.quantized, dtype), one.dequantised.to(dtype))) << one.name;
  }
}

TEST(Quantized, QuantisesToTheBytesOfBitsandbytes) {
  for (const Case& one : cases()) {
    const QuantizedTensor made = quantize(one.value, one.quantization);
    EXPECT_TRUE(at::equal(made.packed, one.quantized.packed)) << one.name;
    EXPECT_TRUE(at::equal(made.absmax, one.quantized.absmax)) << one.name;
    ASSERT_EQ(made.nested(), one.quantized.nested()) << one.name;
    EXPECT_EQ(made.nested(), one.quantization.double_quant) << one.name;
    EXPECT_EQ(made.dtype, one.quantized.dtype) << one.name;
    EXPECT_EQ(made.blocksize, one.quantized.blocksize) << one.name;
    if (!made.nested()) continue;
    EXPECT_TRUE(at::equal(made.nested_absmax, one.quantized.nested_absmax)) << one.name;
    EXPECT_TRUE(at::equal(made.nested_code, one.quantized.nested_code)) << one.name;
    EXPECT_EQ(made.nested_offset, one.quantized.nested_offset) << one.name;
    EXPECT_EQ(made.nested_blocksize, one.quantized.nested_blocksize) << one.name;
  }
}

TEST(Quantized, StoresWhatItWasReadFrom) {
  for (const Case& one : cases()) {
    std::map<std::string, at::Tensor> written;
    add_stored(one.quantized, one.weight(), written);
    const QuantizedNames names(one.weight());
    EXPECT_EQ(written.size() + one.stored.contains(names.state), one.stored.size()) << one.name;
    for (const auto& [name, tensor] : written) {
      const at::Tensor stored = read_tensor(one.stored.at(name).file, name);
      if (name.find(".quant_state.") != std::string::npos) {  // JSON, whose spaces are free
        const std::string text(static_cast<const char*>(tensor.const_data_ptr()), tensor.nbytes());
        const QuantState ours = parse_quant_state(text, name, one.quantization.type, one.quantized.shape);
        EXPECT_EQ(ours.nested_offset, one.quantized.nested_offset) << name;
        EXPECT_EQ(ours.blocksize, one.quantized.blocksize) << name;
        EXPECT_EQ(ours.dtype, dtype_name(one.quantized.dtype)) << name;
      } else {
        EXPECT_EQ(tensor.scalar_type(), stored.scalar_type()) << name;
        EXPECT_TRUE(at::equal(tensor, stored)) << name;
      }
    }
  }
}

TEST(Quantized, RefusesAnotherMapOfCodes) {
  const TempFolder folder;
  const auto read_with = [&](int64_t entry, double value) {
    std::map<std::string, at::Tensor> tensors;
    add_stored(quantize(at::ones({4, 16}), {}), "up.weight", tensors);
    tensors.at("up.weight.quant_map")[entry] = value;
    write_tensors(folder.path() / "model.safetensors", tensors);
    const SafetensorsFile file = SafetensorsFile::open(folder.path() / "model.safetensors");
    std::map<std::string, StoredTensor> all;
    for (const auto& [name, tensor] : tensors) all.emplace(name, StoredTensor{file, name});
    const auto stored = quantized_entries({"up.weight", {4, 16}}, {}, all);
    return dequantised(
        read_quantized([&](const std::string& part) -> const StoredTensor& { return stored.at(part); },
                       "up.weight", {4, 16}, at::kCPU),
        at::kFloat);
  };
  EXPECT_TRUE(at::equal(read_with(15, 1.0), at::ones({4, 16})));
  EXPECT_TRUE(refused([&] { read_with(3, -0.4); }, "model.safetensors", "up.weight.quant_map",
                      "entry 3 is -0.4", "expected -0.39", "nf4"));
  EXPECT_TRUE(refused([&] { read_with(0, std::nan("")); }, "entry 0 is nan"));
}

TEST(Quantized, LargeMatricesArePutTogetherFromParts) {
  // 2^22 values at a time: three parts, the last of an odd number of values.
  const at::Tensor value = at::randn({3, 3'000'001}, at::kFloat);
  for (const QuantType type : {QuantType::kNf4, QuantType::kInt8}) {
    const QuantizedTensor whole = quantize(value, {type, type == QuantType::kNf4});
    const at::Tensor numbers = dequantised(whole, at::kFloat);
    const double error = (numbers - value).abs().max().item<double>();
    EXPECT_TRUE(error <= (type == QuantType::kNf4 ? 0.16 : 0.005) * value.abs().max().item<double>())
        << error;
  }
}

TEST(Quantized, ShapesOnMetaAreThoseOfTheCpu) {
  for (const Case& one : cases()) {
    const QuantizedTensor shapes = quantize(one.value.to(at::kMeta), one.quantization);
    EXPECT_EQ(shapes.bytes(), one.quantized.bytes()) << one.name;
    dequantize_into(shapes, at::empty(shapes.shape, at::TensorOptions(at::kMeta).dtype(at::kBFloat16)));
  }
}

}  // namespace
}  // namespace streambp
