// What Gemma 1, SmolLM3, Granite, OLMo, Ministral 3, GLM-4, Mixtral, Qwen2-MoE and GPT-OSS add to
// config.json.
#include <cmath>
#include <map>
#include <optional>

#include "verify/tests/streambp/model/config_testing.h"

namespace streambp {
namespace {

using nlohmann::json;

using Windows = std::vector<int64_t>;
using Flags = std::vector<bool>;

// With a vocabulary that holds the class's padding token.
json large(const std::string& family) {
  return with(without(small_config(family), "pad_token_id"), {{"vocab_size", 200000}});
}

TEST(PaddingToken, IsTheClasssWhereTheKeyIsAbsent) {
  const std::map<std::string, std::optional<int64_t>> expected = {
      {"gemma", 0}, {"smollm3", 128004}, {"granite", std::nullopt}, {"olmo2", 1},
      {"olmo3", 1}, {"ministral3", 11},  {"glm4", 151329}};
  for (const auto& [family, token] : expected) {
    json config = large(family);
    if (family == "olmo3") config.erase("rope_theta");
    if (family == "ministral3") config = with(config, {{"head_dim", 8}, {"rope_theta", 1e6}});
    EXPECT_EQ(parse(config).pad_token_id, token) << family;
  }
  EXPECT_TRUE(refuses(without(small_config("glm4"), "pad_token_id"), "pad_token_id is missing", "151329"));
}

TEST(Gemma, IsGemmaWithoutSandwiches) {
  const json gemma = without(without(small_config("gemma"), "tie_word_embeddings"), "head_dim");
  const Config config = parse(gemma);
  EXPECT_TRUE(config.norm_adds_one && config.tie_word_embeddings && config.rounds_embedding_scale);
  EXPECT_FALSE(config.norms_outputs() || config.qk_norm || config.qkv_bias);
  EXPECT_EQ(config.head_dim, 256);
  EXPECT_EQ(config.attention_scale, 1.0 / 16.0);
  EXPECT_EQ(config.embedding_scale, std::sqrt(48.0));
  EXPECT_EQ(config.hidden_act, Activation::kGeluTanh);
  EXPECT_EQ(config.windows, (Windows{0, 0, 0}));
  // What Gemma's first files say for it.
  EXPECT_EQ(parse(with(gemma, {{"hidden_act", "gelu"}, {"hidden_activation", nullptr}})), config);
  EXPECT_TRUE(refuses(with(gemma, {{"hidden_act", "silu"}}), "hidden_act is \"silu\""));
  EXPECT_TRUE(refuses(with(gemma, {{"query_pre_attn_scalar", 256}}), "query_pre_attn_scalar is 256"));
  EXPECT_TRUE(refuses(with(gemma, {{"sliding_window", 7}}), "sliding_window is 7"));
  EXPECT_TRUE(refuses(with(gemma, {{"final_logit_softcapping", 30.0}}), "final_logit_softcapping is 30"));
}

TEST(Smollm3, HasLayersThatDoNotRotate) {
  const json smol = without(without(small_config("smollm3"), "tie_word_embeddings"), "rope_theta");
  const Config config = parse(with(smol, {{"no_rope_layer_interval", 2}}));
  EXPECT_EQ(config.no_rope, (Flags{false, true, false}));
  EXPECT_TRUE(config.tie_word_embeddings);
  EXPECT_EQ(config.rope.theta, 2e6);
  EXPECT_EQ(parse(with(smol, {{"no_rope_layers", {1, 0, 1}}})), config);
  EXPECT_EQ(parse(with(smol, {{"no_rope_layers", {1, 0, 1, 0}}, {"no_rope_layer_interval", 4}})), config);
  EXPECT_EQ(parse(smol).no_rope, (Flags{false, false, false}));
  EXPECT_EQ(parse(with(smol, {{"pretraining_tp", 2}})), parse(smol));
  const json windowed =
      with(smol, {{"no_rope_layers", {1, 0, 0}}, {"use_sliding_window", true}, {"sliding_window", 5}});
  EXPECT_EQ(parse(windowed).windows, (Windows{0, 5, 5}));
  const json types = {"full_attention", "full_attention", "sliding_attention"};
  EXPECT_EQ(parse(with(windowed, {{"layer_types", types}})).windows, (Windows{0, 0, 5}));
  EXPECT_EQ(parse(with(windowed, {{"use_sliding_window", false}})).windows, (Windows{0, 0, 0}));
  EXPECT_TRUE(
      refuses(with(windowed, {{"use_sliding_window", false}, {"layer_types", types}}), "layer_types is"));
  EXPECT_TRUE(refuses(without(windowed, "use_sliding_window"), "sliding_window is 5"));
  EXPECT_TRUE(parse(with(smol, {{"mlp_bias", true}})).mlp_bias);
  for (const json& layers : {json({1, 0}), json({1, 0, 2}), json({true, false, true}), json(1)}) {
    EXPECT_TRUE(refuses(with(smol, {{"no_rope_layers", layers}}), "no_rope_layers is", "3 numbers"))
        << layers;
  }
  EXPECT_TRUE(refuses(with(smol, {{"no_rope_layer_interval", 0}}), "no_rope_layer_interval is 0"));
  EXPECT_TRUE(refuses(with(small_config("llama"), {{"no_rope_layers", {1, 1, 0}}}), "no_rope_layers is"));
}

TEST(Granite, HasMultipliers) {
  const json granite = small_config("granite");
  const Config plain = parse(granite);
  EXPECT_EQ(plain.attention_scale, 1.0);  // the class's default
  EXPECT_EQ(plain.residual_multiplier, 1.0);
  const Config config = parse(with(granite, {{"embedding_multiplier", 12},
                                             {"residual_multiplier", 0.22},
                                             {"attention_multiplier", 0.0078125},
                                             {"logits_scaling", 16.0},
                                             {"mlp_bias", true}}));
  EXPECT_EQ(config.embedding_scale, 12.0);
  EXPECT_EQ(config.residual_multiplier, 0.22);
  EXPECT_EQ(config.attention_scale, 0.0078125);
  EXPECT_EQ(config.logits_scaling, 16.0);
  EXPECT_TRUE(config.mlp_bias && !config.rounds_embedding_scale);
  for (const char* key :
       {"embedding_multiplier", "residual_multiplier", "attention_multiplier", "logits_scaling"}) {
    EXPECT_TRUE(refuses(with(granite, {{key, 0}}), std::string(key) + " is 0", "above 0"));
    EXPECT_TRUE(refuses(with(small_config("llama"), {{key, 2.0}}), std::string(key) + " is 2.0"));
  }
}

TEST(SeedOss, HasABiasOfTheOutputOfItsOwnAndNoDropout) {
  const json seed = with(small_config("seed_oss"), {{"attention_dropout", 0}, {"residual_dropout", 0.0}});
  const Config config = parse(seed);
  EXPECT_TRUE(config.qkv_bias && !config.o_bias && !config.mlp_bias);
  const Config all = parse(with(seed, {{"attention_out_bias", true}, {"mlp_bias", true}}));
  EXPECT_TRUE(all.qkv_bias && all.o_bias && all.mlp_bias);
  EXPECT_FALSE(parse(with(seed, {{"attention_bias", false}})).qkv_bias);
  EXPECT_EQ(parse(without(seed, "pad_token_id")).pad_token_id, 1);
  for (const char* key : {"attention_dropout", "residual_dropout"}) {
    EXPECT_TRUE(refuses(without(seed, key), std::string(key) + " is missing", "0.1"));
    EXPECT_TRUE(refuses(with(seed, {{key, 0.1}}), std::string(key) + " is 0.1"));
  }
  EXPECT_TRUE(refuses(without(seed, "head_dim"), "head_dim is missing"));
  EXPECT_TRUE(refuses(with(small_config("llama"), {{"attention_out_bias", true}}), "attention_out_bias is"));
}

TEST(Ernie, RotatesNeighboursAndHasOneKeyForAllBiases) {
  const json ernie = without(without(small_config("ernie4_5"), "rope_theta"), "tie_word_embeddings");
  const Config config = parse(ernie);
  EXPECT_TRUE(config.rope_interleaved && config.tie_word_embeddings);
  EXPECT_FALSE(config.qkv_bias || config.o_bias || config.mlp_bias);
  EXPECT_EQ(config.rope.theta, 5e5);
  const Config biased = parse(with(ernie, {{"use_bias", true}}));
  EXPECT_TRUE(biased.qkv_bias && biased.o_bias && biased.mlp_bias);
  EXPECT_TRUE(refuses(with(ernie, {{"attention_bias", true}}), "attention_bias is true"));
  EXPECT_TRUE(refuses(with(small_config("llama"), {{"use_bias", true}}), "use_bias is true"));
}

TEST(Helium, HasHeadsThatFillTheHiddenSize) {
  const json helium = without(small_config("helium"), "rope_theta");
  const Config config = parse(helium);
  EXPECT_TRUE(config.rope_interleaved);
  EXPECT_EQ(config.rope.theta, 1e5);
  const Config biased = parse(with(helium, {{"attention_bias", true}, {"mlp_bias", true}}));
  EXPECT_TRUE(biased.qkv_bias && !biased.o_bias && biased.mlp_bias);
  EXPECT_TRUE(refuses(with(helium, {{"head_dim", 16}}), "head_dim is 16", "48"));
}

TEST(Exaone4, RotatesWhereItHasAWindow) {
  const json exaone = with(small_config("exaone4"), {{"num_hidden_layers", 5}});
  const Config config = parse(exaone);
  EXPECT_TRUE(config.norm_after && config.qk_norm && !config.qk_norm_full_width);
  EXPECT_EQ(config.windows, (Windows{4096, 4096, 4096, 0, 4096}));
  EXPECT_EQ(config.no_rope, (Flags{false, false, false, true, false}));
  EXPECT_EQ(parse(with(exaone, {{"sliding_window_pattern", "LLLG"}})), config);
  const Config two = parse(with(exaone, {{"sliding_window", 7}, {"sliding_window_pattern", 2}}));
  EXPECT_EQ(two.windows, (Windows{7, 0, 7, 0, 7}));
  const json types = {"full_attention", "full_attention", "full_attention", "full_attention",
                      "full_attention"};
  const Config full = parse(with(exaone, {{"sliding_window", nullptr}, {"sliding_window_pattern", nullptr}}));
  EXPECT_EQ(full.windows, (Windows{0, 0, 0, 0, 0}));
  EXPECT_TRUE(full.no_rope.empty());
  EXPECT_EQ(parse(with(exaone, {{"sliding_window", nullptr}, {"layer_types", types}})), full);
  const json last = {"sliding_attention", "full_attention", "full_attention", "full_attention",
                     "sliding_attention"};
  EXPECT_EQ(parse(with(exaone, {{"layer_types", last}, {"sliding_window_pattern", 4}})).windows,
            (Windows{4096, 0, 0, 0, 4096}));
  // Where a layer might have a window, none that hasn't rotates.
  EXPECT_EQ(parse(with(exaone, {{"layer_types", types}})).no_rope, (Flags{true, true, true, true, true}));
  for (const char* pattern : {"", "G L", "LGL", "LLL"}) {
    EXPECT_TRUE(refuses(with(exaone, {{"sliding_window_pattern", pattern}}), "sliding_window_pattern is"))
        << pattern;
  }
  EXPECT_EQ(parse(with(exaone, {{"sliding_window_pattern", "G"}})).windows, (Windows{0, 0, 0, 0, 0}));
}

TEST(Olmo, NormsTheOutputsAndWholeProjections) {
  const json olmo2 = without(small_config("olmo2"), "num_key_value_heads");
  const Config config = parse(olmo2);
  EXPECT_TRUE(config.norm_after && config.norms_outputs() && config.qk_norm && config.qk_norm_full_width);
  EXPECT_FALSE(config.sandwich_norms || config.norm_adds_one);
  EXPECT_EQ(config.num_key_value_heads, 6);
  EXPECT_EQ(config.norm_names(0).before_attention + config.norm_names(0).before_mlp, "");
  EXPECT_TRUE(refuses(with(olmo2, {{"clip_qkv", 8.0}}), "clip_qkv is 8.0"));
  EXPECT_TRUE(refuses(with(olmo2, {{"sliding_window", 8}}), "sliding_window is 8"));
}

TEST(Olmo, HasWindowsInThreeOfFourLayersAndTwoRopes) {
  const json olmo3 = with(without(small_config("olmo3"), "rope_theta"), {{"num_hidden_layers", 5}});
  const Config config = parse(olmo3);
  EXPECT_EQ(config.windows, (Windows{4096, 4096, 4096, 0, 4096}));
  EXPECT_EQ(config.rope, rope_settings(RopeType::kDefault, 5e5));
  EXPECT_EQ(config.local_rope, rope_settings(RopeType::kDefault, 5e5));
  const json scaling = {{"rope_type", "yarn"}, {"factor", 8.0}, {"original_max_position_embeddings", 64}};
  const Config yarn =
      parse(with(olmo3, {{"rope_theta", 5e5}, {"rope_scaling", scaling}, {"sliding_window", 7}}));
  EXPECT_EQ(yarn.windows, (Windows{7, 7, 7, 0, 7}));
  EXPECT_EQ(yarn.rope.type, RopeType::kYarn);
  EXPECT_EQ(yarn.local_rope, config.local_rope);
  // transformers 5 gives rope_theta to the layers without a window alone.
  EXPECT_TRUE(refuses(with(olmo3, {{"rope_theta", 500.0}}), "rope_theta is 500.0", "sliding_attention"));
  const json both = {{"full_attention", {{"rope_type", "default"}, {"rope_theta", 500.0}}},
                     {"sliding_attention", {{"rope_type", "default"}, {"rope_theta", 50.0}}}};
  const Config two = parse(with(olmo3, {{"rope_parameters", both}}));
  EXPECT_EQ(two.rope.theta, 500.0);
  EXPECT_EQ(two.local_rope->theta, 50.0);
  EXPECT_TRUE(
      refuses(with(olmo3, {{"rope_parameters", {{"rope_type", "default"}}}}), "rope_parameters.rope_type"));
  EXPECT_TRUE(refuses(with(olmo3, {{"sliding_window", nullptr}}), "sliding_window is null"));
  const json full = {"full_attention", "full_attention", "full_attention", "full_attention",
                     "full_attention"};
  EXPECT_EQ(parse(with(olmo3, {{"layer_types", full}, {"sliding_window", nullptr}})).windows,
            (Windows{0, 0, 0, 0, 0}));
}

json ministral3() {
  return with(without(small_config("ministral3"), "rope_theta"),
              {{"rope_parameters",
                {{"type", "yarn"},
                 {"rope_type", "yarn"},
                 {"rope_theta", 1e6},
                 {"factor", 16.0},
                 {"original_max_position_embeddings", 16384},
                 {"max_position_embeddings", 262144},
                 {"beta_fast", 32.0},
                 {"beta_slow", 1.0},
                 {"mscale", 1.0},
                 {"mscale_all_dim", 1.0},
                 {"llama_4_scaling_beta", 0.1}}}});
}

TEST(Ministral3, ScalesQueriesByTheirPositions) {
  const Config config = parse(ministral3());
  EXPECT_EQ(config.query_scale_beta, 0.1);
  EXPECT_EQ(config.query_scale_original, 16384);
  EXPECT_EQ(config.rope.attention_factor, 1.0);
  EXPECT_EQ(config.windows, (Windows{0, 0, 0}));
  EXPECT_EQ(parse(without(ministral3(), "rope_parameters")), config) << "the class's default";
  EXPECT_EQ(parse(with(ministral3(), {{"sliding_window", 7}})).windows, (Windows{7, 7, 7}));
  const auto rope = [](const json& changes) {
    return with(ministral3(), {{"rope_parameters", with(ministral3()["rope_parameters"], changes)}});
  };
  EXPECT_TRUE(
      refuses(rope({{"llama_4_scaling_beta", nullptr}}), "rope_parameters.llama_4_scaling_beta is null"));
  EXPECT_TRUE(
      refuses(rope({{"rope_type", "default"}, {"type", nullptr}}), "rope_type is \"default\"", "yarn"));
  EXPECT_TRUE(refuses(
      with(without(small_config("llama"), "rope_theta"), {{"rope_scaling", ministral3()["rope_parameters"]}}),
      "is 0.1", "llama_4_scaling_beta", "no such key"));
  EXPECT_TRUE(refuses(with(without(ministral3(), "head_dim"), {{"hidden_size", 48}}), "head_dim is missing"));
}

TEST(Ministral3, IsTheTextPartOfAMistral3) {
  const json whole = {{"model_type", "mistral3"},
                      {"tie_word_embeddings", false},
                      {"dtype", "bfloat16"},
                      {"text_config", {{"model_type", "ministral3"}, {"max_position_embeddings", 262144}}},
                      {"vision_config", {{"model_type", "pixtral"}}}};
  Config expected = preset("ministral3-8b");
  expected.pad_token_id = 11;  // the default of the class, which a preset doesn't take
  EXPECT_EQ(parse(whole), expected);
  EXPECT_TRUE(refuses(with(whole, {{"text_config", {{"model_type", "llama"}}}}), "text_config.model_type"));
}

/// As Mistral Small 3.1 and 3.2 and Magistral are published; transformers takes mistral where text_config has
/// no model_type.
TEST(Mistral, IsTheTextPartOfAMistral3) {
  const json text = {{"model_type", "mistral"},
                     {"hidden_size", 5120},
                     {"intermediate_size", 32768},
                     {"num_hidden_layers", 40},
                     {"num_attention_heads", 32},
                     {"num_key_value_heads", 8},
                     {"head_dim", 128},
                     {"max_position_embeddings", 131072},
                     {"rms_norm_eps", 1e-5},
                     {"rope_theta", 1e9},
                     {"sliding_window", nullptr},
                     {"vocab_size", 131072}};
  const json whole = {{"model_type", "mistral3"},
                      {"dtype", "bfloat16"},
                      {"image_token_index", 10},
                      {"text_config", text},
                      {"vision_config", {{"model_type", "pixtral"}}}};
  const Config config = parse(whole);
  EXPECT_EQ(config, parse(with(text, {{"dtype", "bfloat16"}})));
  EXPECT_EQ(config.family, "mistral");
  EXPECT_FALSE(config.tie_word_embeddings) << "the files have a head of their own";
  EXPECT_EQ(parse(with(whole, {{"text_config", without(text, "model_type")}})), config);
}

TEST(Glm4, RotatesPairsOfHalfAHeadBetweenFourNorms) {
  const Config config = parse(small_config("glm4"));
  EXPECT_TRUE(config.rope_interleaved && config.fused_gate_up && config.sandwich_norms && config.qkv_bias);
  EXPECT_FALSE(config.o_bias || config.fused_projections || config.norm_adds_one);
  EXPECT_EQ(config.rotary_dim, 4);
  EXPECT_EQ(config.norm_names(0).after_attention, "post_self_attn_layernorm");
  EXPECT_EQ(config.norm_names(0).before_mlp, "post_attention_layernorm");
  EXPECT_FALSE(parse(with(small_config("glm4"), {{"attention_bias", false}})).qkv_bias);
  EXPECT_EQ(parse(with(small_config("glm4"), {{"partial_rotary_factor", 1.0}})).rotary_dim, 8);
  const json five =
      with(without(small_config("glm4"), "rope_theta"),
           {{"rope_parameters",
             {{"rope_type", "default"}, {"rope_theta", 500.0}, {"partial_rotary_factor", 0.5}}}});
  EXPECT_EQ(parse(five), config);
  EXPECT_EQ(parse(without(small_config("glm4"), "rms_norm_eps")).rms_norm_eps, 1.5625e-7);
}

TEST(Mixtral, HasExpertsInEveryLayer) {
  const json mixtral = with(small_config("mixtral"), {{"num_local_experts", 4}, {"num_experts_per_tok", 2}});
  const Config config = parse(mixtral);
  EXPECT_EQ(config.mixture, (MixtureSettings{4, 2, 44, true, 0.001, false, {true, true, true}, 0, true}));
  EXPECT_EQ(config.windows, (Windows{0, 0, 0}));
  EXPECT_EQ(parse(with(mixtral, {{"sliding_window", 7}})).windows, (Windows{7, 7, 7}));
  EXPECT_TRUE(refuses(with(mixtral, {{"router_jitter_noise", 0.1}}), "router_jitter_noise is 0.1"));
  EXPECT_TRUE(refuses(with(mixtral, {{"norm_topk_prob", false}}), "norm_topk_prob is false"));
  EXPECT_TRUE(refuses(with(mixtral, {{"moe_intermediate_size", 20}}), "moe_intermediate_size is 20"));
  EXPECT_TRUE(refuses(without(mixtral, "num_local_experts"), "num_experts is missing"));
}

TEST(Qwen2Moe, HasAnExpertThatEveryTokenHas) {
  const json qwen = with(small_config("qwen2_moe"), {{"num_experts", 4},
                                                     {"num_experts_per_tok", 2},
                                                     {"moe_intermediate_size", 20},
                                                     {"shared_expert_intermediate_size", 24}});
  const Config config = parse(qwen);
  EXPECT_EQ(config.mixture, (MixtureSettings{4, 2, 20, false, 0.001, false, {true, true, true}, 24, false}));
  EXPECT_TRUE(config.qkv_bias && !config.o_bias);
  EXPECT_FALSE(parse(with(qwen, {{"qkv_bias", false}})).qkv_bias);
  const json windowed =
      with(qwen, {{"use_sliding_window", true}, {"sliding_window", 5}, {"max_window_layers", 2}});
  EXPECT_EQ(parse(windowed).windows, (Windows{5, 0, 0}));
  EXPECT_EQ(parse(with(windowed, {{"max_window_layers", 28}})).windows, (Windows{5, 0, 5}));
  EXPECT_EQ(parse(with(qwen, {{"use_sliding_window", false}, {"sliding_window", 0}})), config) << "as saved";
  // Keys of other families' classes, which this one does not read.
  EXPECT_TRUE(
      refuses(with(without(qwen, "num_experts"), {{"num_local_experts", 4}}), "num_experts is missing"));
  EXPECT_TRUE(refuses(with(qwen, {{"attention_bias", false}}), "attention_bias is false"));
  EXPECT_TRUE(refuses(with(small_config("llama"), {{"qkv_bias", true}}), "qkv_bias is true"));
  EXPECT_TRUE(refuses(without(qwen, "shared_expert_intermediate_size"),
                      "shared_expert_intermediate_size is missing"));
}

json gpt_oss() {
  return with(without(small_config("gpt_oss"), "rope_theta"),
              {{"num_local_experts", 4}, {"num_experts_per_tok", 2}});
}

TEST(GptOss, HasSinksAndClampedGatesAndWindowsInEveryOtherLayer) {
  const Config config = parse(gpt_oss());
  EXPECT_TRUE(config.attention_sinks && config.qkv_bias && config.o_bias);
  EXPECT_FALSE(config.mlp_bias || config.qk_norm || config.norms_outputs());
  EXPECT_EQ(config.swiglu_alpha, 1.702);
  EXPECT_EQ(config.swiglu_limit, 7.0);
  EXPECT_EQ(config.windows, (Windows{128, 0, 128}));
  EXPECT_EQ(config.mixture,
            (MixtureSettings{4, 2, 44, true, 0.001, false, {true, true, true}, 0, false, false, true}));
  EXPECT_FALSE(parse(with(gpt_oss(), {{"attention_bias", false}})).qkv_bias);
  EXPECT_EQ(parse(with(gpt_oss(), {{"swiglu_alpha", 1.3}, {"swiglu_limit", 5}})).swiglu_limit, 5.0);
  EXPECT_EQ(parse(with(gpt_oss(), {{"sliding_window", 7}})).windows, (Windows{7, 0, 7}));
  const json types = {"full_attention", "sliding_attention", "full_attention"};
  EXPECT_EQ(parse(with(gpt_oss(), {{"layer_types", types}})).windows, (Windows{0, 128, 0}));
  EXPECT_TRUE(refuses(with(gpt_oss(), {{"sliding_window", nullptr}}), "sliding_window is null"));
  EXPECT_TRUE(refuses(with(gpt_oss(), {{"swiglu_limit", 0}}), "swiglu_limit is 0", "above 0"));
  EXPECT_TRUE(refuses(with(gpt_oss(), {{"norm_topk_prob", false}}), "norm_topk_prob is false"));
  EXPECT_TRUE(refuses(with(gpt_oss(), {{"experts_per_token", 3}}), "experts_per_token is 3"));
  EXPECT_EQ(parse(with(gpt_oss(), {{"experts_per_token", 2}})), config) << "as the published files";
  EXPECT_TRUE(refuses(without(gpt_oss(), "head_dim"), "head_dim is missing"));
  EXPECT_TRUE(refuses(with(small_config("llama"), {{"swiglu_limit", 7.0}}), "swiglu_limit is 7.0"));
  EXPECT_FALSE(parse(small_config("llama")).attention_sinks);
}

TEST(GptOss, HasYarnWithoutWholeNumbers) {
  const Config config = parse(gpt_oss());
  EXPECT_EQ(config.rope.type, RopeType::kYarn);
  EXPECT_EQ(config.rope.theta, 150000.0);
  EXPECT_EQ(config.rope.factor, 32.0);
  EXPECT_EQ(config.rope.original_max_position_embeddings, 4096);
  EXPECT_FALSE(config.rope.truncate);
  EXPECT_EQ(config.rope.attention_factor, 0.1 * std::log(32.0) + 1.0);
  const json yarn = {{"rope_type", "yarn"}, {"factor", 32.0},   {"original_max_position_embeddings", 4096},
                     {"beta_fast", 32.0},   {"beta_slow", 1.0}, {"truncate", false}};
  EXPECT_EQ(parse(with(gpt_oss(), {{"rope_theta", 150000}, {"rope_scaling", yarn}})), config);
  EXPECT_EQ(parse(with(gpt_oss(), {{"rope_parameters", with(yarn, {{"rope_theta", 150000}})}})), config);
  EXPECT_TRUE(parse(with(gpt_oss(), {{"rope_scaling", without(yarn, "truncate")}})).rope.truncate);
  EXPECT_TRUE(refuses(with(gpt_oss(), {{"rope_scaling", nullptr}}), "rope_scaling is null", "an object"));
}

TEST(GptOss, IsRefusedInFourBits) {
  // As published: trained is what MXFP4 is dequantised to.
  const json published = with(gpt_oss(), {{"quantization_config", {{"quant_method", "mxfp4"}}}});
  EXPECT_EQ(parse(published).dtype, "bfloat16");
  EXPECT_TRUE(refuses(with(gpt_oss(), {{"quantization_config", {{"quant_method", "mxfp5"}}}}),
                      "quantization_config"));
}

}  // namespace
}  // namespace streambp
