// Weights in MXFP4 and FP8: the bits of transformers, which made the files that are read here.
#include "streambp/model/quantized/unpack.h"

#include <algorithm>
#include <array>
#include <gtest/gtest.h>

#include "streambp/memory/meter.h"
#include "streambp/model/files/stored_names.h"
#include "streambp/model/files/tensor_file.h"
#include "verify/evaluation.h"
#include "verify/tests/streambp/model/file_testing.h"

namespace streambp {
namespace {

const std::filesystem::path kQuantized = std::filesystem::path(STREAMBP_GOLDENS) / "quantized";

std::map<std::string, StoredTensor> stored_tensors(const SafetensorsFile& file) {
  std::map<std::string, StoredTensor> all;
  for (const auto& [name, entry] : file.entries()) all.emplace(name, StoredTensor{file, name});
  return all;
}

at::Tensor unpacked(const ParameterShape& parameter, const Packing& packing, const SafetensorsFile& file,
                    at::ScalarType dtype, at::ScalarType into_dtype) {
  const auto entries = packed_entries(parameter, packing, stored_tensors(file));
  const at::Tensor into = at::full(parameter.shape, 7.0, into_dtype);
  unpack_into(
      packing, [&](const std::string& name) -> const StoredTensor& { return entries.at(name); },
      parameter.name, dtype, into);
  return into;
}

/// Zeros of two signs differ.
bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  if (a.scalar_type() != b.scalar_type() || a.sizes() != b.sizes()) return false;
  const at::ScalarType bits = a.element_size() == 2 ? at::kShort : at::kInt;
  return at::equal(a.contiguous().view(bits), b.contiguous().view(bits));
}

TEST(Unpack, GivesTheNumbersOfTransformers) {
  const SafetensorsFile file = SafetensorsFile::open(kQuantized / "packed.safetensors");
  int64_t compared = 0;
  for (const auto& [stored, entry] : file.entries()) {
    const std::string name = module_of(stored);
    for (const auto& [dtype_name, dtype] :
         {std::pair{"bfloat16", at::kBFloat16}, std::pair{"float32", at::kFloat}}) {
      if (stored != name + "." + dtype_name) continue;
      Packing packing;
      if (name.starts_with("fp8")) packing.format = PackedFormat::kFp8;
      if (const at::Tensor block = read_optional_tensor(file, name + ".block"); block.defined())
        packing.block = std::array{block[0].item<int64_t>(), block[1].item<int64_t>()};
      const ParameterShape parameter{name + ".weight", entry.shape};
      const at::Tensor expected = read_tensor(file, stored);
      EXPECT_TRUE(same_bits(unpacked(parameter, packing, file, dtype, dtype), expected)) << stored;
      EXPECT_TRUE(at::equal(unpacked(parameter, packing, file, dtype, at::kDouble), expected.to(at::kDouble)))
          << stored;
      ++compared;
    }
  }
  EXPECT_EQ(compared, 27);
}

TEST(Unpack, LargeMatricesArePutTogetherFromPartsInLittleMemory) {
  install_meters();
  const TempFolder folder;
  const at::Tensor codes = at::randint(0, 127, {5000, 2001}, at::kByte).view(at::kFloat8_e4m3fn);
  const at::Tensor scales = at::rand({40, 16}, at::kFloat);
  const at::Tensor blocks = at::randint(0, 256, {2, 70'000, 2, 16}, at::kByte);
  const at::Tensor exponents = at::randint(100, 150, {2, 70'000, 2}, at::kByte);
  const std::vector<std::pair<std::string, at::Tensor>> tensors = {{"fp8", codes.view(at::kByte)},
                                                                   {"fp8_scale_inv", scales},
                                                                   {"mxfp4_blocks", blocks},
                                                                   {"mxfp4_scales", exponents}};
  std::vector<SafetensorsView> views;
  for (const auto& [name, tensor] : tensors) {
    const char* const dtype = name == "fp8" ? "F8_E4M3" : name == "fp8_scale_inv" ? "F32" : "U8";
    views.push_back({name,
                     dtype,
                     tensor.sizes().vec(),
                     {static_cast<const std::byte*>(tensor.const_data_ptr()), tensor.nbytes()}});
  }
  write_safetensors(folder.path() / "model.safetensors", std::move(views));
  const SafetensorsFile file = SafetensorsFile::open(folder.path() / "model.safetensors");

  const at::Tensor spread =
      scales.repeat_interleave(128, 0).narrow(0, 0, 5000).repeat_interleave(128, 1).narrow(1, 0, 2001);
  const at::Tensor fp8 = (codes.to(at::kFloat) * spread).to(at::kBFloat16);
  reset_peak(at::kCPU);
  const int64_t before = read_meter(at::kCPU).live_bytes;
  EXPECT_TRUE(
      same_bits(unpacked({"fp8", {5000, 2001}}, {PackedFormat::kFp8, std::array<int64_t, 2>{128, 128}}, file,
                         at::kBFloat16, at::kBFloat16),
                fp8));
  // What it gives, what is compared with it, and parts of 2^22 values in float32, as bytes and rounded.
  const int64_t beyond = read_meter(at::kCPU).peak_bytes - before - static_cast<int64_t>(fp8.nbytes());
  EXPECT_LE(beyond, int64_t{1} << 25);

  const at::Tensor values = at::tensor({0.0F, 0.5F, 1.0F, 1.5F, 2.0F, 3.0F, 4.0F, 6.0F});
  const auto numbers = [&](const at::Tensor& nibbles) {
    const at::Tensor wide = nibbles.to(at::kInt);
    return values.index_select(0, wide.bitwise_and(7).flatten()).view(wide.sizes()) *
           wide.ge(8).to(at::kFloat).mul(-2.0).add(1.0);
  };
  const at::Tensor pairs =
      at::stack({numbers(blocks.bitwise_and(15)), numbers(blocks.to(at::kInt).div(16, "floor"))}, -1);
  const at::Tensor powers = at::exp2(exponents.to(at::kDouble) - 127).unsqueeze(-1);
  const at::Tensor mxfp4 =
      (pairs.view({2, 70'000, 2, 32}) * powers).view({2, 70'000, 64}).transpose(1, 2).to(at::kBFloat16);
  EXPECT_TRUE(at::equal(unpacked({"mxfp4", {2, 64, 70'000}}, {}, file, at::kBFloat16, at::kBFloat16), mxfp4));
}

double difference(const at::Tensor& ours, const at::Tensor& theirs) {
  return ((ours - theirs).abs().max() / theirs.abs().max()).item<double>();
}

TEST(Unpack, FoldersAreTheModelsOfTransformers) {
  for (const auto& [name, packed] : {std::pair("mxfp4", 2), std::pair("fp8", 13), std::pair("fp8-fp4", 35)}) {
    const std::filesystem::path folder = kQuantized / name;
    const SafetensorsFile file = SafetensorsFile::open(folder / "truth.safetensors");
    Model model = Model::load(Checkpoint::open(folder), {at::kDouble, at::kCPU, at::kDouble});
    EXPECT_EQ(model.provider(), nullptr) << "its weights are trained as any others";
    const Batch batch = pack(read_tensor(file, "input_ids"), {}, {}, {}, model.config().vocab_size);
    const at::Tensor expected = read_tensor(file, "log_probabilities");  // of the tokens that follow
    const at::Tensor found = unpack(batch, evaluate(model, batch).log_probabilities);
    const double error = (found.narrow(1, 0, expected.size(1)) - expected).abs().max().item<double>();
    EXPECT_TRUE(error <= 1e-12) << name << ": " << error;
    int64_t values = 0;
    size_t gradients = 0;
    for (const auto& [stored, entry] : file.entries()) {
      if (stored.starts_with("grad.")) ++gradients;
      if (!stored.starts_with("value.")) continue;
      const at::Tensor& value = model.parameter(parameter_name(model.config(), stored.substr(6))).value;
      EXPECT_TRUE(at::equal(value, read_tensor(file, stored).to(at::kDouble))) << stored;
      ++values;
    }
    EXPECT_EQ(values, packed) << name;
    const auto loss = make_objective("sft", batch);
    for (const MethodKind& kind : method_kinds()) {
      Settings settings;
      settings.method = kind.method;
      settings.chunk = 3;
      const auto ours = verify::evaluate(model, batch, *loss, settings);
      EXPECT_TRUE(std::abs(ours.loss - read_tensor(file, "loss").item<double>()) <= 1e-12) << name;
      for (const auto& [parameter, gradient] : ours.gradients)
        EXPECT_TRUE(difference(gradient,
                               read_tensor(file, "grad." + stored_name(model.config(), parameter))) <= 1e-10)
            << name << " " << kind.name << " " << parameter;
      EXPECT_EQ(ours.gradients.size(), gradients) << name;
    }
  }
}

TEST(Unpack, AdaptersAreTrainedOnTheNumbers) {
  const std::filesystem::path folder = kQuantized / "fp8";
  Model model = Model::load(Checkpoint::open(folder),
                            {at::kFloat, at::kCPU, at::kFloat, [](const std::string&) { return false; }});
  LoraConfig lora;
  lora.r = 2;
  lora.target_modules = {"q_proj"};
  model.attach_adapters(lora, 1);
  const Batch batch = random_batch({9}, model.config().vocab_size, 1);
  const auto ours = verify::evaluate(model, batch, *make_objective("sft", batch), {});
  EXPECT_EQ(ours.gradients.size(), 4u);
  model.merge_adapters();
}

}  // namespace
}  // namespace streambp
