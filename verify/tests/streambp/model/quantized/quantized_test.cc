// Matrices in 4 and 8 bits: the bits of bitsandbytes, which made the file that is read here.
#include "streambp/model/quantized/quantized.h"

#include <algorithm>
#include <cmath>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include "streambp/memory/meter.h"
#include "streambp/model/files/tensor_file.h"
#include "streambp/model/quantized/quantized_codes.h"
#include "streambp/ops/cpu/kernels.h"
#include "verify/tests/on_threads.h"
#include "verify/tests/streambp/model/file_testing.h"
#include "verify/tests/streambp/model/quantized/quantized_testing.h"

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

at::Tensor dequantised_plain(const QuantizedTensor& quantized, at::ScalarType dtype) {
  const at::Tensor into = at::full(quantized.shape, 7.0, dtype);
  dequantize_plain(quantized, into);
  return into;
}

constexpr auto kKernelDtypes = {at::kFloat, at::kDouble, at::kBFloat16};

std::string name_of(const RandomQuantized& kind) {
  return fmt::format("{} {} in blocks of {}, {}, of {}", quant_type_name(kind.type),
                     fmt::join(kind.shape, "x"), kind.blocksize, kind.nested_blocksize,
                     c10::toString(kind.dtype));
}

TEST(Quantized, KernelsGiveTheBitsOfAten) {
  uint64_t seed = 0;
  for (const RandomQuantized& kind : random_kinds()) {
    const QuantizedTensor quantized = random_quantized(kind, ++seed);
    for (const at::ScalarType dtype : kKernelDtypes) {
      const at::Tensor expected = dequantised_plain(quantized, dtype);
      EXPECT_TRUE(same_bits(dequantised(quantized, dtype), expected)) << name_of(kind) << " as " << dtype;
      const at::Tensor on_three = on_threads(3, [&] { return dequantised(quantized, dtype); });
      EXPECT_TRUE(same_bits(on_three, expected)) << name_of(kind) << " as " << dtype << ", 3 threads";
    }
  }
}

/// By the kernels of `set`.
template <typename S>
void dequantize_by(const cpu::KernelSet& set, const QuantizedTensor& quantized, const at::Tensor& into) {
  cpu::PackedNumbers from{.bits = quantized.type == QuantType::kInt8 ? 8 : 4,
                          .bytes = static_cast<const uint8_t*>(quantized.packed.const_data_ptr()),
                          .maxima = quantized.absmax.const_data_ptr<float>(),
                          .block_size = quantized.blocksize != 0 ? quantized.blocksize : into.size(1),
                          .count = into.numel()};
  if (from.bits == 4) std::copy_n(codes_of(quantized.type).begin(), 16, from.codes);
  if (quantized.dtype == at::kBFloat16) from.rounding = cpu::Rounding::kBfloat16;
  if (quantized.dtype == at::kHalf) from.rounding = cpu::Rounding::kHalf;
  set.of<S>().elementwise.dequantize.numbers(from, static_cast<S*>(into.mutable_data_ptr()));
}

TEST(Quantized, EveryInstructionSetGivesThem) {
  uint64_t seed = 0;
  for (const RandomQuantized& kind : random_kinds()) {
    if (kind.nested_blocksize != 0) continue;  // decoded before the kernels
    const QuantizedTensor quantized = random_quantized(kind, ++seed);
    for (const cpu::KernelSet& set : cpu::available_kernels()) {
      for (const at::ScalarType dtype : kKernelDtypes) {
        const at::Tensor found = at::full(kind.shape, 7.0, dtype);
        if (dtype == at::kFloat) dequantize_by<float>(set, quantized, found);
        if (dtype == at::kDouble) dequantize_by<double>(set, quantized, found);
        if (dtype == at::kBFloat16) dequantize_by<cpu::Bfloat16>(set, quantized, found);
        EXPECT_TRUE(same_bits(found, dequantised_plain(quantized, dtype)))
            << set.instruction_set << ": " << name_of(kind) << " as " << dtype;
      }
    }
  }
}

TEST(Quantized, KernelsTakeNoMemoryOfTheirOwn) {
  install_meters();
  for (const c10::Device device : {at::kCPU, at::kMeta}) {
    const QuantizedTensor quantized =
        quantize(at::zeros({300, 70}, at::TensorOptions(device).dtype(at::kFloat)), {QuantType::kNf4, true});
    for (const at::ScalarType dtype : {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf}) {
      const at::Tensor into = at::empty(quantized.shape, at::TensorOptions(device).dtype(dtype));
      reset_peak(device);
      dequantize_into(quantized, into);
      const MemoryReading reading = read_meter(device);
      EXPECT_EQ(reading.peak_bytes > reading.live_bytes, dtype == at::kHalf) << device << ", " << dtype;
    }
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
