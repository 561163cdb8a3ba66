// What an adapter's folder says, against PEFT's own answers: verify/tests/streambp/model/peft/lora.json, made
// by verify/goldens/make/peft_table.py.
#include <chrono>
#include <cmath>
#include <fmt/format.h>
#include <functional>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <set>

#include "streambp/model/lora/lora.h"
#include "streambp/model/lora/module_pattern.h"
#include "verify/tests/streambp/model/file_testing.h"

namespace streambp {
namespace {

using OrderedJson = nlohmann::ordered_json;  // patterns count in their order

const std::filesystem::path kGoldens = STREAMBP_GOLDENS;

const OrderedJson& table() {
  static const OrderedJson read =
      OrderedJson::parse(read_bytes(kGoldens.parent_path() / "tests/streambp/model/peft/lora.json"));
  return read;
}

/// adapter_config.json of `settings`.
LoraConfig read_settings(const OrderedJson& settings) {
  const TempFolder folder;
  OrderedJson config{{"peft_type", "LORA"}, {"r", 2}, {"lora_alpha", 6}, {"target_modules", OrderedJson()}};
  config.update(settings);
  folder.write("adapter_config.json", config.dump());
  return read_lora_config(folder.path());
}

Config model_config(const std::string& name) {
  return read_config(kGoldens / "models" / name / "config.json");
}

/// The tensors that an adapter's folder holds, by name.
std::map<std::string, std::vector<int64_t>> tensors_of(const Config& config, const LoraConfig& lora) {
  std::map<std::string, std::vector<int64_t>> tensors;
  std::map<std::string, std::vector<int64_t>> shapes;
  for (const ParameterShape& parameter : parameter_shapes(config)) shapes[parameter.name] = parameter.shape;
  if (config.tie_word_embeddings) shapes["lm_head.weight"] = shapes.at("model.embed_tokens.weight");
  for (const LoraTarget& target : lora_targets(config, lora)) {
    const int64_t ranks = target.rank * target.experts;
    tensors[target.a] = {ranks, target.in};
    tensors[target.b] = {target.out, ranks};
    if (lora.lora_bias) tensors[fmt::format("{}{}.lora_B.bias", kPeftPrefix, target.module)] = {target.out};
  }
  const LoraExtras extras = lora_extras(config, lora);
  for (const std::string& name : extras.saved) tensors[kPeftPrefix + name] = shapes.at(name);
  for (const auto& [name, rows] : extras.rows)
    tensors[trained_rows_name(name.substr(0, name.rfind('.')))] = {static_cast<int64_t>(rows.size()),
                                                                   config.hidden_size};
  for (const auto& [name, trained] : extras.biases) tensors[trained] = shapes.at(name);
  return tensors;
}

/// The scales by PEFT's module: that of experts' gate_up_proj is inside the one of their down_proj.
std::map<std::string, double> scales_of(const Config& config, const LoraConfig& lora) {
  std::map<std::string, double> scales;
  const std::string prefix = kPeftPrefix;
  for (const LoraTarget& target : lora_targets(config, lora)) {
    const std::string module = target.a.substr(prefix.size(), target.a.find(".lora_") - prefix.size());
    scales[module] = target.scale;
  }
  return scales;
}

TEST(LoraTable, EveryKeyOfPeftIsKnown) {
  const std::vector<std::string> known = known_lora_keys();
  const std::set<std::string> all(known.begin(), known.end());
  EXPECT_EQ(all.size(), known.size()) << "a key twice";
  for (const std::string key : table().at("keys"))
    EXPECT_TRUE(all.contains(key)) << "PEFT " << table().at("peft") << " has '" << key << "'";
  EXPECT_GE(table().at("keys").size(), 40u);
}

TEST(LoraTable, AdaptsWhatPeftAdapts) {
  size_t compared = 0;
  for (const OrderedJson& question : table().at("questions")) {
    const OrderedJson& settings = question.at("settings");
    const std::string asked = question.at("model").get<std::string>() + " " + settings.dump();
    const Config config = model_config(question.at("model"));
    const OrderedJson& answer = question.at("answer");
    if (answer.is_null()) {
      EXPECT_TRUE(refused([&] { tensors_of(config, read_settings(settings)); }, "")) << asked;
      continue;
    }
    LoraConfig lora;
    ASSERT_NO_THROW(lora = read_settings(settings)) << asked;
    std::map<std::string, std::vector<int64_t>> expected = answer.at("tensors");
    EXPECT_EQ(tensors_of(config, lora), expected) << asked;
    for (const auto& [module, scale] : scales_of(config, lora)) {
      const double theirs = answer.at("scales").at(module);
      EXPECT_TRUE(std::abs(scale - theirs) <= 1e-15 * theirs) << asked << ": " << module;
      ++compared;
    }
    EXPECT_EQ(scales_of(config, lora).size(), answer.at("scales").size()) << asked;
  }
  EXPECT_GT(compared, 150u);
}

TEST(LoraConfigFile, ReadsPatternsInTheFilesOrder) {
  const auto ranks = [](const char* patterns) {
    const TempFolder folder;
    folder.write(
        "adapter_config.json",
        fmt::format(R"({{"peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": ["q_proj"],)"
                    R"( "rank_pattern": {}}})",
                    patterns));
    return lora_targets(model_config("qwen3"), read_lora_config(folder.path())).front().rank;
  };
  EXPECT_EQ(ranks(R"({"q_proj": 3, "layers.0.self_attn.q_proj": 4})"), 3);
  EXPECT_EQ(ranks(R"({"layers.0.self_attn.q_proj": 4, "q_proj": 3})"), 4);
  EXPECT_EQ(ranks("{}"), 2);
  EXPECT_EQ(ranks("null"), 2);
}

TEST(LoraConfigFile, RefusesByNameWhatChangesTheMathematics) {
  const auto with = [](const char* key, const OrderedJson& value) {
    return [=] { read_settings({{"target_modules", {"q_proj"}}, {key, value}}); };
  };
  for (const char* init :
       {"pissa", "pissa_niter_16", "olora", "corda", "loftq", "lora_ga", "mica", "nonesuch"})
    EXPECT_TRUE(refused(with("init_lora_weights", init), "init_lora_weights", init));
  for (const OrderedJson& init : {OrderedJson(true), OrderedJson(false), OrderedJson("gaussian"),
                                  OrderedJson("eva"), OrderedJson("orthogonal"), OrderedJson()})
    EXPECT_NO_THROW(with("init_lora_weights", init)()) << init;
  for (const char* key : {"velora_config", "monteclora_config", "arrow_config", "kasa_config", "use_bdlora",
                          "megatron_config", "layer_replication", "alora_invocation_tokens"}) {
    EXPECT_TRUE(refused(with(key, {{"num_groups", 4}}), "adapter_config.json", key));
    EXPECT_NO_THROW(with(key, nullptr)()) << key;
  }
  for (const char* key : {"use_dora", "use_qalora", "fan_in_fan_out"}) {
    EXPECT_TRUE(refused(with(key, true), key, "only false"));
    EXPECT_NO_THROW(with(key, false)()) << key;
  }
  EXPECT_TRUE(refused(with("lora_dropout", 1.5), "lora_dropout", "below 1"));
  EXPECT_TRUE(refused(with("lora_dropout", "half"), "lora_dropout"));
  EXPECT_TRUE(refused(with("a_setting_of_tomorrow", 1), "unknown key", "a_setting_of_tomorrow"));
  EXPECT_TRUE(refused(with("bias", "some"), "bias", "lora_only"));
  OrderedJson broken;
  broken["target_modules"] = OrderedJson::array({"q\n"});
  EXPECT_TRUE(refused([&] { read_settings(broken); }, "target_modules"));
  broken["target_modules"] = OrderedJson::array({kAllLinear});
  EXPECT_TRUE(refused([&] { read_settings(broken); }, "target_modules", "not in a list"));
  for (const OrderedJson& targets : {OrderedJson(3), OrderedJson(true), OrderedJson::array()}) {
    broken["target_modules"] = targets;
    EXPECT_TRUE(refused([&] { read_settings(broken); }, "target_modules", "a list of module names"));
  }
  EXPECT_TRUE(refused(with("trainable_token_indices", {{"\xC3\xA9", {1}}}), "trainable_token_indices"));
  EXPECT_TRUE(refused(with("rank_pattern", {{"q_proj", 0}}), "rank_pattern"));
  EXPECT_TRUE(refused(with("rank_pattern", {"q_proj"}), "rank_pattern"));
  EXPECT_TRUE(refused(with("alpha_pattern", {{"q_proj", -1}}), "alpha_pattern"));
  EXPECT_TRUE(refused(with("modules_to_save", {"layers.*.mlp"}), "modules_to_save"));
  EXPECT_TRUE(refused(with("modules_to_save", 3), "modules_to_save"));
  EXPECT_TRUE(refused(with("trainable_token_indices", {1.5}), "trainable_token_indices"));
  EXPECT_TRUE(refused(
      [] {
        read_settings({{"target_modules", ".*q_proj"}, {"layers_to_transform", {0}}});
      },
      "layers_to_transform"));
}

TEST(LoraConfigFile, RefusesWhatIsTrainedTwice) {
  const auto with = [](const char* model, OrderedJson settings) {
    return [=] {
      OrderedJson all{{"target_modules", {"q_proj"}}};
      all.update(settings);
      lora_extras(model_config(model), read_settings(all));
    };
  };
  EXPECT_TRUE(refused(with("qwen3", {{"modules_to_save", {"proj"}}}), "modules_to_save", "q_proj"));
  EXPECT_TRUE(refused(with("qwen3", {{"modules_to_save", {"layers.1.mlp", "up_proj"}}}), "lies within"));
  EXPECT_TRUE(refused(with("qwen3-moe", {{"modules_to_save", {"layers.0.mlp"}}}), "experts"));
  EXPECT_TRUE(
      refused(with("qwen3", {{"modules_to_save", {"embed_tokens"}}, {"trainable_token_indices", {3}}}),
              "trainable_token_indices", "embed_tokens"));
  EXPECT_TRUE(
      refused(with("llama-tied", {{"modules_to_save", {"lm_head"}}, {"trainable_token_indices", {3}}}),
              "trainable_token_indices", "lm_head"));
  const auto rows = [](const OrderedJson& tokens) {
    return OrderedJson{{"trainable_token_indices", tokens}};
  };
  EXPECT_TRUE(refused(with("qwen3", rows({3, 3})), "twice"));
  EXPECT_TRUE(refused(with("muse-spark", rows({3})), "norm of a muse_spark_text embedding"));
  EXPECT_NO_THROW(with("muse-spark", rows({{"lm_head", {3}}}))());
  // The last norm by the class's own name.
  const auto saves_last_norm = [](const char* model, const char* name) {
    const auto saved =
        lora_extras(model_config(model),
                    read_settings({{"target_modules", {"q_proj"}}, {"modules_to_save", {name}}}))
            .saved;
    return std::find(saved.begin(), saved.end(), "model.norm.weight") != saved.end();
  };
  EXPECT_TRUE(saves_last_norm("nemotron-h", "norm_f"));
  EXPECT_FALSE(saves_last_norm("nemotron-h", "norm"));
  EXPECT_TRUE(saves_last_norm("bamba", "final_layernorm"));
  EXPECT_TRUE(saves_last_norm("lfm2", "embedding_norm"));
  EXPECT_TRUE(refused(with("qwen3", rows({97})), "97", "0 to 96"));
  EXPECT_TRUE(refused(with("qwen3", rows({-1})), "-1"));
  EXPECT_TRUE(refused(with("qwen3", rows({{"q_proj", {1}}})), "q_proj", "embed_tokens or lm_head"));
  EXPECT_TRUE(refused(with("llama-tied", rows({{"lm_head", {1}}})), "the same tokens"));
  EXPECT_TRUE(
      refused(with("llama-tied", rows({{"embed_tokens", {2}}, {"lm_head", {1}}})), "the same tokens"));
  EXPECT_TRUE(
      refused(with("llama-tied", {{"target_modules", {"embed_tokens"}}, {"ensure_weight_tying", true}}),
              "ensure_weight_tying", "modules_to_save"));
  EXPECT_NO_THROW(with("qwen3", {{"modules_to_save", {"embed_tokens"}}, {"ensure_weight_tying", true}})());
}

// What backtracking takes hours for, and what would take a stack of its own.
TEST(ModulePattern, TakesNoLongerForAPatternThatMeansHarm) {
  const std::string name = "model.layers.0.self_attn.q_proj";
  const auto start = std::chrono::steady_clock::now();
  for (const char* pattern :
       {"(.*.*)*x", "(.*)*(.*)*(.*)*(.*)*nope", "((((.+)+)+)+)+!", "(a|b|ab|.)*(.|..)*$x"})
    EXPECT_FALSE(ModulePattern(pattern, "test").matches(name)) << pattern;
  EXPECT_TRUE(ModulePattern("(.*.*)*proj", "test").matches(name));
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  EXPECT_TRUE(seconds.count() <= 1.0) << seconds.count() << " s";
  for (const char* pattern : {"(.{0,100}){0,100}", "a{9999999999999999999999}", "(a?b?c?){0,1000}"})
    EXPECT_TRUE(refused([&] { ModulePattern(pattern, "test"); }, "test", "repetitions written out"))
        << pattern;
  EXPECT_TRUE(ModulePattern(R"(model\.layers\.\d{1,3}\.self_attn\.[qk]_proj)", "test").matches(name));
}

TEST(ModulePattern, MatchesWholeNamesAsPythonDoes) {
  const auto matches = [](const char* pattern, const char* name) {
    return ModulePattern(pattern, "test").matches(name);
  };
  EXPECT_TRUE(matches(R"(.*\.(q|v)_proj)", "model.layers.0.self_attn.q_proj"));
  EXPECT_FALSE(matches(R"((q|v)_proj)", "model.layers.0.self_attn.q_proj"));
  EXPECT_TRUE(matches(R"(^a\.b[0-9]{1,2}$)", "a.b12"));
  EXPECT_FALSE(matches(R"(a\.b[^0-9]+)", "a.b12"));
  EXPECT_TRUE(matches(R"([ab][.]b[0-9]{2})", "a.b12"));
  EXPECT_TRUE(matches(R"((?:a|ab)(?!x)\w*?c)", "abbc"));
  for (const char* foreign : {R"((?P<n>a))", R"((?i)a)", R"((?<=a)b)", R"(\Aa)", R"(a\Z)", R"((a)\1)", "a++",
                              "a{,3}", "[]a]", "[[:alpha:]]", "a\xC3\xA9", R"(\x41)"})
    EXPECT_TRUE(refused([&] { ModulePattern(foreign, "test"); }, "test", "not supported")) << foreign;
  for (const char* broken : {"(a", "a)", "*a", "[a"})
    EXPECT_TRUE(refused([&] { ModulePattern(broken, "test"); }, "test")) << broken;
}

}  // namespace
}  // namespace streambp
