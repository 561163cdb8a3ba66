// Folders with weights in MXFP4 or FP8: what config.json may say, and which tensors a packed weight needs.
#include "streambp/model/quantized/packed.h"

#include <functional>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "streambp/model/files/checkpoint.h"
#include "verify/tests/streambp/model/config_testing.h"
#include "verify/tests/streambp/model/made_checkpoint.h"

namespace streambp {
namespace {

using nlohmann::json;

constexpr const char* kUp = "model.layers.0.mlp.up_proj.weight";            // [6, 10]
constexpr const char* kDown = "model.layers.0.mlp.experts.down_proj";       // [2, 32, 32]
constexpr const char* kGateUp = "model.layers.0.mlp.experts.gate_up_proj";  // [2, 32, 64]

json fp8(const json& block) {
  return {{"quant_method", "fp8"}, {"activation_scheme", "dynamic"}, {"weight_block_size", block}};
}

json llama(const json& quantization) {
  const json sizes = {{"hidden_size", 10},        {"intermediate_size", 6},
                      {"num_hidden_layers", 1},   {"num_attention_heads", 5},
                      {"num_key_value_heads", 5}, {"head_dim", 2},
                      {"vocab_size", 7},          {"quantization_config", quantization}};
  return with(small_config("llama"), sizes);
}

json gpt_oss(int64_t intermediate_size) {
  json config = small_config("gpt_oss");
  config.erase("rope_theta");
  return with(config, {{"num_hidden_layers", 1},
                       {"hidden_size", 32},
                       {"intermediate_size", intermediate_size},
                       {"num_local_experts", 2},
                       {"num_experts_per_tok", 1},
                       {"quantization_config", {{"quant_method", "mxfp4"}}}});
}

// A folder of zeros, to be changed and written.
class PackedFolder : public testing::Test {
 protected:
  void make(const json& config) {
    folder_.write("config.json", config.dump());
    tensors_.clear();
    for (const ParameterShape& parameter : parameter_shapes(parse(config)))
      set(parameter.name, "BF16", parameter.shape);
  }

  void make_fp8(const json& block = {4, 4}, const std::vector<int64_t>& grid = {2, 3}) {
    make(llama(fp8(block)));
    set(kUp, "F8_E4M3", {6, 10});
    set(scales(), "F32", grid);
  }

  void make_mxfp4() {
    make(gpt_oss(32));
    for (const auto& [name, outputs] : {std::pair{kGateUp, 64}, std::pair{kDown, 32}}) {
      tensors_.erase(name);
      set(std::string(name) + "_blocks", "U8", {2, outputs, 1, 16});
      set(std::string(name) + "_scales", "U8", {2, outputs, 1});
    }
  }

  static std::string scales() { return std::string(kUp) + "_scale_inv"; }
  void set(const std::string& name, const std::string& dtype, const std::vector<int64_t>& shape) {
    tensors_[name] = {dtype, shape, std::vector<std::byte>(safetensors_size(dtype, shape))};
  }

  Checkpoint open() { return open_made(folder_, tensors_); }

  template <typename... Parts>
  testing::AssertionResult refuses_with(const Parts&... parts) {
    return refused([&] { open(); }, "model.safetensors", "dequantize=True", parts...);
  }

  TempFolder folder_;
  std::map<std::string, MadeTensor> tensors_;
};

TEST_F(PackedFolder, ReadsBlocksOfFp8) {
  make_fp8();
  const Checkpoint checkpoint = open();
  ASSERT_TRUE(checkpoint.packing(kUp));
  EXPECT_EQ(checkpoint.packing(kUp)->format, PackedFormat::kFp8);
  EXPECT_EQ(checkpoint.packing(kUp)->block, (std::array<int64_t, 2>{4, 4}));
  EXPECT_EQ(checkpoint.entry(scales()).dtype, "F32");
  // modules_to_not_convert, and whatever else has no scales.
  EXPECT_FALSE(checkpoint.packing("model.layers.0.mlp.down_proj.weight"));
  EXPECT_FALSE(checkpoint.packing("model.norm.weight"));
  for (const char* dtype : {"BF16", "F16", "F8_E8M0", "U8"}) {
    set(scales(), dtype, {2, 3});
    EXPECT_NO_THROW(open()) << dtype;
  }
  set("model.layers.0.mlp.up_proj.activation_scale", "BF16", {});
  EXPECT_NO_THROW(open());
}

TEST_F(PackedFolder, ReadsOneScaleOfFp8) {
  for (const std::vector<int64_t>& shape : std::vector<std::vector<int64_t>>{{}, {1}, {1, 1}}) {
    make_fp8(nullptr, shape);
    EXPECT_FALSE(open().packing(kUp)->block);
  }
  make_fp8(nullptr, {2, 3});
  EXPECT_TRUE(refuses_with(scales(), "F32 [2,3]", "one scale"));
  json config = llama(fp8(nullptr));
  config["quantization_config"].erase("weight_block_size");
  make_fp8({128, 128}, {1, 1});
  folder_.write("config.json", config.dump());
  EXPECT_EQ(open().packing(kUp)->block, (std::array<int64_t, 2>{128, 128}));
}

TEST_F(PackedFolder, RefusesFp8ThatDoesNotFit) {
  const auto after = [&](const std::function<void()>& change, const auto&... parts) {
    make_fp8();
    change();
    return refuses_with(parts...);
  };
  EXPECT_TRUE(after([&] { tensors_.erase(scales()); }, scales(), "is missing"));
  EXPECT_TRUE(after(
      [&] {
        set(scales(), "F32", {3, 2});
      },
      scales(), "F32 [3,2]", "blocks of 4 x 4 for [6,10]"));
  EXPECT_TRUE(after([&] { set(scales(), "F32", {}); }, scales(), "F32 []", "blocks of 4 x 4"));
  EXPECT_TRUE(after([&] { set(scales(), "F64", {2, 3}); }, scales(), "F64 [2,3]", "F32, BF16"));
  EXPECT_TRUE(after([&] { set(kUp, "F8_E5M2", {6, 10}); }, kUp, "F8_E5M2", "expected F8_E4M3 [6,10]"));
  EXPECT_TRUE(after([&] { set(kUp, "F8_E4M3", {10, 6}); }, kUp, "[10,6]", "expected F8_E4M3 [6,10]"));
  EXPECT_TRUE(after([&] { set("model.norm.weight", "F8_E4M3", {10}); }, "model.norm.weight", "no matrix"));
  // As vLLM's own FP8 checkpoints name them, which transformers does not read either.
  EXPECT_TRUE(after(
      [&] {
        tensors_.erase(scales());
        set("model.layers.0.mlp.up_proj.weight_scale", "F32", {1});
      },
      scales(), "is missing"));
  make_fp8();
  set(kUp, "BF16", {6, 10});
  EXPECT_TRUE(refused([&] { open(); }, scales(), "is not a parameter"));
  make_fp8();
  folder_.write("config.json", llama(nullptr).dump());
  EXPECT_TRUE(refused([&] { open(); }, kUp, "F8_E4M3"));
}

TEST_F(PackedFolder, RefusesBlockSizes) {
  for (const json& block :
       {json({0, 4}), json({4}), json({4, -4}), json({4, 4, 4}), json("4"), json({4, 1e300})}) {
    make_fp8();
    folder_.write("config.json", llama(fp8(block)).dump());
    EXPECT_TRUE(
        refused([&] { open(); }, "config.json", "quantization_config.weight_block_size", "two sizes"));
    EXPECT_TRUE(is_packed(folder_.path() / "config.json")) << "enough for sizes";
  }
}

TEST_F(PackedFolder, ReadsMxfp4) {
  make_mxfp4();
  const Checkpoint checkpoint = open();
  ASSERT_TRUE(checkpoint.packing(kDown));
  EXPECT_EQ(checkpoint.packing(kDown)->format, PackedFormat::kMxfp4);
  EXPECT_EQ(checkpoint.entry(kGateUp).shape, (std::vector<int64_t>{2, 64, 1, 16}));
  EXPECT_FALSE(checkpoint.packing("model.layers.0.mlp.experts.down_proj_bias"));
  make(gpt_oss(32));
  EXPECT_FALSE(open().packing(kDown)) << "stored as they are";
}

TEST_F(PackedFolder, RefusesMxfp4ThatDoesNotFit) {
  const std::string blocks = std::string(kDown) + "_blocks", scales = std::string(kDown) + "_scales";
  const auto after = [&](const std::function<void()>& change, const auto&... parts) {
    make_mxfp4();
    change();
    return refuses_with(parts...);
  };
  EXPECT_TRUE(after([&] { tensors_.erase(scales); }, scales, "is missing"));
  EXPECT_TRUE(after([&] { tensors_.erase(blocks); }, blocks, "is missing"));
  EXPECT_TRUE(after([&] { set(blocks, "U8", {2, 32, 16, 1}); }, blocks, "expected U8 [2,32,1,16]"));
  EXPECT_TRUE(after([&] { set(blocks, "I8", {2, 32, 1, 16}); }, blocks, "I8", "expected U8"));
  EXPECT_TRUE(after([&] { set(scales, "U8", {2, 32, 2}); }, scales, "expected U8 [2,32,1]"));
  EXPECT_TRUE(after([&] { set(scales, "F32", {2, 32, 1}); }, scales, "F32", "expected U8"));
  make_mxfp4();
  tensors_.erase(scales);
  tensors_.erase(blocks);
  EXPECT_TRUE(refused([&] { open(); }, kDown, "is missing"));
  make_mxfp4();
  set(kDown, "BF16", {2, 32, 32});
  EXPECT_TRUE(refused([&] { open(); }, blocks, "is not a parameter"));
  make(gpt_oss(34));
  tensors_.erase(kDown);
  set(blocks, "U8", {2, 32, 1, 16});
  set(scales, "U8", {2, 32, 1});
  EXPECT_TRUE(refuses_with(blocks, "34 inputs", "blocks of 32"));
}

}  // namespace
}  // namespace streambp
