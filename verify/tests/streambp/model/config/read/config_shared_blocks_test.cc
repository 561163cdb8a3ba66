// Zamba 2 in config.json: its blocks, heads and parameters, and refusals by name.
#include <algorithm>
#include <cmath>

#include "streambp/model/lora/lora.h"
#include "verify/tests/streambp/model/config_testing.h"

namespace streambp {
namespace {

using nlohmann::json;

json zamba2() {
  return {{"model_type", "zamba2"},
          {"hidden_size", 32},
          {"vocab_size", 101},
          {"num_hidden_layers", 5},
          {"num_attention_heads", 4},
          {"n_mamba_heads", 8},
          {"mamba_d_state", 6},
          {"num_mem_blocks", 2},
          {"adapter_rank", 3},
          {"layers_block_type", {"mamba", "hybrid", "hybrid", "linear_attention", "hybrid"}}};
}

TEST(Zamba2, IsReadFromTheGoldenModels) {
  const Config config = read_config(kModels / "zamba2" / "config.json");
  EXPECT_EQ(config.shared_blocks, (SharedBlockSettings{{false, true, true, true}, 2, 3, true}));
  EXPECT_EQ(config.head_dim, 2 * config.hidden_size / config.num_attention_heads);
  EXPECT_TRUE(config.no_rope.empty() && config.tie_word_embeddings && config.layers_read_embedding());
  EXPECT_EQ(config.rms_norm_eps, 1e-3);
  EXPECT_EQ(config.delta_rule.norm_eps, 1e-5);
  const Config plain = read_config(kModels / "zamba2-plain" / "config.json");
  EXPECT_EQ(plain.shared_blocks, (SharedBlockSettings{{true, false, true}, 1, 3, false}));
  EXPECT_EQ(plain.no_rope, (std::vector<bool>{true, true, true}));
  EXPECT_EQ(plain.delta_rule.time_step_low, 0.4);
  EXPECT_EQ(read_config(kModels / "zamba2" / "config.legacy.json"), config);
}

TEST(Zamba2, TakesItsClassesDefaults) {
  json config = zamba2();
  for (const char* key : {"n_mamba_heads", "mamba_d_state", "num_mem_blocks", "adapter_rank"})
    config = without(config, key);
  const Config parsed = parse(config);
  EXPECT_EQ(parsed.shared_blocks.count, 1);
  EXPECT_EQ(parsed.shared_blocks.adapter_rank, 128);
  EXPECT_FALSE(parsed.shared_blocks.attention_adapters);
  EXPECT_EQ(parsed.delta_rule.value_heads, 8);
  EXPECT_EQ(parsed.delta_rule.key_head_dim, 64);
  EXPECT_EQ(parsed.delta_rule.time_step_low, 0.001);
  EXPECT_TRUE(parsed.delta_rule.conv_bias);
  EXPECT_EQ(parsed.intermediate_size, 4 * 32);
  EXPECT_EQ(parsed.num_key_value_heads, 4);
  EXPECT_EQ(parsed.attention_scale, 1.0 / std::sqrt(8.0));  // of heads of 16
  EXPECT_EQ(parsed.hidden_act, Activation::kGelu);
  EXPECT_TRUE(parsed.tie_word_embeddings && !parsed.rotates(0));
  EXPECT_EQ(parsed.pad_token_id, 0);
  EXPECT_EQ(parse(with(config, {{"use_long_context", true}})).max_position_embeddings, 16384);
}

TEST(Zamba2, BlocksTakeTurns) {
  const Config config = parse(zamba2());
  EXPECT_TRUE(config.is_recurrent(0) && !config.attends(0) && config.is_recurrent(1) && config.attends(1));
  EXPECT_EQ(config.block_use(4), 2);
  EXPECT_EQ(config.block_owner(1), 1);
  EXPECT_EQ(config.block_owner(2), 2);
  EXPECT_EQ(config.block_owner(4), 1);
}

TEST(Zamba2, HasTheParametersOfTransformers) {
  const Config config = parse(with(zamba2(), {{"use_shared_attention_adapter", true}}));
  const std::string owner = "model.layers.1.shared_transformer.";
  EXPECT_TRUE(has_parameter(config, "model.layers.0.mamba.in_proj.weight", {2 * 64 + 2 * 6 + 8, 32}));
  EXPECT_TRUE(has_parameter(config, "model.layers.0.input_layernorm.weight", {32}));
  EXPECT_TRUE(has_parameter(config, "model.layers.4.mamba_decoder.mamba.out_proj.weight", {32, 64}));
  EXPECT_TRUE(has_parameter(config, "model.layers.4.mamba_decoder.input_layernorm.weight", {32}));
  EXPECT_TRUE(has_parameter(config, "model.layers.4.linear.weight", {32, 32}));
  EXPECT_TRUE(has_parameter(config, owner + "input_layernorm.weight", {64}));
  EXPECT_TRUE(has_parameter(config, owner + "self_attn.q_proj.weight", {64, 64}));
  EXPECT_TRUE(has_parameter(config, owner + "self_attn.o_proj.weight", {32, 64}));
  EXPECT_TRUE(has_parameter(config, owner + "feed_forward.gate_up_proj.weight", {256, 32}));
  EXPECT_TRUE(has_parameter(config, owner + "feed_forward.gate_up_proj_adapter_list.2.1.weight", {256, 3}));
  EXPECT_TRUE(has_parameter(config, owner + "self_attn.linear_k_adapter_list.0.0.weight", {3, 64}));
  for (const ParameterShape& shape : parameter_shapes(config)) {
    EXPECT_EQ(shape.name.find("model.layers.4.shared_transformer"), std::string::npos) << shape.name;
    EXPECT_EQ(shape.name.find("model.layers.1.shared_transformer.feed_forward.gate_up_proj_adapter_list.1"),
              std::string::npos)
        << shape.name << ": of the other block";
  }
}

TEST(Zamba2, IsRefusedByNameWhereItCanNotBe) {
  const json good = zamba2();
  EXPECT_TRUE(refuses(without(good, "layers_block_type"), "layers_block_type"));
  EXPECT_TRUE(refuses(with(good, {{"num_attention_heads", 3}}), "num_attention_heads"));
  EXPECT_TRUE(refuses(with(good, {{"attention_head_dim", 8}}), "attention_head_dim"));
  EXPECT_TRUE(refuses(with(good, {{"hidden_act", "silu"}}), "hidden_act"));
  const Config biased = parse(with(good, {{"add_bias_linear", true}}));
  EXPECT_TRUE(biased.mlp_bias && biased.delta_rule.in_bias && biased.delta_rule.out_bias && !biased.qkv_bias);
  EXPECT_TRUE(refuses(with(good, {{"use_conv_bias", false}}), "use_conv_bias"));
  EXPECT_TRUE(refuses(with(good, {{"tie_word_embeddings", false}}), "tie_word_embeddings"));
  EXPECT_TRUE(refuses(with(good, {{"attention_dropout", 0.1}}), "attention_dropout"));
  EXPECT_TRUE(refuses(with(good, {{"use_shared_attention_adapter", true}, {"num_key_value_heads", 2}}),
                      "num_key_value_heads", "use_shared_attention_adapter"));
}

TEST(Zamba2, EachLayerHasAdaptersOfItsOwnForItsBlock) {
  const Config config = parse(zamba2());
  LoraConfig lora;
  lora.r = 2;
  lora.target_modules = {"o_proj"};
  std::vector<std::string> modules;
  for (const LoraTarget& target : lora_targets(config, lora)) modules.push_back(target.module);
  std::vector<std::string> expected;
  for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    if (config.runs_block(layer))
      expected.push_back(fmt::format("model.layers.{}.shared_transformer.self_attn.o_proj", layer));
  }
  std::sort(modules.begin(), modules.end());
  EXPECT_EQ(modules, expected);
  lora.target_modules = {"linear", "in_proj", "out_proj"};
  EXPECT_EQ(lora_targets(config, lora).size(), std::size_t{3 + 2 * 5});
  lora.modules_to_save = {"pre_ff_layernorm"};
  EXPECT_THROW(lora_extras(config, lora), InputError);
}

}  // namespace
}  // namespace streambp
