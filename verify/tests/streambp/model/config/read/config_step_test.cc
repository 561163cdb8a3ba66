// Step 3.7 in config.json: in transformers' words and in those of published files, its parameters, and what
// is refused by name.
#include "verify/tests/streambp/model/config_testing.h"
#include "verify/tests/streambp/model/made_checkpoint.h"

namespace streambp {
namespace {

using nlohmann::json;

json step() {
  return with(
      without(without(small_config("step3p5"), "rope_theta"), "tie_word_embeddings"),
      {{"num_hidden_layers", 4},
       {"layer_types", {"full_attention", "sliding_attention", "sliding_attention", "full_attention"}},
       {"num_sliding_attention_heads", 8},
       {"sliding_window", 5},
       {"mlp_layer_types", {"dense", "sparse", "sparse", "sparse"}},
       {"n_routed_experts", 6},
       {"num_experts_per_tok", 2},
       {"moe_intermediate_size", 12},
       {"share_expert_dim", 10},
       {"moe_router_scaling_factor", 3.0},
       {"swiglu_limits", {0, 0, 0, 7}},
       {"swiglu_limits_shared", {0.5, nullptr, 0, 16.0}},
       {"rope_parameters",
        {{"full_attention",
          {{"rope_type", "llama3"},
           {"rope_theta", 5e6},
           {"partial_rotary_factor", 0.5},
           {"factor", 2.0},
           {"original_max_position_embeddings", 64},
           {"low_freq_factor", 1.0},
           {"high_freq_factor", 32.0}}},
         {"sliding_attention", {{"rope_type", "default"}, {"rope_theta", 1e4}}}}}});
}

// The same as StepFun publishes it: lists that go on for a layer more, and other words.
json published() {
  json config = step();
  for (const char* key : {"num_sliding_attention_heads", "mlp_layer_types", "n_routed_experts",
                          "num_experts_per_tok", "num_key_value_heads", "rope_parameters"})
    config = without(config, key);
  return with(
      config,
      {{"num_nextn_predict_layers", 1},
       {"layer_types",
        {"full_attention", "sliding_attention", "sliding_attention", "full_attention", "sliding_attention"}},
       {"attention_other_setting",
        {{"attention_type", "sliding_attention"},
         {"num_attention_heads", 8},
         {"num_attention_groups", 2},
         {"head_dim", 8}}},
       {"num_attention_groups", 2},
       {"moe_layers_enum", "1,2,3,4"},
       {"moe_num_experts", 6},
       {"moe_top_k", 2},
       {"swiglu_limits", {0, 0, 0, 7, 7}},
       {"rope_theta", {5e6, 1e4, 1e4, 5e6, 1e4}},
       {"partial_rotary_factors", {0.5, 1.0, 1.0, 0.5, 1.0}},
       {"yarn_only_types", {"full_attention"}},
       {"use_rope_layers", json::array()},
       {"use_head_wise_attn_gate", true},
       {"moe_router_activation", "sigmoid"},
       {"rope_scaling",
        {{"rope_type", "llama3"},
         {"factor", 2.0},
         {"original_max_position_embeddings", 64},
         {"low_freq_factor", 1.0},
         {"high_freq_factor", 32.0}}}});
}

TEST(Step, DiffersByTheKindOfItsLayers) {
  const Config config = parse(step());
  EXPECT_TRUE(config.gates_heads && config.norm_adds_one && config.qk_norm && !config.tie_word_embeddings);
  EXPECT_EQ(config.windows, (std::vector<int64_t>{0, 5, 5, 0}));
  EXPECT_EQ(config.query_heads_of(0), 6);
  EXPECT_EQ(config.query_heads_of(1), 8);
  EXPECT_EQ(config.query_width(1), 64);
  EXPECT_EQ(config.rotary_dim, 4);
  EXPECT_EQ(config.local_rotary_dim(), 8);
  EXPECT_EQ(config.rope.type, RopeType::kLlama3);
  EXPECT_EQ(*config.local_rope, rope_settings(RopeType::kDefault, 1e4));
  EXPECT_EQ(config.mlp_limit(3, /*of_expert=*/true), 7.0);
  EXPECT_EQ(config.mlp_limit(0, /*of_expert=*/false), 0.5);
  EXPECT_EQ(config.mlp_limit(1, /*of_expert=*/false), 0.0);
  EXPECT_EQ(config.attention_scale, 1.0 / std::sqrt(8.0));
  const MixtureSettings& mixture = config.mixture;
  EXPECT_TRUE(mixture.sigmoid_scores && mixture.corrected && mixture.norm_topk_prob &&
              mixture.shared_expert_ungated);
  EXPECT_EQ(mixture.added_to_sum, 0.0);
  EXPECT_EQ(mixture.routed_scaling_factor, 3.0);
  EXPECT_EQ(mixture.sparse, (std::vector<bool>{false, true, true, true}));
  EXPECT_TRUE(has_parameter(config, "model.layers.0.self_attn.g_proj.weight", {6, 48}));
  EXPECT_TRUE(has_parameter(config, "model.layers.1.self_attn.g_proj.weight", {8, 48}));
  EXPECT_TRUE(has_parameter(config, "model.layers.1.self_attn.o_proj.weight", {48, 64}));
  EXPECT_TRUE(has_parameter(config, "model.layers.1.mlp.shared_experts.up_proj.weight", {10, 48}));
  EXPECT_TRUE(has_parameter(config, "model.layers.1.mlp.experts.5.down_proj.weight", {48, 12}));
  EXPECT_EQ(parse(with(step(), {{"query_pre_attn_scalar", 11}})).attention_scale, 1.0 / std::sqrt(11.0));
}

TEST(Step, IsTheSameInTheWordsOfPublishedFiles) {
  EXPECT_EQ(parse(published()), parse(step()));
  EXPECT_EQ(parse({{"model_type", "step3p7"}, {"text_config", published()}}), parse(step()));
  EXPECT_EQ(parse(with(published(), {{"moe_layers_enum", {1, 2, 3}}})), parse(step()));
  // transformers writes what differs by layer too, and pads its keys with zeros to one length.
  const json heads = {{"num_attention_heads", 8}};
  EXPECT_EQ(parse(with(step(), {{"per_layer_config", {{"01", heads}, {"02", heads}}}})), parse(step()));
  // What transformers makes of such a file is a golden model.
  const Config golden = read_config(kModels / "step3p7-published" / "config.json");
  EXPECT_EQ(golden.windows, (std::vector<int64_t>{6, 0}));
  EXPECT_EQ(golden.window_attention_heads, 4);
  EXPECT_EQ(golden.rotary_dim, 6);
  EXPECT_EQ(golden.window_rotary_dim, 8);
}

TEST(Step, TakesItsClassesDefaults) {
  json config = step();
  for (const char* key : {"layer_types", "mlp_layer_types", "rope_parameters", "swiglu_limits",
                          "swiglu_limits_shared", "moe_router_scaling_factor", "pad_token_id"})
    config = without(config, key);
  const Config read = parse(config);
  EXPECT_EQ(read.windows, (std::vector<int64_t>(4, 0)));
  EXPECT_EQ(read.window_attention_heads, 0);
  EXPECT_EQ(read.mixture.sparse, (std::vector<bool>{false, false, false, true}));
  EXPECT_EQ(read.rope, rope_settings(RopeType::kDefault, 1e4));
  EXPECT_TRUE(read.expert_limits.empty() && read.mlp_limits.empty());
  EXPECT_EQ(read.mixture.routed_scaling_factor, 1.0);
  EXPECT_EQ(read.pad_token_id, 1);
}

TEST(Step, IsRefusedByNameWhereItCanNotBe) {
  EXPECT_TRUE(
      refuses(with(step(), {{"num_sliding_attention_heads", 7}}), "num_sliding_attention_heads", "multiple"));
  EXPECT_TRUE(refuses(with(step(), {{"swiglu_limits", {1, 2}}}), "swiglu_limits", "4 layers"));
  EXPECT_TRUE(refuses(with(step(), {{"swiglu_limits", {0, 0, 0, -1}}}), "swiglu_limits"));
  EXPECT_TRUE(refuses(with(step(), {{"mlp_bias", true}}), "mlp_bias"));
  EXPECT_TRUE(refuses(without(step(), "sliding_window"), "sliding_window"));
  EXPECT_TRUE(refuses(with(step(), {{"per_layer_config", {{"1", {{"num_attention_heads", 6}}}}}}),
                      "per_layer_config"));
  EXPECT_TRUE(refuses(with(step(), {{"gating", "elementwise"}}), "gating"));
  EXPECT_TRUE(
      refuses(with(step(), {{"sparse_attention_config", json::object()}}), "sparse_attention_config"));
  EXPECT_TRUE(refuses(with(step(), {{"index_topk", 4}}), "index_topk"));
  EXPECT_TRUE(refuses(with(published(), {{"norm_expert_weight", false}}), "norm_expert_weight"));
  EXPECT_TRUE(
      refuses(with(published(), {{"moe_layers_enum", "1,two"}}), "moe_layers_enum", "numbers of layers"));
  EXPECT_TRUE(refuses(with(published(), {{"rope_theta", {5e6, 1e4, 2e4, 5e6, 1e4}}}), "rope_theta",
                      "sliding_attention"));
  EXPECT_TRUE(refuses(with(published(), {{"moe_num_experts", 6}, {"n_routed_experts", 8}}),
                      "n_routed_experts", "moe_num_experts"));
  json other = published();
  other["attention_other_setting"]["head_dim"] = 16;
  EXPECT_TRUE(refuses(other, "attention_other_setting.head_dim"));
}

// Experts in three tensors of a layer, and names of modules, as StepFun publishes them.
TEST(Step, ReadsTheTensorsOfPublishedFiles) {
  const json text = with(published(), {{"torch_dtype", "float32"}});
  const Config config = parse(text);
  const TempFolder folder;
  folder.write("config.json", json{{"model_type", "step3p7"}, {"text_config", text}}.dump());
  std::map<std::string, MadeTensor> tensors;
  std::map<std::string, std::vector<std::byte>> expected;
  int value = 0;
  const auto replaced = [](std::string name, const std::string& from, const std::string& to) {
    const size_t at = name.find(from);
    return at == std::string::npos ? name : name.replace(at, from.size(), to);
  };
  for (const ParameterShape& parameter : parameter_shapes(config)) {
    int64_t numbers = 1;
    for (const int64_t size : parameter.shape) numbers *= size;
    std::vector<std::byte>& bytes = expected[parameter.name];
    for (int64_t i = 0; i < 4 * numbers; ++i) bytes.push_back(static_cast<std::byte>(++value % 251));
    std::string name = replaced(parameter.name, ".mlp.shared_experts.", ".share_expert.");
    name = replaced(name, ".mlp.gate.e_score_correction_bias", ".moe.router_bias");
    name = replaced(name, ".mlp.gate.weight", ".moe.gate.weight");
    std::vector<int64_t> shape = parameter.shape;
    const size_t experts = name.find(".mlp.experts.");
    if (experts != std::string::npos) {
      name = name.substr(0, experts) + ".moe" + name.substr(name.find('.', experts + 13));
      shape.insert(shape.begin(), 6);
    }
    MadeTensor& made = tensors[name];
    made.dtype = "F32";
    made.shape = shape;
    made.bytes.insert(made.bytes.end(), bytes.begin(), bytes.end());
  }
  tensors["model.layers.4.input_layernorm.weight"] = {"F32", {1}, std::vector<std::byte>(4)};
  tensors["model.layers.6.eh_proj.weight"] = {"F32", {1}, std::vector<std::byte>(4)};
  tensors["vision_model.conv1.weight"] = {"F32", {1}, std::vector<std::byte>(4)};
  tensors["vit_large_projector.weight"] = {"F32", {1}, std::vector<std::byte>(4)};
  const Checkpoint checkpoint = open_made(folder, tensors);
  for (const auto& [name, bytes] : expected) EXPECT_TRUE(checkpoint.bytes(name) == bytes) << name;
}

}  // namespace
}  // namespace streambp
