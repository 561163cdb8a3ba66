// config.json: both spellings of transformers say the same, and what is not supported is refused by name.
#include "streambp/model/config.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <set>

#include "verify/file_testing.h"

namespace streambp {
namespace {

using nlohmann::json;

const std::filesystem::path kModels = std::filesystem::path(STREAMBP_GOLDENS) / "models";

// A small model as transformers 4 writes it.
json base(const std::string& family) {
  return {{"model_type", family},     {"vocab_size", 101},      {"hidden_size", 48},
          {"intermediate_size", 44},  {"num_hidden_layers", 3}, {"num_attention_heads", 6},
          {"num_key_value_heads", 2}, {"head_dim", 8},          {"max_position_embeddings", 512},
          {"rms_norm_eps", 1e-5},     {"rope_theta", 500.0},    {"tie_word_embeddings", true},
          {"torch_dtype", "bfloat16"}};
}

json with(json config, const json& changes) {
  config.update(changes);
  return config;
}

json without(json config, const std::string& key) {
  config.erase(key);
  return config;
}

Config parse(const json& config) {
  return parse_config(config.dump(), "test.json");
}

template <typename... Parts>
testing::AssertionResult refuses(const json& config, const Parts&... parts) {
  return refused([&] { parse(config); }, "test.json: ", parts...);
}

const json kLlama3 = {{"rope_type", "llama3"},
                      {"factor", 8.0},
                      {"low_freq_factor", 1.0},
                      {"high_freq_factor", 4.0},
                      {"original_max_position_embeddings", 32}};

TEST(Config, BothSpellingsOfTheGoldenModelsAgree) {
  for (const char* model : {"llama", "llama-tied", "qwen2", "qwen2-small", "qwen3", "qwen3-bf16-sharded"}) {
    const Config config = read_config(kModels / model / "config.json");
    EXPECT_EQ(config, read_config(kModels / model / "config.legacy.json")) << model;
    EXPECT_GT(config.hidden_size, 0) << model;
  }
  for (const char* file : {"config.json", "config.legacy.json"}) {
    EXPECT_TRUE(
        refused([&] { read_config(kModels / "gemma3" / file); }, "gemma3_text", "llama, qwen2, qwen3"));
  }
}

TEST(Config, ReadsEverySetting) {
  Config expected;
  expected.family = "llama";
  expected.vocab_size = 89;
  expected.hidden_size = 24;
  expected.intermediate_size = 36;
  expected.num_hidden_layers = 2;
  expected.num_attention_heads = 3;
  expected.num_key_value_heads = 1;
  expected.head_dim = 8;
  expected.max_position_embeddings = 512;
  expected.rms_norm_eps = 1e-5;
  expected.tie_word_embeddings = true;
  expected.rope = {RopeType::kLlama3, 500.0, 32.0, 1.0, 4.0, 48};
  expected.dtype = "float64";
  EXPECT_EQ(read_config(kModels / "llama-tied" / "config.json"), expected);

  const Config qwen3 = read_config(kModels / "qwen3-bf16-sharded" / "config.json");
  EXPECT_EQ(qwen3.family, "qwen3");
  EXPECT_EQ(qwen3.head_dim, 16);
  EXPECT_EQ(qwen3.rope, (RopeSettings{RopeType::kDefault, 1e6, 1.0, 1.0, 4.0, 0}));
  EXPECT_EQ(qwen3.dtype, "bfloat16");
  EXPECT_TRUE(qwen3.qk_norm);
  EXPECT_FALSE(qwen3.qkv_bias || qwen3.o_bias || qwen3.mlp_bias);

  const Config qwen2 = read_config(kModels / "qwen2" / "config.json");
  EXPECT_EQ(qwen2.head_dim, 16);  // 64 / 4: the key is absent
  EXPECT_TRUE(qwen2.qkv_bias);
  EXPECT_FALSE(qwen2.o_bias || qwen2.mlp_bias || qwen2.qk_norm);

  const Config biased = parse(with(base("llama"), {{"attention_bias", true}, {"mlp_bias", true}}));
  EXPECT_TRUE(biased.qkv_bias && biased.o_bias && biased.mlp_bias);
  const Config biased_qwen3 = parse(with(base("qwen3"), {{"attention_bias", true}}));
  EXPECT_TRUE(biased_qwen3.qkv_bias && biased_qwen3.o_bias && !biased_qwen3.mlp_bias);
}

TEST(Config, TakesTheDefaultsOfTransformers) {
  const Config config = parse({{"model_type", "llama"},
                               {"vocab_size", 101},
                               {"hidden_size", 48},
                               {"intermediate_size", 44},
                               {"num_hidden_layers", 3},
                               {"num_attention_heads", 6},
                               {"head_dim", nullptr},
                               {"rope_scaling", nullptr},
                               {"unheard_of", {1, 2}}});
  EXPECT_EQ(config.num_key_value_heads, 6);
  EXPECT_EQ(config.head_dim, 8);
  EXPECT_EQ(config.max_position_embeddings, 2048);
  EXPECT_EQ(config.rms_norm_eps, 1e-6);
  EXPECT_EQ(config.rope, RopeSettings{});
  EXPECT_EQ(config.rope.theta, 10000.0);
  EXPECT_FALSE(config.tie_word_embeddings || config.qkv_bias || config.o_bias || config.mlp_bias ||
               config.qk_norm);
  EXPECT_EQ(config.dtype, "float32");
  EXPECT_EQ(parse(with(base("qwen3"), {{"num_key_value_heads", nullptr}})).num_key_value_heads, 6);
  EXPECT_EQ(parse(without(with(base("qwen3"), {{"hidden_size", 768}}), "head_dim")).head_dim, 128);
}

TEST(Config, RefusesImpossibleSizes) {
  for (const char* key : {"model_type", "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers",
                          "num_attention_heads"}) {
    EXPECT_TRUE(refuses(without(base("llama"), key), key, "missing"));
    EXPECT_TRUE(refuses(with(base("llama"), {{key, nullptr}}), key, "null"));
  }
  for (const char* key :
       {"vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
        "num_key_value_heads", "head_dim", "max_position_embeddings"}) {
    for (const json& value :
         {json(0), json(-8), json(8.0), json(8.5), json("8"), json(true), json::array({8}),
          json(int64_t{1} << 41), json(std::numeric_limits<uint64_t>::max()), json(1e30)}) {
      EXPECT_TRUE(
          refuses(with(base("qwen2"), {{key, value}}), std::string(key) + " is", "an integer from 1 to "))
          << value;
    }
  }
  EXPECT_TRUE(
      refuses(with(base("llama"), {{"num_key_value_heads", 4}}), "num_key_value_heads is 4", "divisor"));
  EXPECT_TRUE(
      refuses(with(base("llama"), {{"num_key_value_heads", 12}}), "num_key_value_heads is 12", "divisor"));
  EXPECT_TRUE(refuses(with(base("llama"), {{"head_dim", 7}}), "head_dim is 7", "even"));
  EXPECT_TRUE(refuses(without(with(base("llama"), {{"hidden_size", 42}}), "head_dim"), "head_dim is missing",
                      "even number, not 7"));
  EXPECT_TRUE(refuses(without(with(base("llama"), {{"hidden_size", 50}}), "head_dim"), "head_dim is missing",
                      "an integer"));
  EXPECT_TRUE(refuses(without(base("qwen3"), "head_dim"), "head_dim is missing"));
  EXPECT_TRUE(refuses(without(base("qwen3"), "num_key_value_heads"), "num_key_value_heads is missing"));
  for (const json& value : {json(0), json(-1e-6), json("1e-6")}) {
    EXPECT_TRUE(refuses(with(base("llama"), {{"rms_norm_eps", value}}), "rms_norm_eps", "a number"));
    EXPECT_TRUE(refuses(with(base("llama"), {{"rope_theta", value}}), "rope_theta", "a number"));
  }
}

TEST(Config, LargestSizesDoNotOverflow) {
  const Config config = parse({{"model_type", "llama"},
                               {"vocab_size", 1 << 24},
                               {"hidden_size", 1 << 18},
                               {"intermediate_size", 1 << 22},
                               {"num_hidden_layers", 1 << 12},
                               {"num_attention_heads", 1 << 12},
                               {"head_dim", 1 << 13}});
  const int64_t d = 1 << 18, f = 1 << 22, q = 1 << 25, v = 1 << 24, layers = 1 << 12;
  const int64_t count = parameter_count(config);
  EXPECT_EQ(count, 2 * v * d + layers * (4 * q * d + 3 * f * d + 2 * d) + d);
  EXPECT_LT(count, std::numeric_limits<int64_t>::max() / 8);
}

TEST(Config, RefusesWhatWouldChangeTheMathematics) {
  const std::vector<std::pair<const char*, json>> unsupported = {
      {"hidden_act", "gelu"},
      {"hidden_activation", "gelu_pytorch_tanh"},
      {"attention_dropout", 0.1},
      {"pretraining_tp", 2},
      {"partial_rotary_factor", 0.5},
      {"quantization_config", {{"quant_method", "fp8"}}},
      {"attn_logit_softcapping", 50.0},
      {"final_logit_softcapping", 30.0},
      {"use_sliding_window", true},
      {"sliding_window", 4096},
      {"is_causal", false},
      {"use_bidirectional_attention", true},
      {"layer_types", {"full_attention", "sliding_attention", "full_attention"}},
      {"layer_types", {"full_attention", "full_attention"}},
      {"layer_types", "full_attention"},
      {"tie_word_embeddings", "true"},
      {"attention_bias", 0},
      {"dtype", "int8"},
      {"dtype", "float32"},
      {"torch_dtype", 16},
      {"model_type", "qwen3_moe"},
      {"model_type", 3}};
  for (const char* family : {"llama", "qwen2", "qwen3"}) {
    for (const auto& [key, value] : unsupported) {
      EXPECT_TRUE(refuses(with(base(family), {{key, value}}), std::string(key) + " is "))
          << family << " " << value;
    }
  }
  EXPECT_TRUE(refuses(with(base("qwen2"), {{"attention_bias", false}}), "attention_bias is false"));
  EXPECT_TRUE(refuses(with(base("qwen2"), {{"mlp_bias", true}}), "mlp_bias is true"));
  EXPECT_TRUE(refuses(with(base("qwen3"), {{"mlp_bias", true}}), "mlp_bias is true"));
  EXPECT_TRUE(refuses(with(base("qwen3"), {{"model_type", "Qwen3"}}), "\"Qwen3\"", "llama, qwen2, qwen3"));
}

TEST(Config, AcceptsTheSupportedValueSpelledOut) {
  const json spelled_out = {{"hidden_act", "silu"},
                            {"attention_dropout", 0.0},
                            {"pretraining_tp", 1},
                            {"partial_rotary_factor", 1.0},
                            {"quantization_config", nullptr},
                            {"attn_logit_softcapping", nullptr},
                            {"use_sliding_window", false},
                            {"sliding_window", 32768},
                            {"max_window_layers", 21},
                            {"layer_types", {"full_attention", "full_attention", "full_attention"}},
                            {"dtype", "bfloat16"},
                            {"rope_scaling", nullptr}};
  for (const char* family : {"llama", "qwen2", "qwen3"}) {
    EXPECT_EQ(parse(with(base(family), spelled_out)), parse(base(family))) << family;
  }
}

TEST(Config, ReadsRopeInEverySpelling) {
  const RopeSettings llama3 = {RopeType::kLlama3, 500.0, 8.0, 1.0, 4.0, 32};
  const json llama = base("llama");
  EXPECT_EQ(parse(with(llama, {{"rope_scaling", kLlama3}})).rope, llama3);
  EXPECT_EQ(
      parse(with(llama, {{"rope_scaling", with(without(kLlama3, "rope_type"), {{"type", "llama3"}})}})).rope,
      llama3);
  EXPECT_EQ(parse(with(llama, {{"rope_scaling", with(kLlama3, {{"type", "llama3"}})}})).rope, llama3);
  const json five = with(kLlama3, {{"rope_theta", 500}});
  EXPECT_EQ(parse(with(without(llama, "rope_theta"), {{"rope_parameters", five}})).rope, llama3);
  EXPECT_EQ(parse(with(llama, {{"rope_parameters", kLlama3}})).rope, llama3);
  EXPECT_EQ(parse(with(llama, {{"rope_parameters", five}, {"rope_scaling", kLlama3}})).rope, llama3);
  EXPECT_EQ(
      parse(with(without(llama, "rope_theta"), {{"rope_parameters", five}, {"rope_scaling", kLlama3}})).rope,
      llama3);
  EXPECT_EQ(parse(with(without(llama, "rope_theta"), {{"rope_scaling", kLlama3}})).rope.theta, 10000.0);
  const json linear = {{"type", "linear"}, {"factor", 4}, {"high_freq_factor", nullptr}};
  EXPECT_EQ(parse(with(llama, {{"rope_scaling", linear}})).rope,
            (RopeSettings{RopeType::kLinear, 500.0, 4.0, 1.0, 4.0, 0}));
  EXPECT_EQ(parse(with(llama, {{"rope_scaling", {{"rope_type", "default"}}}})).rope, parse(llama).rope);
  EXPECT_EQ(parse(with(llama, {{"rope_scaling", json::object()}})).rope, parse(llama).rope);
}

TEST(Config, RefusesBadRope) {
  const json llama = base("llama");
  const auto refuses_rope = [&](const json& changes, const std::string& part, const std::string& other = "") {
    return refuses(with(llama, {{"rope_scaling", with(kLlama3, changes)}}), "rope_scaling." + part, other);
  };
  for (const char* key :
       {"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"}) {
    EXPECT_TRUE(refuses(with(llama, {{"rope_scaling", without(kLlama3, key)}}),
                        std::string("rope_scaling.") + key, "missing"));
    EXPECT_TRUE(refuses_rope({{key, "8"}}, key));
    EXPECT_TRUE(refuses_rope({{key, -1}}, key));
  }
  EXPECT_TRUE(refuses_rope({{"factor", 0.5}}, "factor is 0.5", "at least 1"));
  EXPECT_TRUE(refuses_rope({{"low_freq_factor", 0}}, "low_freq_factor is 0"));
  EXPECT_TRUE(refuses_rope({{"low_freq_factor", 4.0}}, "high_freq_factor", "above low_freq_factor"));
  EXPECT_TRUE(refuses_rope({{"original_max_position_embeddings", 32.0}}, "original_max_position_embeddings",
                           "an integer"));
  EXPECT_TRUE(refuses_rope({{"rope_type", "yarn"}}, "rope_type is \"yarn\"", "default, linear or llama3"));
  EXPECT_TRUE(refuses_rope({{"rope_type", 1}}, "rope_type is 1", "a string"));
  EXPECT_TRUE(refuses_rope({{"type", "linear"}}, "rope_type is \"llama3\"", "the same as type: \"linear\""));
  EXPECT_TRUE(refuses_rope({{"rope_type", "linear"}}, "high_freq_factor is 4.0",
                           "no such key with rope type linear"));
  EXPECT_TRUE(refuses_rope({{"rope_type", nullptr}}, "factor is 8.0", "rope type default"));
  EXPECT_TRUE(refuses_rope({{"attention_factor", 1.2}}, "attention_factor"));
  EXPECT_TRUE(refuses_rope({{"partial_rotary_factor", 0.5}}, "partial_rotary_factor"));
  EXPECT_TRUE(refuses_rope({{"rope_theta", 600.0}}, "rope_theta is 600.0", "500.0"));
  EXPECT_TRUE(refuses(with(llama, {{"rope_scaling", {{"type", "dynamic"}, {"factor", 2.0}}}}),
                      "rope_scaling.type", "dynamic"));
  EXPECT_TRUE(
      refuses(with(llama, {{"rope_scaling", {{"type", "linear"}}}}), "rope_scaling.factor is missing"));
  EXPECT_TRUE(refuses(with(llama, {{"rope_scaling", "linear"}}), "rope_scaling.", "not a JSON object"));
  EXPECT_TRUE(refuses(with(llama, {{"rope_parameters", {{"full_attention", kLlama3}}}}),
                      "rope_parameters.full_attention"));
  EXPECT_TRUE(refuses(with(llama, {{"rope_parameters", {{"rope_theta", 1e6}, {"rope_type", "default"}}}}),
                      "rope_parameters.rope_theta"));
  EXPECT_TRUE(
      refuses(with(llama, {{"rope_parameters", {{"rope_type", "default"}}}, {"rope_scaling", kLlama3}}),
              "rope_scaling is ", "the same as rope_parameters"));
}

TEST(Config, RefusesBadFiles) {
  EXPECT_TRUE(refused([] { parse_config("", "x.json"); }, "x.json: not valid JSON"));
  EXPECT_TRUE(refused([] { parse_config("[1]", "x.json"); }, "x.json: config is not a JSON object"));
  EXPECT_TRUE(refused([] { parse_config("{\"a\":1e999}", "x.json"); }, "x.json: not valid JSON"));
  EXPECT_TRUE(refused([] { parse_config("{\"a\":NaN}", "x.json"); }, "x.json: not valid JSON"));
  EXPECT_TRUE(refused([] { parse_config("{\"a\":1,}", "x.json"); }, "x.json: not valid JSON"));
  EXPECT_TRUE(refused([] { parse_config("{\"a\":{\"b\":1,\"b\":1}}", "x.json"); }, "\"b\" appears twice"));
  EXPECT_TRUE(refused([] { parse_config("{\"a\n\xff\"", "x.json"); }, "x.json: not valid JSON"));
  const TempFolder folder;
  EXPECT_TRUE(refused([&] { read_config(folder.path() / "config.json"); }, "config.json: no such file"));
  EXPECT_TRUE(refused([&] { read_config(folder.path()); }, folder.path().string(), "not a regular file"));
  folder.write("config.json", "{}");
  EXPECT_TRUE(
      refused([&] { read_config(folder.path() / "config.json"); }, "config.json: model_type is missing"));
}

// What the model cards and `model.safetensors.index.json` give; a tied embedding counts once.
TEST(Presets, HaveThePublishedNumberOfParameters) {
  const std::map<std::string, int64_t> published = {
      {"qwen3-0.6b", 596'049'920},       {"qwen3-1.7b", 1'720'574'976},   {"qwen3-4b", 4'022'468'096},
      {"qwen3-8b", 8'190'735'360},       {"qwen3-14b", 14'768'307'200},   {"qwen3-32b", 32'762'123'264},
      {"qwen2.5-0.5b", 494'032'768},     {"qwen2.5-1.5b", 1'543'714'304}, {"qwen2.5-3b", 3'085'938'688},
      {"qwen2.5-7b", 7'615'616'512},     {"qwen2.5-14b", 14'770'033'664}, {"qwen2.5-32b", 32'763'876'352},
      {"qwen2.5-72b", 72'706'203'648},   {"llama-3-8b", 8'030'261'248},   {"llama-3.1-8b", 8'030'261'248},
      {"llama-3.1-70b", 70'553'706'496}, {"llama-3.2-1b", 1'235'814'400}, {"llama-3.2-3b", 3'212'749'824}};
  for (const auto& [name, count] : published) EXPECT_EQ(parameter_count(preset(name)), count) << name;
  std::size_t small = 0;
  for (const std::string& name : preset_names()) {
    small += name.ends_with("-cpu") || name.ends_with("-tiny");
    EXPECT_TRUE(published.contains(name) || parameter_count(preset(name)) < 50'000'000) << name;
  }
  EXPECT_EQ(small + published.size(), preset_names().size());
}

TEST(Presets, AreFoundByName) {
  const std::vector<std::string> names = preset_names();
  EXPECT_EQ(std::set(names.begin(), names.end()).size(), names.size());
  for (const char* name :
       {"qwen3-cpu", "qwen2-cpu", "llama-cpu", "qwen3-tiny", "qwen2-tiny", "llama-tiny", "llama-tied-tiny"}) {
    EXPECT_TRUE(is_preset(name)) << name;
  }
  EXPECT_FALSE(is_preset("qwen3-9b"));
  EXPECT_TRUE(refused([] { preset("qwen3-9b"); }, "no preset \"qwen3-9b\"", "qwen3-8b, ", "llama-tied-tiny"));
  const Config config = preset("llama-3.2-3b");
  EXPECT_EQ(config.rope, (RopeSettings{RopeType::kLlama3, 5e5, 32.0, 1.0, 4.0, 8192}));
  EXPECT_EQ(config.dtype, "bfloat16");
  EXPECT_EQ(config.max_position_embeddings, 131072);
}

TEST(Parameters, AreListedInTheModelsOrder) {
  std::vector<std::string> names;
  for (const auto& parameter : parameter_shapes(
           parse(with(base("qwen2"), {{"num_hidden_layers", 1}, {"tie_word_embeddings", false}})))) {
    names.push_back(parameter.name + " " + json(parameter.shape).dump());
  }
  const std::vector<std::string> expected = {"model.embed_tokens.weight [101,48]",
                                             "model.layers.0.input_layernorm.weight [48]",
                                             "model.layers.0.self_attn.q_proj.weight [48,48]",
                                             "model.layers.0.self_attn.q_proj.bias [48]",
                                             "model.layers.0.self_attn.k_proj.weight [16,48]",
                                             "model.layers.0.self_attn.k_proj.bias [16]",
                                             "model.layers.0.self_attn.v_proj.weight [16,48]",
                                             "model.layers.0.self_attn.v_proj.bias [16]",
                                             "model.layers.0.self_attn.o_proj.weight [48,48]",
                                             "model.layers.0.post_attention_layernorm.weight [48]",
                                             "model.layers.0.mlp.gate_proj.weight [44,48]",
                                             "model.layers.0.mlp.up_proj.weight [44,48]",
                                             "model.layers.0.mlp.down_proj.weight [48,44]",
                                             "model.norm.weight [48]",
                                             "lm_head.weight [101,48]"};
  EXPECT_EQ(names, expected);

  std::set<std::string> biases;
  for (const auto& parameter :
       parameter_shapes(parse(with(base("llama"), {{"attention_bias", true}, {"mlp_bias", true}})))) {
    EXPECT_NE(parameter.name, "lm_head.weight");
    if (parameter.name.ends_with(".bias"))
      biases.insert(parameter.name.substr(parameter.name.find('.', 13) + 1));
  }
  EXPECT_EQ(biases, (std::set<std::string>{"self_attn.q_proj.bias", "self_attn.k_proj.bias",
                                           "self_attn.v_proj.bias", "self_attn.o_proj.bias",
                                           "mlp.gate_proj.bias", "mlp.up_proj.bias", "mlp.down_proj.bias"}));
}

}  // namespace
}  // namespace streambp
