// config.json: both spellings of transformers say the same, and what is not supported is refused by name.
#include "streambp/model/config/config.h"

#include <cmath>
#include <limits>

#include "verify/tests/streambp/model/config_testing.h"

namespace streambp {
namespace {

using nlohmann::json;

TEST(Config, BothSpellingsOfTheGoldenModelsAgree) {
  for (const char* model : {"gemma2", "gemma3", "llama", "llama-dynamic", "llama-pad", "llama-tied",
                            "llama-yarn", "mistral", "phi3", "qwen2", "qwen2-small", "qwen2-window", "qwen3",
                            "qwen3-bf16-sharded", "qwen3-moe", "qwen3-moe-aux", "qwen3-pad"}) {
    const Config config = read_config(kModels / model / "config.json");
    EXPECT_EQ(config, read_config(kModels / model / "config.legacy.json")) << model;
    EXPECT_GT(config.hidden_size, 0) << model;
  }
}

// What nn.Embedding makes of the padding_idx that the families' classes in transformers give it.
TEST(Config, ThePaddingTokenIsTheEmbeddings) {
  const auto token = [](const json& config) { return parse(config).pad_token_id; };
  for (const char* family : {"qwen2", "qwen3", "llama"}) {
    EXPECT_EQ(token(without(small_config(family), "pad_token_id")), std::nullopt) << family;
  }
  const json mistral = with(small_config("mistral"), {{"sliding_window", nullptr}});
  EXPECT_EQ(token(without(mistral, "pad_token_id")), std::nullopt);
  for (const char* family : {"gemma2", "gemma3_text"}) {
    EXPECT_EQ(token(without(small_config(family), "pad_token_id")), 0) << family;
    EXPECT_EQ(token(small_config(family)), std::nullopt) << family << ", null";
  }
  const json phi = without(small_config("phi3"), "pad_token_id");
  EXPECT_EQ(token(with(phi, {{"vocab_size", 32001}})), 32000);
  EXPECT_TRUE(refuses(phi, "pad_token_id is missing", "from -101 to 100", "absent: 32000"));
  const json llama = small_config("llama");
  EXPECT_EQ(token(with(llama, {{"pad_token_id", 100}})), 100);
  EXPECT_EQ(token(with(llama, {{"pad_token_id", -1}})), 100);
  EXPECT_EQ(token(with(llama, {{"pad_token_id", -101}})), 0);
  const std::vector<json> wrong = {101, -102, 1e300, 2.0, true, "0", std::numeric_limits<uint64_t>::max()};
  for (const json& value : wrong) {
    EXPECT_TRUE(refuses(with(llama, {{"pad_token_id", value}}), "pad_token_id is ", "from -101 to 100"));
  }
  EXPECT_EQ(read_config(kModels / "llama-pad" / "config.json").pad_token_id, 2);
  EXPECT_EQ(read_config(kModels / "qwen3-pad" / "config.json").pad_token_id, 36);
  // Of a multimodal Gemma 3 that of the text part counts.
  json text = without(small_config("gemma3_text"), "pad_token_id");
  json whole = {{"model_type", "gemma3"}, {"text_config", text}, {"pad_token_id", 5}};
  for (const char* key : {"tie_word_embeddings", "torch_dtype"}) whole[key] = text[key];
  EXPECT_EQ(token(whole), 0);
  whole["text_config"]["pad_token_id"] = 7;
  EXPECT_EQ(token(whole), 7);
  for (const std::string& name : preset_names()) EXPECT_EQ(preset(name).pad_token_id, std::nullopt) << name;
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
  expected.rotary_dim = 8;
  expected.attention_scale = 1.0 / std::sqrt(8.0);
  expected.windows = {0, 0};
  expected.mixture.sparse = {false, false};
  expected.max_position_embeddings = 512;
  expected.rms_norm_eps = 1e-5;
  expected.tie_word_embeddings = true;
  expected.rope = rope_settings(RopeType::kLlama3, 500.0, 32.0, 48);
  expected.dtype = "float64";
  EXPECT_EQ(read_config(kModels / "llama-tied" / "config.json"), expected);

  const Config qwen3 = read_config(kModels / "qwen3-bf16-sharded" / "config.json");
  EXPECT_EQ(qwen3.family, "qwen3");
  EXPECT_EQ(qwen3.head_dim, 16);
  EXPECT_EQ(qwen3.rope, rope_settings(RopeType::kDefault, 1e6, 1.0, 0));
  EXPECT_EQ(qwen3.dtype, "bfloat16");
  EXPECT_TRUE(qwen3.qk_norm);
  EXPECT_FALSE(qwen3.qkv_bias || qwen3.o_bias || qwen3.mlp_bias);

  const Config qwen2 = read_config(kModels / "qwen2" / "config.json");
  EXPECT_EQ(qwen2.head_dim, 16);  // 64 / 4: the key is absent
  EXPECT_TRUE(qwen2.qkv_bias);
  EXPECT_FALSE(qwen2.o_bias || qwen2.mlp_bias || qwen2.qk_norm);

  const Config biased = parse(with(small_config("llama"), {{"attention_bias", true}, {"mlp_bias", true}}));
  EXPECT_TRUE(biased.qkv_bias && biased.o_bias && biased.mlp_bias);
  const Config biased_qwen3 = parse(with(small_config("qwen3"), {{"attention_bias", true}}));
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
  EXPECT_EQ(parse(with(small_config("qwen3"), {{"num_key_value_heads", nullptr}})).num_key_value_heads, 6);
  EXPECT_EQ(parse(without(with(small_config("qwen3"), {{"hidden_size", 768}}), "head_dim")).head_dim, 128);
}

TEST(Config, AClassifierWithOneLabelScores) {
  const nlohmann::json scores =
      with(small_config("llama"),
           {{"architectures", {"LlamaForSequenceClassification"}}, {"id2label", {{"0", "LABEL_0"}}}});
  EXPECT_TRUE(parse(scores).value_model);
  EXPECT_TRUE(parse(with(without(scores, "id2label"), {{"num_labels", 1}})).value_model);
  EXPECT_FALSE(parse(with(scores, {{"architectures", {"LlamaForCausalLM"}}})).value_model);
  EXPECT_TRUE(refuses(with(scores, {{"id2label", {{"0", "bad"}, {"1", "good"}}}}), "id2label"));
  EXPECT_TRUE(refuses(without(scores, "id2label"), "num_labels"));
}

TEST(Config, RefusesImpossibleSizes) {
  for (const char* key : {"model_type", "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers",
                          "num_attention_heads"}) {
    EXPECT_TRUE(refuses(without(small_config("llama"), key), key, "missing"));
    EXPECT_TRUE(refuses(with(small_config("llama"), {{key, nullptr}}), key, "null"));
  }
  for (const char* key :
       {"vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
        "num_key_value_heads", "head_dim", "max_position_embeddings"}) {
    for (const json& value :
         {json(0), json(-8), json(8.0), json(8.5), json("8"), json(true), json::array({8}),
          json(int64_t{1} << 41), json(std::numeric_limits<uint64_t>::max()), json(1e30)}) {
      EXPECT_TRUE(refuses(with(small_config("qwen2"), {{key, value}}), std::string(key) + " is",
                          "an integer from 1 to "))
          << value;
    }
  }
  EXPECT_TRUE(refuses(with(small_config("llama"), {{"num_key_value_heads", 4}}), "num_key_value_heads is 4",
                      "divisor"));
  EXPECT_TRUE(refuses(with(small_config("llama"), {{"num_key_value_heads", 12}}), "num_key_value_heads is 12",
                      "divisor"));
  EXPECT_TRUE(refuses(with(small_config("llama"), {{"head_dim", 7}}), "head_dim is 7", "even"));
  EXPECT_TRUE(refuses(without(with(small_config("llama"), {{"hidden_size", 42}}), "head_dim"),
                      "head_dim is missing", "even number, not 7"));
  EXPECT_TRUE(refuses(without(with(small_config("llama"), {{"hidden_size", 50}}), "head_dim"),
                      "head_dim is missing", "an integer"));
  EXPECT_TRUE(refuses(without(small_config("qwen3"), "head_dim"), "head_dim is missing"));
  EXPECT_TRUE(refuses(without(small_config("qwen3"), "num_key_value_heads"), "num_key_value_heads is missing",
                      "not the 32 of its class"));
  for (const json& value : {json(0), json(-1e-6), json("1e-6")}) {
    EXPECT_TRUE(refuses(with(small_config("llama"), {{"rms_norm_eps", value}}), "rms_norm_eps", "a number"));
    EXPECT_TRUE(refuses(with(small_config("llama"), {{"rope_theta", value}}), "rope_theta", "a number"));
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
      {"hidden_act", "quick_gelu"},
      {"hidden_activation", "gelu_pytorch_tanh"},
      {"attention_dropout", 0.1},
      {"pretraining_tp", 2},
      {"partial_rotary_factor", 0.5},
      {"quantization_config", {{"quant_method", "gptq"}}},
      {"attn_logit_softcapping", 50.0},
      {"final_logit_softcapping", 30.0},
      {"sliding_window", 4096},
      {"query_pre_attn_scalar", 64},
      {"num_experts", 4},
      {"rope_local_base_freq", 1e4},
      {"lm_head_bias", true},
      {"resid_pdrop", 0.1},
      {"embd_pdrop", 0.1},
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
      {"model_type", "gpt2"},
      {"model_type", 3}};
  for (const char* family : {"llama", "qwen2", "qwen3"}) {
    for (const auto& [key, value] : unsupported) {
      EXPECT_TRUE(refuses(with(small_config(family), {{key, value}}), std::string(key) + " is "))
          << family << " " << value;
    }
  }
  EXPECT_TRUE(
      refuses(with(small_config("llama"), {{"use_sliding_window", true}}), "use_sliding_window is true"));
  EXPECT_TRUE(refuses(with(small_config("qwen2"), {{"attention_bias", false}}), "attention_bias is false"));
  EXPECT_TRUE(refuses(with(small_config("qwen2"), {{"mlp_bias", true}}), "mlp_bias is true"));
  EXPECT_TRUE(refuses(with(small_config("qwen3"), {{"mlp_bias", true}}), "mlp_bias is true"));
  EXPECT_TRUE(
      refuses(with(small_config("qwen3"), {{"model_type", "Qwen3"}}), "\"Qwen3\"",
              "expected one of bamba, cohere, cohere2, deepseek_v3, deepseek_v32, deepseek_v4, ernie4_5, "
              "ernie4_5_moe, exaone4, falcon_h1, "));
}

TEST(Config, AcceptsTheSupportedValueSpelledOut) {
  // Hunyuan's dense files count their MLP as an expert.
  EXPECT_EQ(parse(with(small_config("hunyuan_v1_dense"), {{"num_experts", 1}})),
            parse(small_config("hunyuan_v1_dense")));
  for (const auto& [name, activation] :
       {std::pair("swish", Activation::kSilu), std::pair("gelu", Activation::kGelu),
        std::pair("gelu_new", Activation::kGeluTanh), std::pair("relu", Activation::kRelu)})
    EXPECT_EQ(parse(with(small_config("llama"), {{"hidden_act", name}})).hidden_act, activation);
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
    EXPECT_EQ(parse(with(small_config(family), spelled_out)), parse(small_config(family))) << family;
  }
}

TEST(Config, ReadsInfinityAsPythonWritesIt) {
  json bamba = with(small_config("llama"), {{"model_type", "bamba"}, {"attn_layer_indices", {1}}});
  bamba.update({{"mamba_n_heads", 8}, {"mamba_d_head", 12}, {"time_step_limit", {0.0, "INF"}}});
  std::string text = bamba.dump();
  text.replace(text.find("\"INF\""), 5, "Infinity");
  const Config config = parse_config(text, "x.json");
  EXPECT_TRUE(std::isinf(config.delta_rule.time_step_high));
  EXPECT_EQ(config, parse(with(bamba, {{"time_step_limit", {0.0, {{"__float__", "Infinity"}}}}})));
  // Within strings, behind an escaped quote and elsewhere it is nothing of the kind.
  EXPECT_EQ(parse_config(R"({"note": "\\\"Infinity", "Infinity": "\\",)" + text.substr(1), "x.json"), config);
  EXPECT_TRUE(refused(
      [&] {
        parse_config(R"({"rms_norm_eps": Infinity,)" + without(bamba, "rms_norm_eps").dump().substr(1),
                     "x.json");
      },
      "rms_norm_eps is", "Infinity"));
  for (const char* bad : {"{\"a\":-Infinity}", "{\"a\":Infinity1}", "{\"a\":\"Infinity", "{\"a\":Infinit}"})
    EXPECT_TRUE(refused([&] { parse_config(bad, "x.json"); }, "x.json: not valid JSON")) << bad;
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

}  // namespace
}  // namespace streambp
