// LFM3 in config.json: kinds of layers, a rotation for each, gates and norms by keys, names in files, and
// refusals by name.
#include "streambp/model/files/stored_names.h"
#include "verify/tests/streambp/model/config_testing.h"

namespace streambp {
namespace {

using nlohmann::json;

TEST(Lfm3, HasKindsOfLayersWithTheirOwnRotations) {
  json small = {{"model_type", "lfm3"},     {"hidden_size", 32}, {"vocab_size", 101},
                {"intermediate_size", 44},  {"head_dim", 8},     {"num_hidden_layers", 5},
                {"num_attention_heads", 4}, {"norm_eps", 1e-4},  {"num_key_value_heads", 2},
                {"pad_token_id", nullptr}};
  const Config config = parse(small);
  EXPECT_EQ(config.linear_attention, (std::vector<bool>{true, true, false, true, false}));
  EXPECT_EQ(config.windows, (std::vector<int64_t>{0, 0, 0, 0, 256}));
  EXPECT_EQ(config.delta_rule.conv_kernel, 7);
  EXPECT_EQ(config.rms_norm_eps, 1e-4);
  EXPECT_EQ(config.rotary_dim, 8);
  EXPECT_EQ(config.rope.type, RopeType::kProportional);
  EXPECT_EQ(config.rope.theta, 1e6);
  EXPECT_EQ(config.rope.proportion, 0.5);
  EXPECT_EQ(config.local_rope.value().theta, 1e4);
  EXPECT_TRUE(config.tie_word_embeddings && config.gates_heads && config.sandwich_norms && !config.qkv_bias);
  EXPECT_EQ(config.norm_names(0).after_attention, "post_operator_norm");
  EXPECT_TRUE(has_parameter(config, "model.layers.2.self_attn.g_proj.weight", {4, 32}));
  EXPECT_TRUE(has_parameter(config, "model.layers.0.conv.conv.weight", {32, 1, 7}));
  EXPECT_TRUE(has_parameter(config, "model.layers.0.feed_forward.w1.weight", {44, 32}));
  EXPECT_TRUE(has_parameter(config, "model.layers.4.post_ffn_norm.weight", {32}));
  // As transformers writes it and as its class calls it.
  const std::string gate = "model.layers.2.self_attn.g_proj.weight",
                    stored = "model.layers.2.self_attn.gate_proj.weight";
  EXPECT_EQ(stored_name(config, gate), stored);
  EXPECT_EQ(parameter_name(config, stored), gate);
  EXPECT_EQ(parameter_name(config, gate), gate);
  EXPECT_EQ(parameter_name(config, "model.embedding_norm.weight"), "model.norm.weight");
  EXPECT_EQ(parse(with(without(small, "norm_eps"), {{"rms_norm_eps", 1e-4}})), config);
  const Config plain = parse(with(small, {{"use_attention_gate", false}, {"use_sandwich_norm", false}}));
  EXPECT_FALSE(has_parameter(plain, gate, {4, 32}));
  EXPECT_FALSE(has_parameter(plain, "model.layers.4.post_ffn_norm.weight", {32}));
  EXPECT_TRUE(parse(with(small, {{"attention_bias", true}})).o_bias);
  const json all_see = {{"sliding_window", nullptr},
                        {"layer_types", std::vector<std::string>(5, "full_attention")}};
  EXPECT_EQ(parse(with(small, all_see)).windows, std::vector<int64_t>(5, 0));
  EXPECT_TRUE(refuses(with(small, {{"sliding_window", nullptr}}), "sliding_window is null"));
  EXPECT_TRUE(parse(with(small, {{"conv_bias", true}})).delta_rule.in_bias);
  EXPECT_TRUE(refuses(with(small, {{"rms_norm_eps", 1e-6}}), "norm_eps is 0.0001"));
  EXPECT_TRUE(refuses(with(small, {{"rope_theta", 1e4}}), "rope_theta is 1"));
  EXPECT_TRUE(
      refuses(with(small, {{"layer_types", {"conv", "mamba", "conv", "conv", "conv"}}}), "layer_types"));
  const json ropes = {{"full_attention", {{"rope_type", "yarn"}, {"rope_theta", 1e4}, {"factor", 2.0}}},
                      {"sliding_attention", {{"rope_type", "default"}, {"rope_theta", 1e4}}}};
  const Config yarn = parse(with(small, {{"rope_parameters", ropes}}));
  EXPECT_EQ(yarn.rope.original_max_position_embeddings, yarn.max_position_embeddings) << "absent";
}

}  // namespace
}  // namespace streambp
