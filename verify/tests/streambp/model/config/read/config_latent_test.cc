// DeepSeek V3, GLM-4.5 and 4.7 Flash and Mistral 4 in config.json: latent attention, routers of sigmoids, and
// refusals by name.
#include <cmath>

#include "verify/tests/streambp/model/config_testing.h"

namespace streambp {
namespace {

using nlohmann::json;

json deepseek() {
  return with(without(small_config("deepseek_v3"), "head_dim"), {{"num_key_value_heads", 6},
                                                                 {"n_routed_experts", 8},
                                                                 {"num_experts_per_tok", 3},
                                                                 {"n_group", 4},
                                                                 {"topk_group", 2},
                                                                 {"moe_intermediate_size", 12},
                                                                 {"n_shared_experts", 2},
                                                                 {"first_k_dense_replace", 1},
                                                                 {"q_lora_rank", 10},
                                                                 {"kv_lora_rank", 14},
                                                                 {"qk_nope_head_dim", 6},
                                                                 {"qk_rope_head_dim", 4},
                                                                 {"v_head_dim", 7}});
}

json glm() {
  return with(small_config("glm4_moe"), {{"n_routed_experts", 6}, {"num_experts_per_tok", 2}});
}

TEST(DeepseekV3, ReadsTheGoldenModels) {
  for (const char* file : {"config.json", "config.legacy.json"}) {
    const Config config = read_config(kModels / "deepseek-v3" / file);
    EXPECT_EQ(config.latent, (LatentAttentionSettings{9, 7, 5, 6, 4}));
    EXPECT_EQ(config.head_dim, 11);
    EXPECT_EQ(config.rotary_dim, 6);
    EXPECT_TRUE(config.rope_interleaved && !config.qkv_bias && !config.o_bias);
    const double scale = 0.1 * 1.5 * std::log(4.0) + 1.0;
    EXPECT_DOUBLE_EQ(config.attention_scale, scale * scale / std::sqrt(11.0));
    EXPECT_DOUBLE_EQ(config.rope.attention_factor, (0.1 * 0.5 * std::log(4.0) + 1.0) / scale);
    const MixtureSettings& mixture = config.mixture;
    EXPECT_EQ(mixture.sparse, (std::vector<bool>{false, true, true}));
    EXPECT_TRUE(mixture.sigmoid_scores && mixture.shared_expert_ungated && mixture.norm_topk_prob);
    EXPECT_EQ(mixture.shared_expert_intermediate_size, 10);
    EXPECT_EQ(mixture.n_group, 4);
    EXPECT_EQ(mixture.topk_group, 2);
    EXPECT_EQ(mixture.routed_scaling_factor, 1.7);
    const Config plain = read_config(kModels / "deepseek-v3-plain" / file);
    EXPECT_EQ(plain.latent.q_lora_rank, 0);
    EXPECT_FALSE(plain.rope_interleaved);
    EXPECT_TRUE(plain.qkv_bias && plain.o_bias && !plain.mixture.norm_topk_prob);
    EXPECT_DOUBLE_EQ(plain.attention_scale, 1.0 / std::sqrt(11.0));
  }
}

TEST(DeepseekV3, HasTheParametersOfTransformers) {
  const Config config = parse(deepseek());
  const std::string attention = "model.layers.0.self_attn.", mlp = "model.layers.1.mlp.";
  EXPECT_TRUE(has_parameter(config, attention + "q_a_proj.weight", {10, 48}));
  EXPECT_TRUE(has_parameter(config, attention + "q_a_layernorm.weight", {10}));
  EXPECT_TRUE(has_parameter(config, attention + "q_b_proj.weight", {60, 10}));
  EXPECT_TRUE(has_parameter(config, attention + "kv_a_proj_with_mqa.weight", {18, 48}));
  EXPECT_TRUE(has_parameter(config, attention + "kv_a_layernorm.weight", {14}));
  EXPECT_TRUE(has_parameter(config, attention + "kv_b_proj.weight", {78, 14}));
  EXPECT_TRUE(has_parameter(config, attention + "o_proj.weight", {48, 42}));
  EXPECT_TRUE(has_parameter(config, mlp + "gate.e_score_correction_bias", {8}));
  EXPECT_TRUE(has_parameter(config, mlp + "shared_experts.up_proj.weight", {24, 48}));
  EXPECT_TRUE(has_parameter(config, mlp + "experts.7.down_proj.weight", {48, 12}));
  EXPECT_EQ(config.carry_width(0), 18);
  EXPECT_EQ(config.attention_width(0), 42);
  // Null is not absent: the class's default is 1536.
  const Config plain = parse(with(deepseek(), {{"q_lora_rank", nullptr}, {"attention_bias", true}}));
  EXPECT_TRUE(has_parameter(plain, attention + "q_proj.weight", {60, 48}));
  EXPECT_FALSE(has_parameter(plain, attention + "q_proj.bias", {60}));
  EXPECT_TRUE(has_parameter(plain, attention + "kv_a_proj_with_mqa.bias", {18}));
  EXPECT_TRUE(has_parameter(plain, attention + "o_proj.bias", {48}));
  EXPECT_EQ(parse(without(deepseek(), "q_lora_rank")).latent.q_lora_rank, 1536);
}

TEST(DeepseekV3, TakesNullForFalseAsItsClassDoes) {
  const json config = deepseek();
  EXPECT_TRUE(parse(config).rope_interleaved && parse(config).mixture.norm_topk_prob);
  EXPECT_FALSE(parse(with(config, {{"rope_interleave", nullptr}})).rope_interleaved);
  EXPECT_FALSE(parse(with(config, {{"norm_topk_prob", nullptr}})).mixture.norm_topk_prob);
}

TEST(DeepseekV3, HasThePublishedSizes) {
  const double billions = static_cast<double>(parameter_count(preset("deepseek-v3"))) / 1e9;
  EXPECT_TRUE(billions > 670.5 && billions < 671.5) << billions;  // 671B
  const double kimi = static_cast<double>(parameter_count(preset("kimi-k2"))) / 1e12;
  EXPECT_TRUE(kimi > 1.0 && kimi < 1.05) << kimi;  // 1T
  const double glm = static_cast<double>(parameter_count(preset("glm-4.5-air"))) / 1e9;
  EXPECT_TRUE(glm > 104.0 && glm < 111.0) << glm;  // 106B, without the layer that predicts one token more
  EXPECT_EQ(preset("deepseek-v3").carry_width(0), 576);
}

TEST(DeepseekV3, RefusesWhatItDoesNotHonour) {
  const json config = deepseek();
  EXPECT_EQ(parse(with(config, {{"model_type", "kimi_k2"}})), parse(config)) << "as Kimi K2 is published";
  EXPECT_TRUE(
      refuses(with(config, {{"num_key_value_heads", 2}}), "num_key_value_heads", "num_attention_heads (6)"));
  EXPECT_TRUE(refuses(with(config, {{"head_dim", 10}}), "head_dim is 10", "4"));
  EXPECT_TRUE(refuses(with(config, {{"qk_rope_head_dim", 5}}), "qk_rope_head_dim"));
  EXPECT_TRUE(refuses(with(config, {{"q_lora_rank", 0}}), "q_lora_rank is 0"));
  EXPECT_TRUE(refuses(with(config, {{"n_shared_experts", 0}}), "n_shared_experts is 0"));
  EXPECT_TRUE(
      refuses(with(config, {{"index_topk", 2048}}), "index_topk", "no class in transformers has indexers"));
  EXPECT_EQ(parse(with(config, {{"quantization_config", {{"quant_method", "fp8"}}}})).dtype, "bfloat16")
      << "as published: trained is what FP8 is dequantised to";
  EXPECT_TRUE(refuses(with(config, {{"scoring_func", "softmax"}}), "scoring_func"));
  EXPECT_TRUE(refuses(with(config, {{"topk_method", "greedy"}}), "topk_method", "noaux_tc"));
  EXPECT_TRUE(refuses(with(config, {{"moe_layer_freq", 2}}), "moe_layer_freq"));
  EXPECT_EQ(parse(with(config, {{"output_router_logits", true}})), parse(config))
      << "of no loss in transformers";
  EXPECT_TRUE(refuses(with(config, {{"router_aux_loss_coef", 0.001}}), "router_aux_loss_coef"));
  EXPECT_TRUE(refuses(with(config, {{"n_group", 3}}), "n_group", "divisor of the 8 experts"));
  EXPECT_TRUE(refuses(with(config, {{"n_group", 8}}), "n_group", "2 or more"));
  EXPECT_TRUE(refuses(with(config, {{"topk_group", 5}}), "topk_group"));
  EXPECT_TRUE(refuses(with(config, {{"num_experts_per_tok", 5}}), "num_experts_per_tok", "at most 4"));
  EXPECT_TRUE(refuses(with(config, {{"partial_rotary_factor", 0.5}}), "partial_rotary_factor"));
  // What transformers writes, and does not read.
  EXPECT_EQ(parse(with(config, {{"head_dim", 4},
                                {"qk_head_dim", 10},
                                {"num_nextn_predict_layers", 1},
                                {"aux_loss_alpha", 0.001},
                                {"seq_aux", true},
                                {"scoring_func", "sigmoid"}})),
            parse(config));
  EXPECT_EQ(parse(with(config, {{"first_k_dense_replace", 0}})).mixture.sparse, std::vector<bool>(3, true));
}

TEST(Glm4Moe, ReadsItsSettings) {
  const Config config = parse(glm());
  EXPECT_EQ(config.rotary_dim, 4);
  EXPECT_FALSE(config.qkv_bias || config.o_bias || config.qk_norm || config.rope_interleaved ||
               config.is_latent());
  // Null is not absent: nothing but the whole of a head is left then.
  EXPECT_EQ(parse(with(glm(), {{"partial_rotary_factor", nullptr}})).rotary_dim, 8);
  EXPECT_EQ(parse(with(small_config("glm4"), {{"partial_rotary_factor", nullptr}})).rotary_dim, 8);
  EXPECT_EQ(config.mixture.n_group, 1);
  EXPECT_EQ(config.mixture.routed_scaling_factor, 1.0);
  EXPECT_EQ(config.mixture.moe_intermediate_size, 1408);
  const Config more = parse(with(glm(), {{"attention_bias", true}, {"use_qk_norm", true}}));
  EXPECT_TRUE(more.qkv_bias && !more.o_bias && more.qk_norm);
  EXPECT_EQ(read_config(kModels / "glm4-moe" / "config.json"),
            read_config(kModels / "glm4-moe" / "config.legacy.json"));
  const Config groups = read_config(kModels / "glm4-moe-groups" / "config.json");
  EXPECT_EQ(groups.rotary_dim, groups.head_dim);
  EXPECT_EQ(groups.mixture.shared_expert_intermediate_size, 15);
}

TEST(KimiK25, IsADeepseekV3InAWholeModel) {
  const json text = with(deepseek(), {{"tie_word_embeddings", false}});
  json whole = {{"model_type", "kimi_k25"}, {"tie_word_embeddings", false}, {"text_config", text}};
  EXPECT_EQ(parse(whole), parse(text));
  whole["text_config"]["model_type"] = "kimi_k2";  // of the files of its own code
  EXPECT_EQ(parse(whole), parse(text));
  whole.erase("tie_word_embeddings");  // where the class of the whole says true
  EXPECT_TRUE(refuses(whole, "tie_word_embeddings is false", "outside text_config"));
  whole["text_config"].erase("tie_word_embeddings");
  EXPECT_TRUE(parse(whole).tie_word_embeddings);
}

TEST(Glm4MoeLite, ReadsWhatItsFilesLeaveOut) {
  json config = with(without(small_config("glm4_moe_lite"), "head_dim"), {{"num_key_value_heads", 6}});
  const Config parsed = parse(config);
  EXPECT_EQ(parsed.latent, (LatentAttentionSettings{768, 512, 192, 64, 256}));
  EXPECT_TRUE(parsed.rope_interleaved && parsed.mixture.sigmoid_scores && parsed.mixture.norm_topk_prob);
  EXPECT_EQ(parsed.mixture.num_experts, 64);
  EXPECT_EQ(parsed.mixture.num_experts_per_tok, 4);
  EXPECT_EQ(parsed.mixture.moe_intermediate_size, 1536);
  EXPECT_EQ(parsed.mixture.routed_scaling_factor, 1.8);
  EXPECT_FALSE(parsed.mixture.sparse[0] || !parsed.mixture.sparse[1]);
  // Which the class does not read; published files have it.
  EXPECT_EQ(parse(with(config, {{"first_k_dense_replace", 1}})), parsed);
  EXPECT_TRUE(refuses(with(config, {{"first_k_dense_replace", 2}}), "first_k_dense_replace is 2", "1"));
}

TEST(Mistral4, ReadsWhatItsFilesLeaveOut) {
  json config = with(without(without(small_config("mistral4"), "head_dim"), "rope_theta"),
                     {{"num_key_value_heads", 6}});
  const Config parsed = parse(config);
  EXPECT_EQ(parsed.latent, (LatentAttentionSettings{1024, 256, 64, 64, 128}));
  EXPECT_EQ(parsed.rope.type, RopeType::kYarn);
  EXPECT_EQ(parsed.rope.factor, 128.0);
  EXPECT_EQ(parsed.query_scale_beta, 0.1);
  EXPECT_EQ(parsed.query_scale_original, 8192);
  const double scale = 0.1 * std::log(128.0) + 1.0;
  EXPECT_DOUBLE_EQ(parsed.attention_scale, scale * scale / std::sqrt(128.0));
  const MixtureSettings& mixture = parsed.mixture;
  EXPECT_TRUE(!mixture.sigmoid_scores && !mixture.corrected && !mixture.wide_logits && mixture.stacked);
  EXPECT_TRUE(mixture.norm_topk_prob && mixture.sparse[0] && !mixture.has_router_loss());
  EXPECT_EQ(mixture.num_experts, 128);
  EXPECT_EQ(mixture.num_experts_per_tok, 4);
  EXPECT_FALSE(parse(with(config, {{"norm_topk_prob", false}})).mixture.norm_topk_prob);
  EXPECT_EQ(parse({{"model_type", "mistral3"}, {"text_config", config}}), parsed);
  EXPECT_TRUE(has_parameter(parsed, "model.layers.0.mlp.experts.gate_up_proj", {128, 4096, 48}));
  // Half of a key rotates, and no other part may.
  EXPECT_EQ(parse(with(config, {{"partial_rotary_factor", 0.5}})), parsed);
  EXPECT_TRUE(refuses(with(config, {{"partial_rotary_factor", 1.0}}), "partial_rotary_factor is 1", "0.5"));
}

}  // namespace
}  // namespace streambp
