// Presets are the published models, and parameters come in the order, with the names and shapes, of the
// model.
#include <cmath>
#include <map>
#include <set>

#include "verify/tests/streambp/model/config_testing.h"

namespace streambp {
namespace {

using nlohmann::json;

// Parameters of the text part of a multimodal Gemma 3 with `total`: less SigLIP (27 layers of 1152 with an
// MLP of 4304, patches of 14 x 14 x 3 with 4096 positions, a norm at the end) and the projection to `hidden`.
int64_t text_part(int64_t total, int64_t hidden) {
  const int64_t width = 1152, mlp = 4304;
  const int64_t layer = 4 * (width * width + width) + 2 * width * mlp + mlp + width + 4 * width;
  const int64_t tower = 27 * layer + 14 * 14 * 3 * width + width + 4096 * width + 2 * width;
  return total - tower - (width * hidden + width);
}

// Billions on the model cards, where files hold more than the model: layers that predict further tokens,
// and 0.46 in what sees and hears.
const std::map<std::string, double> kRounded = {{"deepseek-v3", 671.0},      {"kimi-k2", 1027.0},
                                                {"glm-4.5-air", 106.8},      {"gemma-4-31b", 30.7},
                                                {"glm-4.7", 352.8},          {"minimax-m2", 230.0},
                                                {"hunyuan-7b", 7.5},         {"gemma-4-26b-a4b", 25.2},
                                                {"gemma-4-e2b", 5.1 - 0.46}, {"gemma-4-e4b", 8.0 - 0.46}};

// As transformers' classes count them, the larger two Commands by hand from their sizes. LFM2's, Kimi
// Linear's, DeepSeek V3.2's, Muse Spark's, Step 3.7's, GLM-5's, GLM-5.3's, Hunyuan 4's, MiniMax M3's and
// DeepSeek V4's classes have their routers' corrections as buffers, the last one its tables of tokens'
// experts too.
const std::map<std::string, int64_t> kOfClasses = {
    {"command-r-35b", 34'980'831'232},
    {"command-r-plus-104b", 103'810'674'688},
    {"nemotron-3-super-120b-a12b", 120'668'687'360 + 40 * 512},
    {"command-r7b", 8'028'033'024},
    {"command-a-111b", 111'057'580'032},
    {"ernie-4.5-21b-a3b", 21'825'437'888},
    {"falcon-h1-0.5b", 521'411'104},
    {"falcon-h1-7b", 7'585'519'712},
    {"granite-3.1-3b-a800m", 3'298'793'472},
    {"granite-4.0-h-small", 32'207'337'984},
    {"granite-4.0-h-7b", 6'939'037'248},
    {"lfm2-350m", 354'483'968},
    {"muse-glimmer-30b", 27'854'780'928},
    {"muse-spark-816b-a42b", 819'990'536'192 + 62 * 256},
    {"lfm2-1.2b", 1'170'340'608},
    {"lfm3-1.7b", 1'728'801'536},
    {"lfm2-8b-a1b", 8'339'929'856 + 22 * 32},
    {"deepseek-v3.2-exp", 671'877'929'216 + 58 * 256},
    {"hy4-preview", 58'278'193'133 + 33 * 256},
    {"kimi-linear-48b-a3b", 49'122'675'072 + 26 * 256},
    {"step-3.7-flash", 196'956'118'272 + 42 * 288},
    {"zamba2-1.2b", 1'215'064'704},
    {"zamba2-2.7b", 2'662'214'560},
    {"zamba2-7b", 7'356'749'648},
    {"deepseek-v4-flash", 284'325'869'015 + 40 * 256 + 3 * 129280 * 6},
    {"mistral-large-4", 1'050'118'202'912},
    {"mistral-small-4", 118'972'826'624},
    {"glm-4.7-flash", 29'943'390'976 + 46 * 64},  // and the corrections of its routers' choices
    {"qwen4-exp", 176'943'899'520},
    {"minimax-m3", 426'174'565'632 + 57 * 128},
    {"glm-5.3-flash", 313'326'816'766 + 42 * 288},
    {"glm-5", 743'911'199'232 + 75 * 256}};

// What the model cards and `model.safetensors.index.json` give, of Granite 4 and Nemotron-H transformers'
// class of their config.json; a tied embedding counts once.
TEST(Presets, HaveThePublishedNumberOfParameters) {
  const int64_t kCorrections = 23 * 128;  // Nemotron 3's, of its routers' choices: buffers of that class
  std::map<std::string, int64_t> published = {{"qwen3-0.6b", 596'049'920},
                                              {"qwen3-1.7b", 1'720'574'976},
                                              {"qwen3-4b", 4'022'468'096},
                                              {"qwen3-8b", 8'190'735'360},
                                              {"qwen3-14b", 14'768'307'200},
                                              {"qwen3-32b", 32'762'123'264},
                                              {"qwen2.5-0.5b", 494'032'768},
                                              {"qwen2.5-1.5b", 1'543'714'304},
                                              {"qwen2.5-3b", 3'085'938'688},
                                              {"qwen2.5-7b", 7'615'616'512},
                                              {"qwen2.5-14b", 14'770'033'664},
                                              {"qwen2.5-32b", 32'763'876'352},
                                              {"qwen2.5-72b", 72'706'203'648},
                                              {"llama-3-8b", 8'030'261'248},
                                              {"llama-3.1-8b", 8'030'261'248},
                                              {"llama-3.1-70b", 70'553'706'496},
                                              {"llama-3.2-1b", 1'235'814'400},
                                              {"llama-3.2-3b", 3'212'749'824},
                                              {"qwen3-30b-a3b", 30'532'122'624},
                                              {"qwen3-235b-a22b", 235'093'634'560},
                                              {"gemma-2-2b", 2'614'341'888},
                                              {"gemma-2-9b", 9'241'705'984},
                                              {"gemma-2-27b", 27'227'128'320},
                                              {"mistral-7b-v0.1", 7'241'732'096},
                                              {"mistral-7b", 7'248'023'552},
                                              {"phi-3-mini-4k", 3'821'079'552},
                                              {"phi-3.5-mini", 3'821'079'552},
                                              {"phi-4-mini", 3'836'021'760},
                                              {"gemma-2b", 2'506'172'416},
                                              {"gemma-7b", 8'537'680'896},
                                              {"smollm3-3b", 3'075'098'624},
                                              {"granite-3.3-2b", 2'533'539'840},
                                              {"granite-3.3-8b", 8'170'864'640},
                                              {"olmo2-7b", 7'298'617'344},
                                              {"olmo3-7b", 7'298'011'136},
                                              {"ministral3-8b", 8'489'553'920},
                                              {"glm4-9b", 9'400'279'040},
                                              {"mixtral-8x7b", 46'702'792'704},
                                              {"qwen1.5-moe-a2.7b", 14'315'784'192},
                                              {"qwen3.5-0.8b", 752'393'024},
                                              {"qwen3.5-2b", 1'881'825'088},
                                              {"qwen3.5-4b", 4'205'751'296},
                                              {"qwen3.5-9b", 8'953'803'264},
                                              {"qwen3.5-27b", 26'895'998'464},
                                              {"qwen3.5-35b-a3b", 34'660'610'688},
                                              {"qwen3-next-80b-a3b", 79'674'391'296},
                                              {"seed-oss-36b", 36'151'104'512},
                                              {"granite-4.0-h-350m", 340'332'224},
                                              {"bamba-9b", 9'780'235'392},
                                              {"nemotron-h-8b", 8'100'852'736},
                                              {"nemotron-3-nano-30b-a3b", 31'577'937'344 + kCorrections},
                                              {"ernie-4.5-0.3b", 360'748'032},
                                              {"helium-1-preview-2b", 2'172'643'840},
                                              {"exaone-4.0-1.2b", 1'279'391'488},
                                              {"exaone-4.0-32b", 32'003'216'384},
                                              {"olmo3.1-32b", 32'233'522'176},
                                              {"gpt-oss-20b", 20'914'757'184},
                                              {"gpt-oss-120b", 116'829'156'672},
                                              {"gemma-3-1b", 999'885'952},
                                              {"gemma-3-4b", text_part(4'300'079'472, 2560)},
                                              {"gemma-3-12b", text_part(12'187'325'040, 3840)},
                                              {"gemma-3-27b", text_part(27'432'406'640, 5376)}};
  published.insert(kOfClasses.begin(), kOfClasses.end());
  for (const auto& [name, count] : published) EXPECT_EQ(parameter_count(preset(name)), count) << name;
  for (const auto& [name, billions] : kRounded) {
    const double count = static_cast<double>(parameter_count(preset(name))) * 1e-9;
    EXPECT_TRUE(std::abs(count - billions) <= 0.011 * billions) << name << ": " << count;
  }
  std::size_t small = 0;
  for (const std::string& name : preset_names()) {
    small += name.ends_with("-cpu") || name.ends_with("-tiny");
    EXPECT_TRUE(published.contains(name) || kRounded.contains(name) ||
                parameter_count(preset(name)) < 100'000'000)
        << name;
  }
  EXPECT_EQ(small + published.size() + kRounded.size(), preset_names().size());
}

TEST(Presets, AreFoundByName) {
  const std::vector<std::string> names = preset_names();
  EXPECT_EQ(std::set(names.begin(), names.end()).size(), names.size());
  for (const char* name : {"qwen3-cpu", "qwen2-cpu", "llama-cpu", "qwen3-tiny", "qwen2-tiny", "llama-tiny",
                           "llama-tied-tiny", "gemma3-cpu", "mistral-cpu", "qwen3-moe-cpu", "gemma3-tiny",
                           "gemma2-tiny", "mistral-tiny", "phi3-tiny", "qwen2-window-tiny", "qwen3-moe-tiny",
                           "qwen3-moe-plain-tiny", "llama-yarn-tiny", "llama-dynamic-tiny"}) {
    EXPECT_TRUE(is_preset(name)) << name;
  }
  EXPECT_FALSE(is_preset("qwen3-9b"));
  EXPECT_TRUE(refused([] { preset("qwen3-9b"); }, "no preset \"qwen3-9b\"", "qwen3-cpu, ", "qwen3-8b, "));
  const Config config = preset("llama-3.2-3b");
  EXPECT_EQ(config.rope, rope_settings(RopeType::kLlama3, 5e5, 32.0, 8192));
  EXPECT_EQ(config.dtype, "bfloat16");
  EXPECT_EQ(config.max_position_embeddings, 131072);
}

TEST(Parameters, AreListedInTheModelsOrder) {
  std::vector<std::string> names;
  for (const auto& parameter : parameter_shapes(
           parse(with(small_config("qwen2"), {{"num_hidden_layers", 1}, {"tie_word_embeddings", false}})))) {
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
       parameter_shapes(parse(with(small_config("llama"), {{"attention_bias", true}, {"mlp_bias", true}})))) {
    EXPECT_NE(parameter.name, "lm_head.weight");
    if (parameter.name.ends_with(".bias"))
      biases.insert(parameter.name.substr(parameter.name.find('.', 13) + 1));
  }
  EXPECT_EQ(biases, (std::set<std::string>{"self_attn.q_proj.bias", "self_attn.k_proj.bias",
                                           "self_attn.v_proj.bias", "self_attn.o_proj.bias",
                                           "mlp.gate_proj.bias", "mlp.up_proj.bias", "mlp.down_proj.bias"}));
}

// Names and shapes of the parameters that `config` has in layer 0, without that layer's prefix.
std::vector<std::string> first_layer(const Config& config) {
  const std::string prefix = "model.layers.0.";
  std::vector<std::string> names;
  for (const ParameterShape& parameter : parameter_shapes(config)) {
    if (parameter.name.starts_with(prefix))
      names.push_back(parameter.name.substr(prefix.size()) + " " + json(parameter.shape).dump());
  }
  return names;
}

TEST(Parameters, FollowTheFamily) {
  EXPECT_EQ(
      first_layer(preset("gemma3-tiny")),
      (std::vector<std::string>{"input_layernorm.weight [32]", "self_attn.q_proj.weight [64,32]",
                                "self_attn.k_proj.weight [32,32]", "self_attn.v_proj.weight [32,32]",
                                "self_attn.q_norm.weight [16]", "self_attn.k_norm.weight [16]",
                                "self_attn.o_proj.weight [32,64]", "post_attention_layernorm.weight [32]",
                                "pre_feedforward_layernorm.weight [32]", "mlp.gate_proj.weight [44,32]",
                                "mlp.up_proj.weight [44,32]", "mlp.down_proj.weight [32,44]",
                                "post_feedforward_layernorm.weight [32]"}));
  EXPECT_EQ(
      first_layer(preset("phi3-tiny")),
      (std::vector<std::string>{"input_layernorm.weight [32]", "self_attn.qkv_proj.weight [64,32]",
                                "self_attn.o_proj.weight [32,32]", "post_attention_layernorm.weight [32]",
                                "mlp.gate_up_proj.weight [88,32]", "mlp.down_proj.weight [32,44]"}));
  EXPECT_EQ(first_layer(preset("olmo2-tiny")),
            (std::vector<std::string>{"self_attn.q_proj.weight [64,32]", "self_attn.k_proj.weight [32,32]",
                                      "self_attn.v_proj.weight [32,32]", "self_attn.q_norm.weight [64]",
                                      "self_attn.k_norm.weight [32]", "self_attn.o_proj.weight [32,64]",
                                      "post_attention_layernorm.weight [32]", "mlp.gate_proj.weight [44,32]",
                                      "mlp.up_proj.weight [44,32]", "mlp.down_proj.weight [32,44]",
                                      "post_feedforward_layernorm.weight [32]"}));
  EXPECT_EQ(first_layer(preset("glm4-tiny")),
            (std::vector<std::string>{
                "input_layernorm.weight [32]", "self_attn.q_proj.weight [64,32]",
                "self_attn.q_proj.bias [64]", "self_attn.k_proj.weight [32,32]", "self_attn.k_proj.bias [32]",
                "self_attn.v_proj.weight [32,32]", "self_attn.v_proj.bias [32]",
                "self_attn.o_proj.weight [32,64]", "post_self_attn_layernorm.weight [32]",
                "post_attention_layernorm.weight [32]", "mlp.gate_up_proj.weight [88,32]",
                "mlp.down_proj.weight [32,44]", "post_mlp_layernorm.weight [32]"}));
  const std::vector<std::string> shared = first_layer(preset("qwen2-moe-tiny"));
  EXPECT_EQ(shared.back(), "mlp.shared_expert_gate.weight [1,32]");
  EXPECT_EQ(shared[shared.size() - 2], "mlp.shared_expert.down_proj.weight [32,24]");
  EXPECT_EQ(
      first_layer(preset("gpt-oss-tiny")),
      (std::vector<std::string>{
          "input_layernorm.weight [32]", "self_attn.q_proj.weight [64,32]", "self_attn.q_proj.bias [64]",
          "self_attn.k_proj.weight [32,32]", "self_attn.k_proj.bias [32]", "self_attn.v_proj.weight [32,32]",
          "self_attn.v_proj.bias [32]", "self_attn.o_proj.weight [32,64]", "self_attn.o_proj.bias [32]",
          "self_attn.sinks [4]", "post_attention_layernorm.weight [32]", "mlp.router.weight [4,32]",
          "mlp.router.bias [4]", "mlp.experts.gate_up_proj [4,32,40]", "mlp.experts.gate_up_proj_bias [4,40]",
          "mlp.experts.down_proj [4,20,32]", "mlp.experts.down_proj_bias [4,32]"}));
  const Config moe = preset("qwen3-moe-tiny");
  const std::vector<std::string> sparse = first_layer(moe);
  ASSERT_EQ(sparse.size(), 8u + 1u + 4u * 3u);
  EXPECT_EQ(sparse[8], "mlp.gate.weight [4,32]");
  EXPECT_EQ(sparse[9], "mlp.experts.0.gate_proj.weight [20,32]");
  EXPECT_EQ(sparse[10], "mlp.experts.0.up_proj.weight [20,32]");
  EXPECT_EQ(sparse[11], "mlp.experts.0.down_proj.weight [32,20]");
  EXPECT_EQ(sparse.back(), "mlp.experts.3.down_proj.weight [32,20]");
  std::set<std::string> names;
  for (const ParameterShape& parameter : parameter_shapes(moe)) names.insert(parameter.name);
  EXPECT_TRUE(names.contains("model.layers.1.mlp.gate_proj.weight"));
  EXPECT_FALSE(names.contains("model.layers.1.mlp.gate.weight"));
  EXPECT_TRUE(names.contains("model.layers.2.mlp.gate.weight"));
}

}  // namespace
}  // namespace streambp
