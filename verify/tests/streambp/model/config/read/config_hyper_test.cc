// Hunyuan 4 in config.json: its streams, indexers and experts, the names of its files, and refusals by name.
#include "streambp/model/files/stored_names.h"
#include "verify/tests/streambp/model/config_testing.h"

namespace streambp {
namespace {

using nlohmann::json;

json hunyuan4() {
  return with(without(without(small_config("hy_v4"), "head_dim"), "num_key_value_heads"),
              {{"n_routed_experts", 8},
               {"num_experts_per_tok", 3},
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

TEST(Hunyuan4, IsReadFromTheGoldenModels) {
  const Config config = read_config(kModels / "hy-v4" / "config.json");
  EXPECT_EQ(config.hyper, (HyperSettings{3, 1.7, 1e-3}));
  EXPECT_EQ(config.residual_width(), 3 * config.hidden_size);
  EXPECT_EQ(config.indexer, (IndexerSettings{6, 8, 10, false, {false, false, true, true}, true, 1e-5}));
  EXPECT_FALSE(config.rope_interleaved);
  EXPECT_TRUE(config.attention_sinks && config.output_gate_map && config.reads_outputs());
  EXPECT_EQ(config.swiglu_limit, 0.9);
  EXPECT_TRUE(config.mixture.is_stacked() && config.mixture.sigmoid_scores && config.mixture.corrected);
  const Config dense = read_config(kModels / "hy-v4-dense" / "config.json");
  EXPECT_EQ(dense.mixture.sparse, (std::vector<bool>{false, true, false}));
  EXPECT_EQ(dense.hyper.streams, 2);
}

TEST(Hunyuan4, TakesItsClassesDefaults) {
  json config = hunyuan4();
  for (const char* key : {"qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "q_lora_rank", "kv_lora_rank",
                          "index_topk", "index_n_heads", "index_head_dim"})
    config = without(config, key);
  const Config parsed = parse(with(config, {{"num_hidden_layers", 7}, {"head_dim", 256}}));
  EXPECT_EQ(parsed.hyper, (HyperSettings{4, 2.0, 1e-6}));
  EXPECT_EQ(parsed.latent, (LatentAttentionSettings{1536, 512, 192, 64, 256}));
  const std::vector<bool> shared{false, false, true, true, true, false, true};
  EXPECT_EQ(parsed.indexer, (IndexerSettings{2048, 16, 128, false, shared, true, 1e-5}));
  EXPECT_EQ(parsed.swiglu_limit, 10.0);
  EXPECT_EQ(parsed.mixture.routed_scaling_factor, 2.827);
  EXPECT_EQ(parsed.mixture.sparse, (std::vector<bool>{false, true, true, true, true, true, true}));
}

TEST(Hunyuan4, HasTheParametersOfTransformers) {
  const Config config = parse(hunyuan4());
  const std::string layer = "model.layers.1.";
  EXPECT_TRUE(has_parameter(config, layer + "attn_hc.fn", {8, 4 * 48}));
  EXPECT_TRUE(has_parameter(config, layer + "ffn_hc.base", {8}));
  EXPECT_TRUE(has_parameter(config, layer + "ffn_hc.scale", {2}));
  EXPECT_TRUE(has_parameter(config, "model.hc_head.hc_fn", {4, 4 * 48}));
  EXPECT_TRUE(has_parameter(config, "model.hc_head.hc_base", {4}));
  EXPECT_TRUE(has_parameter(config, "model.hc_head.hc_scale", {1}));
  EXPECT_TRUE(has_parameter(config, layer + "self_attn.sinks", {6}));
  EXPECT_TRUE(has_parameter(config, layer + "self_attn.gate_proj.weight", {6 * 7, 48}));
  EXPECT_TRUE(has_parameter(config, layer + "mlp.experts.gate_up_proj", {8, 24, 48}));
  EXPECT_TRUE(has_parameter(config, layer + "mlp.experts.down_proj", {8, 48, 12}));
  EXPECT_TRUE(is_always_wide(layer + "attn_hc.fn") && !is_never_trained(layer + "attn_hc.fn"));
}

TEST(Hunyuan4, NamesInFilesAreThoseOfTransformers) {
  const Config config = parse(hunyuan4());
  for (const auto& [stored, ours] :
       {std::pair("model.layers.0.hc_pre.hc_attn_layer.hc_fn", "model.layers.0.attn_hc.fn"),
        std::pair("model.layers.2.hc_pre.hc_mlp_layer.hc_scale", "model.layers.2.ffn_hc.scale"),
        std::pair("model.hc_pre.hc_head.hc_head_base", "model.hc_head.hc_base"),
        std::pair("model.layers.0.self_attn.learnable_sink_param", "model.layers.0.self_attn.sinks"),
        std::pair("model.layers.1.self_attn.linear_gate.weight", "model.layers.1.self_attn.gate_proj.weight"),
        std::pair("model.layers.1.mlp.shared_experts.linear_gate.weight",
                  "model.layers.1.mlp.shared_experts.gate_proj.weight")}) {
    EXPECT_EQ(parameter_name(config, stored), ours);
    EXPECT_EQ(stored_name(config, ours), stored);
    EXPECT_EQ(parameter_name(config, ours), ours);
  }
}

TEST(Hunyuan4, IsRefusedByNameWhereItCanNotBe) {
  const json good = hunyuan4();
  EXPECT_TRUE(refuses(with(good, {{"hc_mult", 0}}), "hc_mult"));
  EXPECT_TRUE(refuses(with(good, {{"hc_magnitude", -1.0}}), "hc_magnitude"));
  EXPECT_TRUE(refuses(with(good, {{"swiglu_limit", 0.0}}), "swiglu_limit"));
  EXPECT_TRUE(refuses(with(good, {{"swiglu_alpha", 1.7}}), "swiglu_alpha"));
  EXPECT_TRUE(refuses(with(good, {{"rope_interleave", true}}), "rope_interleave"));
  EXPECT_TRUE(refuses(with(good, {{"index_topk_freq", 2}}), "index_topk_freq"));
  EXPECT_TRUE(refuses(with(good, {{"first_k_dense_replace", 2}}), "first_k_dense_replace"));
  EXPECT_TRUE(refuses(with(good, {{"num_key_value_heads", 2}}), "num_key_value_heads"));
  EXPECT_TRUE(refuses(with(small_config("llama"), {{"hc_mult", 4}}), "hc_mult"));
}

}  // namespace
}  // namespace streambp
