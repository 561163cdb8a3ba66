// Folders with bitsandbytes' weights: what config.json may say, and which tensors a quantised weight needs.
#include "streambp/model/quantized/quantization.h"

#include <cstring>
#include <functional>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "streambp/model/files/checkpoint.h"
#include "verify/tests/streambp/model/config_testing.h"
#include "verify/tests/streambp/model/made_checkpoint.h"

namespace streambp {
namespace {

using nlohmann::json;

constexpr const char* kWeight = "model.layers.0.mlp.up_proj.weight";  // [6, 10]

json config_with(const json& quantization) {
  const json sizes = {{"hidden_size", 10},        {"intermediate_size", 6},
                      {"num_hidden_layers", 1},   {"num_attention_heads", 5},
                      {"num_key_value_heads", 5}, {"head_dim", 2},
                      {"vocab_size", 7},          {"quantization_config", quantization}};
  return with(small_config("llama"), sizes);
}

json quantization_of(const Quantization& quantization, const std::string& compute_dtype = "bfloat16") {
  return json::parse(quantization_json(quantization, compute_dtype));
}

json nf4(bool double_quant = false) {
  return quantization_of({QuantType::kNf4, double_quant});
}

std::optional<Quantization> read(const json& config) {
  const TempFolder folder;
  return read_quantization(folder.write("config.json", config.dump()));
}

TEST(Quantization, ReadsWhatTransformersWrites) {
  EXPECT_EQ(read(small_config("llama")), std::nullopt);
  EXPECT_EQ(read(config_with(nullptr)), std::nullopt);
  for (const Quantization& one : {Quantization{QuantType::kNf4, true},
                                  {QuantType::kNf4, false},
                                  {QuantType::kFp4, true},
                                  {QuantType::kInt8, false}})
    EXPECT_EQ(read(config_with(quantization_of(one, "float16"))), one);
  // What BitsAndBytesConfig(load_in_4bit=True) is by default, as transformers 4 saved it.
  const json by_default = {{"_load_in_4bit", true},
                           {"_load_in_8bit", false},
                           {"bnb_4bit_compute_dtype", "float32"},
                           {"bnb_4bit_quant_storage", "uint8"},
                           {"bnb_4bit_quant_type", "fp4"},
                           {"bnb_4bit_use_double_quant", false},
                           {"llm_int8_enable_fp32_cpu_offload", false},
                           {"llm_int8_has_fp16_weight", false},
                           {"llm_int8_skip_modules", {"lm_head"}},
                           {"llm_int8_threshold", 6.0},
                           {"load_in_4bit", true},
                           {"load_in_8bit", false},
                           {"quant_method", "bitsandbytes"}};
  EXPECT_EQ(read(config_with(by_default)), (Quantization{QuantType::kFp4, false}));
  EXPECT_EQ(parse(config_with(by_default)), parse(config_with(nullptr)));
  const json multimodal = {{"model_type", "gemma3"}, {"text_config", {{"quantization_config", nf4()}}}};
  EXPECT_EQ(read(multimodal), (Quantization{QuantType::kNf4, false}));
}

TEST(Quantization, RefusesOtherSettings) {
  const auto refused_with = [](const json& changes, const auto&... parts) {
    return refuses(config_with(with(nf4(), changes)), "quantization_config", parts...);
  };
  EXPECT_TRUE(refuses(config_with("nf4"), "quantization_config", "an object"));
  EXPECT_TRUE(refused_with({{"quant_method", "gptq"}}, "gptq", "load_in_4bit"));
  EXPECT_TRUE(refused_with({{"load_in_8bit", true}}, "one of load_in_4bit and load_in_8bit"));
  EXPECT_TRUE(refused_with({{"load_in_4bit", false}}, "one of load_in_4bit and load_in_8bit"));
  EXPECT_TRUE(refused_with({{"bnb_4bit_quant_type", "af4"}}, "bnb_4bit_quant_type is \"af4\"", "nf4 or fp4"));
  EXPECT_TRUE(
      refused_with({{"bnb_4bit_quant_storage", "float64"}}, "bnb_4bit_quant_storage", "one of uint8"));
  EXPECT_TRUE(refused_with({{"bnb_4bit_compute_dtype", "int8"}}, "bnb_4bit_compute_dtype", "bfloat16"));
  EXPECT_TRUE(refused_with({{"bnb_4bit_use_double_quant", 1}}, "bnb_4bit_use_double_quant", "true or false"));
  EXPECT_TRUE(refused_with({{"llm_int8_has_fp16_weight", true}}, "llm_int8_has_fp16_weight"));
  EXPECT_TRUE(refused_with({{"llm_int8_skip_modules", "lm_head"}}, "llm_int8_skip_modules", "a list"));
  EXPECT_TRUE(refused_with({{"bits", 4}}, "bits", "no such key"));
}

TEST(Quantization, ReadsFlags) {
  EXPECT_EQ(parse_quantization("none", false), std::nullopt);
  EXPECT_EQ(parse_quantization("nf4", true), (Quantization{QuantType::kNf4, true}));
  EXPECT_EQ(parse_quantization("int8", false), (Quantization{QuantType::kInt8, false}));
  EXPECT_EQ(parse_quantization("nf4-experts", true), (Quantization{QuantType::kNf4, true, true}));
  EXPECT_TRUE(refused([] { parse_quantization("int4", false); }, "--quantize", "int4", "nf4, fp4 or int8"));
  for (const char* type : {"none", "int8"})
    EXPECT_TRUE(refused([&] { parse_quantization(type, true); }, "--double-quant", "nf4 and fp4"));
}

// One quantised weight of a folder, to be changed and written.
class QuantizedFolder : public testing::Test {
 protected:
  void make(const Quantization& quantization) {
    folder_.write("config.json", config_with(quantization_of(quantization)).dump());
    tensors_.clear();
    for (const ParameterShape& parameter : parameter_shapes(parse(config_with(nullptr))))
      set(parameter.name, "BF16", parameter.shape);
    if (quantization.type == QuantType::kInt8) {
      set(kWeight, "I8", {6, 10});
      set("model.layers.0.mlp.up_proj.SCB", "F32", {6});
      set("model.layers.0.mlp.up_proj.weight_format", "U8", {});
      return;
    }
    set(kWeight, "U8", {30, 1});
    set(absmax(), quantization.double_quant ? "U8" : "F32", {1});
    set(std::string(kWeight) + ".quant_map", "F32", {16});
    state_ = {.type = quantization.type, .dtype = "bfloat16", .shape = {6, 10}};
    if (quantization.double_quant) {
      state_.nested = true;
      state_.nested_blocksize = 256;
      state_.nested_offset = 0.25;
      set(std::string(kWeight) + ".nested_absmax", "F32", {1});
      set(std::string(kWeight) + ".nested_quant_map", "F32", {256});
    }
    set_state(json::parse(quant_state_json(state_)));
  }

  std::string absmax() const { return std::string(kWeight) + ".absmax"; }
  std::string state_name() const { return QuantizedNames(kWeight).stored_state(state_.type); }
  void set(const std::string& name, const std::string& dtype, const std::vector<int64_t>& shape) {
    tensors_[name] = {dtype, shape, std::vector<std::byte>(safetensors_size(dtype, shape))};
  }
  void set_state(const json& state) { set_state_text(state.dump()); }
  void set_state_text(const std::string& text) {
    set(state_name(), "U8", {static_cast<int64_t>(text.size())});
    std::memcpy(tensors_[state_name()].bytes.data(), text.data(), text.size());
  }

  Checkpoint open() { return open_made(folder_, tensors_); }

  template <typename... Parts>
  testing::AssertionResult refuses_with(const Parts&... parts) {
    return refused([&] { open(); }, "model.safetensors", parts...);
  }

  TempFolder folder_;
  std::map<std::string, MadeTensor> tensors_;
  QuantState state_;
};

TEST_F(QuantizedFolder, ReadsEveryForm) {
  for (const Quantization& one : {Quantization{QuantType::kNf4, true},
                                  {QuantType::kNf4, false},
                                  {QuantType::kFp4, true},
                                  {QuantType::kInt8, false}}) {
    make(one);
    const Checkpoint checkpoint = open();
    const bool eight = one.type == QuantType::kInt8;
    EXPECT_EQ(checkpoint.entry(kWeight).dtype, eight ? "I8" : "U8");
    const QuantizedNames names(kWeight);
    if (eight) {
      EXPECT_EQ(checkpoint.entry(names.row_maxima).dtype, "F32");
      tensors_.erase(names.weight_format);  // older files have none
      EXPECT_NO_THROW(open());
    } else {
      const QuantState state = read_quant_state(checkpoint.stored(names.state), one.type, {6, 10});
      EXPECT_EQ(state.nested, one.double_quant);
      EXPECT_EQ(state.nested_offset, one.double_quant ? 0.25 : 0.0);
      EXPECT_EQ(state.blocksize, 64);
      EXPECT_EQ(state.dtype, "bfloat16");
    }
  }
}

/// bnb_4bit_quant_storage: the bytes of packed weights come under another dtype.
TEST_F(QuantizedFolder, ReadsWhatIsStoredAsOtherNumbers) {
  for (const auto& [storage, dtype, size] :
       {std::tuple("bfloat16", "BF16", 15), {"float16", "F16", 15}, {"uint8", "U8", 30}}) {
    make({QuantType::kNf4, true});
    json config = quantization_of({QuantType::kNf4, true});
    config["bnb_4bit_quant_storage"] = storage;
    folder_.write("config.json", config_with(config).dump());
    set(kWeight, dtype, {size, 1});
    std::vector<std::byte>& bytes = tensors_[kWeight].bytes;
    for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(3 + 8 * i);
    const Checkpoint checkpoint = open();
    const StoredTensor& stored = checkpoint.stored(kWeight);
    EXPECT_EQ(stored.entry().dtype, "U8") << storage;
    EXPECT_EQ(stored.entry().shape, (std::vector<int64_t>{30, 1})) << storage;
    std::vector<std::byte> read(30);
    stored.read(0, read);
    EXPECT_EQ(read, bytes) << storage;
  }
}

TEST_F(QuantizedFolder, RefusesTensorsThatDoNotFit) {
  const auto after = [&](const std::function<void()>& change, const auto&... parts) {
    make({QuantType::kNf4, true});
    change();
    return refuses_with(parts...);
  };
  const std::string map = std::string(kWeight) + ".quant_map",
                    nested = std::string(kWeight) + ".nested_absmax";
  EXPECT_TRUE(after([&] { set(absmax(), "U8", {2}); }, absmax(), "U8 [2]", "expected U8 [1]"));
  EXPECT_TRUE(after([&] { set(absmax(), "F32", {1}); }, absmax(), "F32 [1]", "expected U8 [1]"));
  EXPECT_TRUE(after([&] { tensors_.erase(absmax()); }, absmax(), "is missing"));
  EXPECT_TRUE(after([&] { tensors_.erase(map); }, map, "is missing"));
  EXPECT_TRUE(after([&] { set(map, "F32", {15}); }, map, "expected F32 [16]"));
  EXPECT_TRUE(after([&] { tensors_.erase(nested); }, nested, "is missing"));
  EXPECT_TRUE(after([&] { set(nested, "F32", {2}); }, nested, "expected F32 [1]"));
  EXPECT_TRUE(after([&] { tensors_.erase(state_name()); }, "quant_state.bitsandbytes__nf4", "is missing"));
  EXPECT_TRUE(after([&] { set(kWeight, "U8", {29, 1}); }, kWeight, "U8 [29,1]", "expected U8 [30,1]"));
  EXPECT_TRUE(after([&] { set(kWeight, "U8", {6, 10}); }, kWeight, "expected U8 [30,1]"));
  EXPECT_TRUE(after([&] { set(kWeight, "I8", {6, 10}); }, kWeight, "expected U8 [30,1]"));
  EXPECT_TRUE(after([&] { set(std::string(kWeight) + ".more", "F32", {1}); }, "more", "is not a parameter"));
  // A weight that is stored as it is, and what would belong to a quantised one.
  EXPECT_TRUE(after([&] { set(kWeight, "BF16", {6, 10}); }, kWeight, "BF16 [6,10]", "expected U8 [30,1]"));
  EXPECT_TRUE(after([&] { set(kWeight, "BF16", {14, 1}); }, kWeight, "BF16 [14,1]", "expected U8 [30,1]"));
  // Files of another kind than config.json says.
  make({QuantType::kFp4, false});
  folder_.write("config.json", config_with(nf4()).dump());
  EXPECT_TRUE(refuses_with("quant_state.bitsandbytes__nf4", "is missing"));
  folder_.write("config.json", config_with(nullptr).dump());
  EXPECT_TRUE(refuses_with(kWeight, "[30,1]", "expected [6,10]"));
}

TEST_F(QuantizedFolder, RefusesStatesThatDoNotFit) {
  const auto with_state = [&](const json& changes, const auto&... parts) {
    make({QuantType::kNf4, true});
    set_state(with(json::parse(quant_state_json(state_)), changes));
    return refuses_with(state_name(), parts...);
  };
  EXPECT_TRUE(with_state({{"quant_type", "af4"}}, "quant_type is \"af4\"", "nf4"));
  EXPECT_TRUE(with_state({{"blocksize", 63}}, "blocksize is 63", "32, 64"));
  EXPECT_TRUE(with_state({{"blocksize", 0}}, "blocksize is 0"));
  EXPECT_TRUE(with_state({{"blocksize", 1e300}}, "blocksize"));
  EXPECT_TRUE(with_state({{"dtype", "float64"}}, "dtype is \"float64\"", "bfloat16"));
  EXPECT_TRUE(with_state({{"shape", {10, 6}}}, "shape is [10,6]", "[6,10]"));
  EXPECT_TRUE(with_state({{"shape", nullptr}}, "shape is null"));
  EXPECT_TRUE(with_state({{"nested_blocksize", -1}}, "nested_blocksize"));
  EXPECT_TRUE(with_state({{"nested_dtype", "bfloat16"}}, "nested_dtype"));
  EXPECT_TRUE(with_state({{"nested_offset", "0"}}, "nested_offset", "a number"));
  EXPECT_TRUE(with_state({{"nested_offset", nullptr}}, "nested_offset"));
  EXPECT_TRUE(with_state({{"outliers", 3}}, "outliers", "no such key"));
  const auto with_text = [&](const std::string& text, const auto&... parts) {
    make({QuantType::kNf4, true});
    set_state_text(text);
    return refuses_with("quant_state", parts...);
  };
  EXPECT_TRUE(with_text("{", "nf4"));
  EXPECT_TRUE(with_text("[]", "not a JSON object"));
  EXPECT_TRUE(with_text(std::string(5000, ' '), "4096"));
}

TEST_F(QuantizedFolder, RefusesRowsThatDoNotFit) {
  const std::string maxima = "model.layers.0.mlp.up_proj.SCB";
  make({QuantType::kInt8, false});
  set(maxima, "F32", {10});
  EXPECT_TRUE(refuses_with(maxima, "F32 [10]", "expected F32 [6]"));
  make({QuantType::kInt8, false});
  tensors_.erase(maxima);
  EXPECT_TRUE(refuses_with(maxima, "is missing"));
  make({QuantType::kInt8, false});
  tensors_["model.layers.0.mlp.up_proj.weight_format"].bytes[0] = std::byte{1};  // col32
  EXPECT_TRUE(refuses_with("weight_format", "is 1, expected 0"));
}

TEST(Quantization, TakesTheMapsOfLayers) {
  const auto names = [](const char* model) {
    std::vector<std::string> found;
    for (const ParameterShape& shape : parameter_shapes(preset(model))) {
      if (is_quantizable(shape, {QuantType::kNf4, false, /*experts=*/true}) &&
          shape.name.find("layers.1.") != std::string::npos)
        found.push_back(shape.name.substr(std::string("model.layers.1.").size()));
    }
    return found;
  };
  EXPECT_EQ(names("qwen3-tiny"),
            (std::vector<std::string>{"self_attn.q_proj.weight", "self_attn.k_proj.weight",
                                      "self_attn.v_proj.weight", "self_attn.o_proj.weight",
                                      "mlp.gate_proj.weight", "mlp.up_proj.weight", "mlp.down_proj.weight"}));
  // bitsandbytes packs torch.nn.Linear alone; transformers 5 holds experts as parameters of three dimensions.
  for (const char* model : {"qwen3-moe-tiny", "mixtral-tiny", "deepseek-v3-tiny"}) {
    int64_t experts = 0;
    for (const ParameterShape& shape : parameter_shapes(preset(model))) {
      const bool is_expert = shape.name.find(".mlp.experts.") != std::string::npos;
      const bool alone = is_quantizable(shape, {QuantType::kNf4, false, /*experts=*/false});
      const bool too = is_quantizable(shape, {QuantType::kNf4, false, /*experts=*/true});
      EXPECT_EQ(alone, too && !is_expert) << shape.name;
      experts += is_expert && too ? 1 : 0;
    }
    EXPECT_GT(experts, 0) << model;
  }
  for (const char* model : {"qwen3-moe-tiny", "gpt-oss-tiny", "gemma4-moe-tiny", "deepseek-v3-tiny"}) {
    for (const std::string& name : names(model)) {
      EXPECT_EQ(name.find("router"), std::string::npos) << name;
      EXPECT_NE(name, "mlp.gate.weight");
    }
  }
}

}  // namespace
}  // namespace streambp
