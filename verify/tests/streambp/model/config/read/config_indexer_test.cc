// DeepSeek V3.2 and GLM-5 in config.json: indexers, the layers that share their picks, and refusals by name.
#include "verify/tests/streambp/model/config_testing.h"

namespace streambp {
namespace {

using nlohmann::json;

json indexed(const std::string& family) {
  return with(without(small_config(family), "head_dim"), {{"num_key_value_heads", 6},
                                                          {"n_routed_experts", 8},
                                                          {"num_experts_per_tok", 3},
                                                          {"n_group", 1},
                                                          {"topk_group", 1},
                                                          {"moe_intermediate_size", 12},
                                                          {"q_lora_rank", 10},
                                                          {"kv_lora_rank", 14},
                                                          {"qk_nope_head_dim", 6},
                                                          {"qk_rope_head_dim", 4},
                                                          {"v_head_dim", 7},
                                                          {"index_topk", 5},
                                                          {"index_n_heads", 2},
                                                          {"index_head_dim", 8}});
}

TEST(Indexer, IsReadFromTheGoldenModels) {
  for (const char* file : {"config.json", "config.legacy.json"}) {
    const Config config = read_config(kModels / "deepseek-v32" / file);
    EXPECT_EQ(config.indexer, (IndexerSettings{6, 8, 10, false, {}}));
    EXPECT_TRUE(config.rope_interleaved);
    EXPECT_EQ(config.windows, (std::vector<int64_t>(3, 0)));
    EXPECT_EQ(config.mixture.sparse, (std::vector<bool>{false, true, true}));
    const Config shared = read_config(kModels / "glm-moe-dsa" / file);
    EXPECT_EQ(shared.indexer, (IndexerSettings{5, 8, 10, true, {false, true, false, true}}));
    EXPECT_EQ(shared.mixture.sparse, (std::vector<bool>{false, true, true, false}));
    EXPECT_EQ(shared.picker_of(3), 2);
    const Config by_frequency = read_config(kModels / "glm-moe-dsa-dense" / file);
    EXPECT_EQ(by_frequency.indexer.shared, (std::vector<bool>{false, true, true}));
  }
}

TEST(Indexer, HasTheParametersOfTransformers) {
  const Config config = parse(with(indexed("glm_moe_dsa"), {{"indexer_types", {"full", "shared", "full"}}}));
  const std::string first = "model.layers.0.self_attn.indexer.", second = "model.layers.1.self_attn.indexer.";
  EXPECT_TRUE(has_parameter(config, first + "wq_b.weight", {16, 10}));
  EXPECT_TRUE(has_parameter(config, first + "wk.weight", {8, 48}));
  EXPECT_TRUE(has_parameter(config, first + "k_norm.weight", {8}));
  EXPECT_TRUE(has_parameter(config, first + "k_norm.bias", {8}));
  EXPECT_TRUE(has_parameter(config, first + "weights_proj.weight", {2, 48}));
  EXPECT_FALSE(has_parameter(config, second + "wk.weight", {8, 48}));
  EXPECT_TRUE(is_never_trained(first + "k_norm.bias") && is_always_wide(first + "weights_proj.weight"));
}

TEST(Indexer, TakesItsClassesDefaults) {
  json config = indexed("deepseek_v32");
  for (const char* key : {"index_topk", "index_n_heads", "index_head_dim"}) config = without(config, key);
  EXPECT_EQ(parse(config).indexer, (IndexerSettings{2048, 64, 128, false, {}}));
  config["model_type"] = "glm_moe_dsa";
  EXPECT_EQ(parse(config).indexer, (IndexerSettings{2048, 32, 128, true, {false, false, false}}));
}

// configuration_glm_moe_dsa.py: a list counts, else a pattern, else a frequency.
TEST(Indexer, IsSharedByListPatternOrFrequency) {
  const json config = with(indexed("glm_moe_dsa"), {{"num_hidden_layers", 7}});
  const auto shared = [&](const json& changes) { return parse(with(config, changes)).indexer.shared; };
  const std::vector<bool> by_pattern{false, false, true, true, false, true, false};
  EXPECT_EQ(shared({{"index_topk_pattern", "FFSSFSF"}}), by_pattern);
  EXPECT_EQ(shared({{"index_topk_freq", 3}}),
            (std::vector<bool>{false, false, true, true, false, true, true}));
  EXPECT_EQ(shared({{"index_topk_freq", 2}, {"index_skip_topk_offset", 4}}),
            (std::vector<bool>{false, false, false, false, true, false, true}));
  EXPECT_EQ(shared({{"index_topk_freq", 0}}), std::vector<bool>(7, false));
  const json list = {"full", "full", "full", "full", "full", "full", "shared"};
  EXPECT_EQ(shared({{"indexer_types", list}, {"index_topk_pattern", "FFSSFSF"}}),
            (std::vector<bool>{false, false, false, false, false, false, true}));
}

TEST(Indexer, IsRefusedByNameWhereItCanNotBe) {
  const json glm = indexed("glm_moe_dsa"), deepseek = indexed("deepseek_v32");
  EXPECT_TRUE(refuses(with(glm, {{"indexer_types", {"shared", "full", "full"}}}), "indexer_types", "first"));
  EXPECT_TRUE(refuses(with(glm, {{"indexer_types", {"full", "full"}}}), "indexer_types", "3 layers"));
  EXPECT_TRUE(refuses(with(glm, {{"index_topk_pattern", "FXF"}}), "index_topk_pattern"));
  EXPECT_TRUE(refuses(with(glm, {{"index_topk_freq", 2}, {"index_skip_topk_offset", 0}}),
                      "index_skip_topk_offset", "first layer"));
  EXPECT_TRUE(refuses(with(deepseek, {{"indexer_types", {"full", "full", "full"}}}), "indexer_types"));
  EXPECT_TRUE(refuses(with(deepseek, {{"q_lora_rank", nullptr}}), "q_lora_rank", "latents"));
  EXPECT_TRUE(refuses(with(deepseek, {{"rope_interleave", false}}), "rope_interleave"));
  EXPECT_TRUE(refuses(with(deepseek, {{"index_head_dim", 3}}), "index_head_dim", "qk_rope_head_dim"));
  EXPECT_TRUE(refuses(with(deepseek, {{"sliding_window", 7}}), "sliding_window"));
  EXPECT_TRUE(
      refuses(with(deepseek, {{"layer_types", {"full_attention", "full_attention", "full_attention"}}}),
              "layer_types", "indexed_attention"));
  EXPECT_TRUE(
      refuses(with(deepseek, {{"mlp_layer_types", {"dense", "sparse"}}}), "mlp_layer_types", "3 layers"));
}

}  // namespace
}  // namespace streambp
