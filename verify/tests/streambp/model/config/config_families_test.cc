// What each family of models adds to config.json: both spellings, defaults, and refusals by name.
#include <cmath>

#include "verify/tests/streambp/model/config_testing.h"

namespace streambp {
namespace {

using nlohmann::json;

using Windows = std::vector<int64_t>;

TEST(Gemma3, ReadsTheGoldenModel) {
  const Config config = read_config(kModels / "gemma3" / "config.json");
  EXPECT_EQ(config.family, "gemma3_text");
  EXPECT_EQ(config.windows, (Windows{9, 9, 0, 9}));
  EXPECT_EQ(config.rope, rope_settings(RopeType::kLinear, 1e4, 8.0));
  EXPECT_EQ(config.local_rope, rope_settings(RopeType::kDefault, 100.0));
  EXPECT_EQ(config.attention_scale, 1.0 / std::sqrt(24.0));
  EXPECT_EQ(config.embedding_scale, std::sqrt(24.0));
  EXPECT_EQ(config.hidden_act, Activation::kGeluTanh);
  EXPECT_TRUE(config.qk_norm && config.sandwich_norms && config.norm_adds_one && config.tie_word_embeddings);
  EXPECT_EQ(config.attn_logit_softcapping, 0.0);
  EXPECT_EQ(config.final_logit_softcapping, 0.0);
}

// google/gemma-3-4b-it, config.json.
TEST(Gemma3, TakesTheTextPartOfAPublishedModel) {
  const json published = {{"architectures", {"Gemma3ForConditionalGeneration"}},
                          {"image_token_index", 262144},
                          {"mm_tokens_per_image", 256},
                          {"model_type", "gemma3"},
                          {"text_config",
                           {{"hidden_size", 2560},
                            {"intermediate_size", 10240},
                            {"model_type", "gemma3_text"},
                            {"num_hidden_layers", 34},
                            {"rope_scaling", {{"factor", 8.0}, {"rope_type", "linear"}}},
                            {"sliding_window", 1024}}},
                          {"torch_dtype", "bfloat16"},
                          {"vision_config", {{"hidden_size", 1152}, {"num_hidden_layers", 27}}}};
  Config expected = preset("gemma-3-4b");
  expected.pad_token_id = 0;  // the default of the class, which a preset doesn't take
  EXPECT_EQ(parse(published), expected);
  const auto inside = [&](const json& changes) {
    return with(published, {{"text_config", with(published["text_config"], changes)}});
  };
  EXPECT_EQ(parse(inside({{"dtype", "bfloat16"}, {"tie_word_embeddings", true}})), expected);
  EXPECT_TRUE(
      refuses(inside({{"torch_dtype", "float32"}}), "text_config.torch_dtype is \"float32\"", "bfloat16"));
  EXPECT_TRUE(refuses(inside({{"dtype", "float32"}}), "text_config.dtype is \"float32\"", "torch_dtype"));
  EXPECT_TRUE(refuses(with(inside({{"tie_word_embeddings", true}}), {{"tie_word_embeddings", false}}),
                      "text_config.tie_word_embeddings is true"));
  EXPECT_FALSE(parse(with(published, {{"tie_word_embeddings", false}})).tie_word_embeddings);
  // transformers 5 ties them all the same.
  EXPECT_TRUE(
      refuses(inside({{"tie_word_embeddings", false}}), "tie_word_embeddings", "outside text_config"));
  EXPECT_TRUE(refuses(with(published, {{"quantization_config", {{"bits", 4}}}}), "quantization_config"));
  EXPECT_TRUE(refuses(inside({{"model_type", "gemma2"}}), "text_config.model_type is \"gemma2\""));
  EXPECT_TRUE(refuses(without(published, "text_config"), "text_config is missing"));
  EXPECT_TRUE(refuses(with(published, {{"text_config", 3}}), "text_config. is not a JSON object"));
}

TEST(Gemma3, TakesTheDefaultsOfTransformers) {
  const json gemma =
      without(without(without(small_config("gemma3_text"), "head_dim"), "rope_theta"), "tie_word_embeddings");
  const Config config = parse(gemma);
  EXPECT_EQ(config.head_dim, 256);
  EXPECT_EQ(config.attention_scale, 1.0 / 16.0);
  EXPECT_EQ(config.rope.theta, 1e6);
  EXPECT_EQ(config.local_rope->theta, 1e4);
  EXPECT_EQ(config.windows, (Windows{4096, 4096, 4096}));
  EXPECT_TRUE(config.tie_word_embeddings);
  EXPECT_FALSE(config.qkv_bias || config.o_bias || config.mlp_bias || config.fused_projections);
  const Config biased = parse(with(gemma, {{"attention_bias", true}}));
  EXPECT_TRUE(biased.qkv_bias && biased.o_bias);
  // The pattern that transformers 5 writes for itself is not read, by it or here.
  EXPECT_EQ(parse(with(gemma, {{"_sliding_window_pattern", 2}})), config);
  EXPECT_EQ(parse(with(gemma, {{"sliding_window_pattern", 2}})).windows, (Windows{4096, 0, 4096}));
  const json types = {"full_attention", "sliding_attention", "full_attention"};
  EXPECT_EQ(parse(with(gemma, {{"layer_types", types}, {"sliding_window", 7}})).windows, (Windows{0, 7, 0}));
  const json both = {{"full_attention", {{"rope_type", "linear"}, {"factor", 8.0}, {"rope_theta", 500.0}}},
                     {"sliding_attention", {{"rope_type", "default"}, {"rope_theta", 50.0}}}};
  const Config five = parse(with(gemma, {{"rope_parameters", both}}));
  EXPECT_EQ(five, parse(with(gemma, {{"rope_theta", 500.0},
                                     {"rope_local_base_freq", 50.0},
                                     {"rope_scaling", {{"rope_type", "linear"}, {"factor", 8.0}}}})));
  EXPECT_EQ(parse(with(gemma, {{"rope_parameters", {{"full_attention", nullptr}}}})), config);
}

TEST(Gemma3, RefusesWhatItDoesNotHonour) {
  const json gemma = small_config("gemma3_text");
  const std::vector<std::pair<const char*, json>> unsupported = {
      {"hidden_activation", "gelu"},
      {"hidden_act", "silu"},
      {"attn_logit_softcapping", 50.0},
      {"use_bidirectional_attention", true},
      {"attention_dropout", 0.1},
      {"query_pre_attn_scalar", 0},
      {"sliding_window", nullptr},
      {"sliding_window", 0},
      {"sliding_window_pattern", 0},
      {"use_sliding_window", false},
      {"mlp_bias", true},
      {"partial_rotary_factor", 0.5},
      {"layer_types", {"full_attention", "full_attention"}},
      {"layer_types", {"full_attention", "chunked_attention", "full_attention"}}};
  for (const auto& [key, value] : unsupported) {
    EXPECT_TRUE(refuses(with(gemma, {{key, value}}), std::string(key) + " is ")) << value;
  }
  const json full = {"full_attention", "full_attention", "full_attention"};
  EXPECT_EQ(parse(with(gemma, {{"sliding_window_pattern", 2}, {"layer_types", full}})).windows,
            (Windows{0, 0, 0}));  // as transformers has it where both are there
  // Its text model caps logits, the whole one does not.
  const json capped = with(gemma, {{"final_logit_softcapping", 30.0}});
  EXPECT_EQ(parse(capped).final_logit_softcapping, 30.0);
  EXPECT_EQ(parse({{"model_type", "gemma3"}, {"text_config", capped}}), parse(gemma));
  EXPECT_TRUE(refuses(with(gemma, {{"rope_parameters", {{"rope_type", "default"}}}}),
                      "rope_parameters.rope_type", "full_attention and sliding_attention only"));
  EXPECT_TRUE(refuses(with(gemma, {{"rope_parameters", {{"full_attention", {{"rope_theta", 501.0}}}}}}),
                      "rope_parameters.full_attention.rope_theta is 501.0", "500.0"));
  EXPECT_TRUE(refuses(with(gemma, {{"rope_local_base_freq", 50.0},
                                   {"rope_parameters", {{"sliding_attention", {{"rope_theta", 51.0}}}}}}),
                      "rope_parameters.sliding_attention.rope_theta is 51.0", "50.0"));
  EXPECT_TRUE(refuses(with(gemma, {{"rope_local_base_freq", 0}}), "rope_local_base_freq is 0", "above 0"));
}

TEST(Gemma2, HasCapsAndAWindowInEveryOtherLayer) {
  const json gemma = without(small_config("gemma2"), "tie_word_embeddings");
  const Config config = parse(gemma);
  EXPECT_EQ(config.windows, (Windows{4096, 0, 4096}));
  EXPECT_EQ(config.attn_logit_softcapping, 50.0);
  EXPECT_EQ(config.final_logit_softcapping, 30.0);
  EXPECT_EQ(config.attention_scale, 1.0 / 16.0);
  EXPECT_EQ(config.local_rope, std::nullopt);
  EXPECT_TRUE(config.sandwich_norms && config.norm_adds_one && config.tie_word_embeddings && !config.qk_norm);
  const Config none =
      parse(with(gemma, {{"attn_logit_softcapping", nullptr}, {"final_logit_softcapping", nullptr}}));
  EXPECT_EQ(none.attn_logit_softcapping, 0.0);
  EXPECT_EQ(none.final_logit_softcapping, 0.0);
  const json types = {"sliding_attention", "full_attention", "sliding_attention"};
  const json five = with(without(gemma, "rope_theta"),
                         {{"layer_types", types},
                          {"sliding_window", 4096},
                          {"rope_parameters", {{"rope_type", "default"}, {"rope_theta", 500.0}}}});
  EXPECT_EQ(parse(five), config);
  EXPECT_EQ(
      parse(with(gemma, {{"layer_types", {"full_attention", "full_attention", "full_attention"}}})).windows,
      (Windows{0, 0, 0}));
  EXPECT_EQ(parse(with(gemma, {{"hidden_act", "gelu_pytorch_tanh"}})), config);
  for (const char* key : {"attn_logit_softcapping", "final_logit_softcapping", "query_pre_attn_scalar"}) {
    EXPECT_TRUE(refuses(with(gemma, {{key, 0}}), std::string(key) + " is 0", "above 0"));
  }
  EXPECT_TRUE(refuses(with(gemma, {{"sliding_window_pattern", 3}}), "sliding_window_pattern is 3"));
  EXPECT_TRUE(refuses(with(gemma, {{"use_bidirectional_attention", true}}), "use_bidirectional_attention"));
  EXPECT_TRUE(refuses(with(gemma, {{"hidden_activation", "gelu"}}), "hidden_activation is \"gelu\""));
}

TEST(Mistral, HasOneWindowInEveryLayer) {
  const json mistral = small_config("mistral");
  EXPECT_TRUE(refuses(mistral, "sliding_window is missing", "transformers would take 4096"));
  EXPECT_EQ(parse(with(mistral, {{"sliding_window", nullptr}})).windows, (Windows{0, 0, 0}));
  const Config config = parse(with(mistral, {{"sliding_window", 7}}));
  EXPECT_EQ(config.windows, (Windows{7, 7, 7}));
  EXPECT_EQ(parse(with(without(mistral, "head_dim"), {{"sliding_window", 7}})), config);
  EXPECT_FALSE(config.qkv_bias || config.o_bias || config.mlp_bias || config.qk_norm);
  const json sliding = {"sliding_attention", "sliding_attention", "sliding_attention"};
  EXPECT_EQ(parse(with(mistral, {{"sliding_window", 7}, {"layer_types", sliding}})), config);
  EXPECT_TRUE(
      refuses(with(mistral, {{"sliding_window", nullptr}, {"layer_types", sliding}}), "layer_types is"));
  for (const json& window : {json(0), json(-1), json(7.5), json("7"), json(int64_t{1} << 41)}) {
    EXPECT_TRUE(
        refuses(with(mistral, {{"sliding_window", window}}), "sliding_window is", "an integer from 1"));
  }
  const json windowless = with(mistral, {{"sliding_window", nullptr}});
  EXPECT_TRUE(refuses(with(windowless, {{"attention_bias", true}}), "attention_bias is true"));
  EXPECT_TRUE(refuses(with(windowless, {{"use_sliding_window", true}}), "use_sliding_window is true"));
  const json absent = without(windowless, "num_key_value_heads");
  EXPECT_EQ(parse(with(absent, {{"num_attention_heads", 16}})).num_key_value_heads, 8);
  EXPECT_EQ(parse(without(with(windowless, {{"hidden_size", 50}}), "head_dim")).head_dim, 8)
      << "rounded down";
}

TEST(Phi3, FusesItsProjections) {
  const json phi = small_config("phi3");
  const Config config = parse(phi);
  EXPECT_TRUE(config.fused_projections);
  EXPECT_EQ(config.windows, (Windows{0, 0, 0}));
  EXPECT_EQ(parse(with(phi, {{"sliding_window", 7}})).windows, (Windows{7, 7, 7}));
  EXPECT_EQ(parse(without(phi, "num_key_value_heads")).num_key_value_heads, 6);
  EXPECT_EQ(parse(without(phi, "rms_norm_eps")).rms_norm_eps, 1e-5);
  EXPECT_EQ(parse(with(phi, {{"resid_pdrop", 0.0},
                             {"embd_pdrop", 0.0},
                             {"attention_bias", false},
                             {"lm_head_bias", false},
                             {"full_attn_mod", 1},
                             {"interpolate_factor", 1},
                             {"original_max_position_embeddings", 512}})),
            config);
  for (const char* key : {"resid_pdrop", "embd_pdrop", "attention_dropout"}) {
    EXPECT_TRUE(refuses(with(phi, {{key, 0.1}}), std::string(key) + " is 0.1"));
  }
  EXPECT_TRUE(refuses(with(phi, {{"attention_bias", true}}), "attention_bias is true"));
  EXPECT_TRUE(refuses(with(phi, {{"full_attn_mod", 2}}), "full_attn_mod is 2"));
}

TEST(Qwen, HasWindowsFromALayerOn) {
  for (const char* family : {"qwen2", "qwen3"}) {
    const json qwen = with(small_config(family), {{"use_sliding_window", true}});
    const json windowed = with(qwen, {{"sliding_window", 4}, {"max_window_layers", 1}});
    EXPECT_EQ(parse(windowed).windows, (Windows{0, 4, 4})) << family;
    EXPECT_EQ(parse(with(windowed, {{"max_window_layers", 28}})).windows, (Windows{0, 0, 0})) << family;
    const json types = {"full_attention", "sliding_attention", "sliding_attention"};
    EXPECT_EQ(parse(with(windowed, {{"layer_types", types}})), parse(windowed)) << family;
    EXPECT_EQ(parse(with(without(windowed, "max_window_layers"), {{"layer_types", types}})), parse(windowed));
    // transformers writes the class's max_window_layers next to a list that it has been given.
    EXPECT_EQ(parse(with(windowed, {{"layer_types", types}, {"max_window_layers", 28}})), parse(windowed));
    EXPECT_TRUE(refuses(without(windowed, "max_window_layers"), "max_window_layers is missing"));
    EXPECT_TRUE(refuses(with(windowed, {{"max_window_layers", -1}}), "max_window_layers is -1"));
    EXPECT_TRUE(refuses(without(windowed, "sliding_window"), "sliding_window is missing"));
    EXPECT_EQ(parse(with(windowed, {{"sliding_window", nullptr}})).windows, (Windows{0, 0, 0})) << family;
    EXPECT_TRUE(refuses(with(windowed, {{"use_sliding_window", 1}}), "use_sliding_window is 1"));
    EXPECT_TRUE(
        refuses(with(windowed, {{"use_sliding_window", false}, {"layer_types", types}}), "layer_types"));
  }
}

json moe() {
  return with(small_config("qwen3_moe"),
              {{"num_experts", 4}, {"num_experts_per_tok", 2}, {"moe_intermediate_size", 20}});
}

TEST(Qwen3Moe, ReadsItsMixture) {
  const Config config = parse(moe());
  EXPECT_EQ(config.mixture, (MixtureSettings{4, 2, 20, false, 0.001, false, {true, true, true}}));
  EXPECT_TRUE(config.qk_norm && config.is_sparse(0));
  const Config full = parse(with(moe(), {{"norm_topk_prob", true},
                                         {"output_router_logits", true},
                                         {"router_aux_loss_coef", 0.3},
                                         {"mlp_only_layers", {1}}}));
  EXPECT_EQ(full.mixture, (MixtureSettings{4, 2, 20, true, 0.3, true, {true, false, true}}));
  EXPECT_EQ(parse(with(moe(), {{"router_aux_loss_coef", 0.3}})).mixture.router_aux_loss_coef, 0.3);
  EXPECT_EQ(parse(with(moe(), {{"decoder_sparse_step", 2}})).mixture.sparse,
            (std::vector<bool>{false, true, false}));
  EXPECT_EQ(parse(with(without(moe(), "num_experts"), {{"num_local_experts", 4}})), config);
  EXPECT_EQ(parse(with(moe(), {{"num_local_experts", 4}, {"mlp_only_layers", json::array()}})), config);
  EXPECT_EQ(parse(with(moe(), {{"sliding_window", 7}, {"use_sliding_window", true}})).windows,
            (Windows{7, 7, 7}));
  EXPECT_EQ(parse(with(moe(), {{"use_sliding_window", false}, {"max_window_layers", 48}})), config);
  EXPECT_FALSE(parse(small_config("qwen3")).is_sparse(0));
}

TEST(Qwen3Moe, RefusesImpossibleMixtures) {
  for (const char* key : {"num_experts", "num_experts_per_tok", "moe_intermediate_size"}) {
    EXPECT_TRUE(refuses(without(moe(), key), std::string(key) + " is missing"));
    for (const json& value : {json(0), json(-1), json(2.0), json("2"), json(int64_t{1} << 23)}) {
      EXPECT_TRUE(refuses(with(moe(), {{key, value}}), std::string(key) + " is", "an integer from 1 to"));
    }
  }
  EXPECT_TRUE(refuses(with(moe(), {{"num_experts_per_tok", 5}}), "num_experts_per_tok is 5", "from 1 to 4"));
  EXPECT_TRUE(refuses(with(moe(), {{"num_local_experts", 8}}), "num_experts is 4", "num_local_experts: 8"));
  EXPECT_TRUE(refuses(with(moe(), {{"router_aux_loss_coef", -0.1}}), "router_aux_loss_coef is -0.1"));
  EXPECT_TRUE(refuses(with(moe(), {{"decoder_sparse_step", 0}}), "decoder_sparse_step is 0"));
  EXPECT_TRUE(
      refuses(with(moe(), {{"shared_expert_intermediate_size", 8}}), "shared_expert_intermediate_size"));
  // As Qwen3-Coder's files say it: none.
  const Config coder = parse(with(moe(), {{"shared_expert_intermediate_size", 0}}));
  EXPECT_EQ(coder.mixture.shared_expert_intermediate_size, 0);
  for (const json& layers : {json({3}), json({-1}), json({0.5}), json(1), json("all")}) {
    EXPECT_TRUE(refuses(with(moe(), {{"mlp_only_layers", layers}}), "mlp_only_layers is", "from 0 to 2"));
  }
  EXPECT_TRUE(
      refuses(with(moe(), {{"sliding_window", 7}, {"use_sliding_window", true}, {"max_window_layers", 1}}),
              "max_window_layers is 1"));
}

TEST(MiniMaxM2, ChoosesExpertsBySigmoidsInEveryLayer) {
  const json minimax = with(without(small_config("minimax_m2"), "rope_theta"),
                            {{"num_local_experts", 4}, {"num_experts_per_tok", 2}, {"rotary_dim", 4}});
  const Config config = parse(minimax);
  EXPECT_TRUE(config.qk_norm_full_width && config.mixture.sigmoid_scores && config.mixture.norm_topk_prob);
  EXPECT_TRUE(config.mixture.block_sparse_moe_names && !config.norm_after && !config.qkv_bias);
  EXPECT_EQ(config.mixture.moe_intermediate_size, 44);
  EXPECT_EQ(config.mixture.n_group, 1);
  EXPECT_EQ(config.rotary_dim, 4);
  EXPECT_EQ(config.rope.theta, 5e6);
  const json share = with(without(minimax, "rotary_dim"), {{"partial_rotary_factor", 0.5}});
  EXPECT_EQ(parse(share), config);
  EXPECT_EQ(parse(without(minimax, "rotary_dim")).rotary_dim, 8);
  EXPECT_TRUE(refuses(with(share, {{"rotary_dim", 8}}), "rotary_dim is 8", "partial_rotary_factor"));
  EXPECT_TRUE(refuses(with(minimax, {{"rotary_dim", 3}}), "an even number"));
  EXPECT_TRUE(refuses(with(minimax, {{"scoring_func", "softmax"}}), "scoring_func is"));
}

TEST(Ernie45Moe, ChoosesExpertsByACorrectedSoftmax) {
  const json ernie = without(small_config("ernie4_5_moe"), "rope_theta");
  const Config config = parse(ernie);
  EXPECT_EQ(config.mixture.num_experts, 64);
  EXPECT_EQ(config.mixture.num_experts_per_tok, 6);
  EXPECT_EQ(config.mixture.shared_expert_intermediate_size, 2 * 1536);
  EXPECT_EQ(config.mixture.sparse, (std::vector<bool>{false, true, true}));
  EXPECT_TRUE(config.mixture.corrected && config.mixture.norm_topk_prob && !config.mixture.sigmoid_scores);
  EXPECT_EQ(config.mixture.least_sum, 1e-12);
  EXPECT_EQ(config.rope.theta, 5e5);
  EXPECT_TRUE(config.rope_interleaved);
  EXPECT_TRUE(has_parameter(config, "model.layers.1.mlp.moe_statics.e_score_correction_bias", {1, 64}));
  const auto sparse = [&](const json& more) { return parse(with(ernie, more)).mixture.sparse; };
  EXPECT_EQ(sparse({{"moe_layer_interval", 2}}), (std::vector<bool>{false, true, false}));
  EXPECT_EQ(sparse({{"moe_layer_start_index", 0}, {"moe_layer_end_index", 1}}),
            (std::vector<bool>{true, true, false}));
  EXPECT_EQ(sparse({{"moe_layer_end_index", -1}}), config.mixture.sparse);
  EXPECT_EQ(parse(with(ernie, {{"num_experts", 4}, {"num_experts_per_tok", 2}})).mixture.num_experts, 4);
  EXPECT_EQ(parse(with(ernie, {{"moe_num_shared_experts", 0}})).mixture.shared_expert_intermediate_size, 0);
  EXPECT_TRUE(refuses(with(ernie, {{"moe_layer_start_index", 3}}), "moe_layer_start_index is 3"));
  EXPECT_TRUE(refuses(with(ernie, {{"use_bias", true}}), "use_bias is true"));
  EXPECT_TRUE(refuses(with(ernie, {{"moe_k", 65}}), "moe_k is 65"));
  EXPECT_TRUE(refuses(with(ernie, {{"moe_num_experts", 4}}), "moe_k is missing", "at most the 4 experts"));
}

TEST(GraniteMoe, HasExpertsInTwoTensors) {
  const json granite = with(small_config("granitemoe"), {{"num_local_experts", 4}});
  const Config config = parse(granite);
  EXPECT_EQ(config.mixture.num_experts_per_tok, 2);
  EXPECT_EQ(config.mixture.moe_intermediate_size, 44);
  EXPECT_EQ(config.mixture.shared_expert_intermediate_size, 0);
  EXPECT_TRUE(has_parameter(config, "model.layers.0.block_sparse_moe.input_linear.weight", {4, 88, 48}));
  EXPECT_TRUE(has_parameter(config, "model.layers.0.block_sparse_moe.output_linear.weight", {4, 48, 44}));
  EXPECT_TRUE(has_parameter(config, "model.layers.0.block_sparse_moe.router.layer.weight", {4, 48}));
  json shared = with(granite, {{"model_type", "granitemoeshared"}});
  EXPECT_EQ(parse(shared).mixture, config.mixture);
  shared["shared_intermediate_size"] = 7;
  EXPECT_EQ(parse(shared).mixture.shared_expert_intermediate_size, 7);
  EXPECT_TRUE(has_parameter(parse(shared), "model.layers.2.shared_mlp.input_linear.weight", {14, 48}));
  EXPECT_TRUE(refuses(with(granite, {{"num_local_experts", 0}}), "num_local_experts is 0"));
}

TEST(MuseGlimmer, HasPlainNormsAndCountsWindowsFromItsEnd) {
  json muse = without(without(small_config("muse_glimmer_text"), "rope_theta"), "head_dim");
  muse.update({{"num_hidden_layers", 5}, {"sliding_window", 7}, {"tie_word_embeddings", false}});
  const Config config = parse(muse);
  EXPECT_TRUE(config.plain_norms && config.output_gate_map && config.norm_adds_one && config.sandwich_norms);
  EXPECT_EQ(config.head_dim, 128);
  EXPECT_EQ(config.windows, (std::vector<int64_t>{0, 7, 7, 7, 0}));
  EXPECT_EQ(config.no_rope, (std::vector<bool>{true, false, false, false, true}));
  EXPECT_EQ(config.attention_scale, 3.87 / std::sqrt(128.0));
  EXPECT_EQ(config.final_logit_softcapping, 20.0);
  EXPECT_EQ(config.logits_scaling, 1.0 / 0.19611613513818404);
  EXPECT_TRUE(has_parameter(config, "model.layers.0.self_attn.gate_proj.weight", {6 * 128, 48}));
  EXPECT_FALSE(has_parameter(config, "model.layers.0.self_attn.q_norm.weight", {128}));
  EXPECT_EQ(parse(with(muse, {{"layer_rope_theta", {1e4, 0, 1e4, 1e4, 0}}})).no_rope,
            (std::vector<bool>{false, true, false, false, true}));
  EXPECT_EQ(parse({{"model_type", "muse_glimmer"}, {"text_config", muse}}), config);
  EXPECT_TRUE(refuses(with(muse, {{"layer_rope_theta", {1e4}}}), "layer_rope_theta"));
  EXPECT_TRUE(refuses(with(muse, {{"post_norm_eps", 0}}), "post_norm_eps is 0"));
}

TEST(Hunyuan, NormsRotatedHeadsAndStretchesItsBase) {
  const json hunyuan = without(small_config("hunyuan_v1_dense"), "num_key_value_heads");
  const Config config = parse(hunyuan);
  EXPECT_TRUE(config.qk_norm && !config.qk_norm_full_width);
  EXPECT_EQ(config.num_key_value_heads, 6);
  EXPECT_TRUE(has_parameter(config, "model.layers.0.self_attn.query_layernorm.weight", {8}));
  EXPECT_TRUE(has_parameter(config, "model.layers.0.self_attn.key_layernorm.weight", {8}));
  EXPECT_FALSE(has_parameter(config, "model.layers.0.self_attn.q_norm.weight", {8}));
  json scaling = {
      {"type", "dynamic"}, {"alpha", 1000.0}, {"factor", 1.0}, {"beta_fast", 32}, {"mscale", 1.0}};
  const auto stretched = [&] { return parse(with(hunyuan, {{"rope_scaling", scaling}})).rope; };
  EXPECT_EQ(stretched(), rope_settings(RopeType::kDefault, 500.0 * std::pow(1000.0, 8.0 / 6.0)));
  scaling["alpha"] = 0;
  EXPECT_TRUE(refuses(with(hunyuan, {{"rope_scaling", scaling}}), "rope_scaling.alpha is 0"));
  scaling = {{"type", "dynamic"}, {"factor", 2.0}};
  EXPECT_EQ(stretched().type, RopeType::kDynamic);
  scaling["alpha"] = 1000.0;
  EXPECT_TRUE(refuses(with(small_config("llama"), {{"rope_scaling", scaling}}), "rope_scaling.alpha"));
  EXPECT_TRUE(refuses(without(hunyuan, "head_dim"), "head_dim is missing"));
  EXPECT_TRUE(refuses(with(hunyuan, {{"use_qk_norm", false}}), "use_qk_norm is false"));
}

TEST(RecurrentFamilies, RefuseWhatTransformersDoesNotRead) {
  const auto config = [](const char* key, const json& value) {
    return with(small_config("qwen3_5_text"), {{key, value}});
  };
  EXPECT_TRUE(parse(config("linear_conv_kernel_dim", 4)).is_recurrent(0));
  EXPECT_TRUE(refuses(config("sliding_window", 4), "sliding_window"));
  EXPECT_TRUE(refuses(config("use_sliding_window", true), "use_sliding_window"));
  EXPECT_TRUE(refuses(config("attn_output_gate", false), "attn_output_gate"));
  EXPECT_TRUE(refuses(config("mamba_ssm_dtype", "bfloat16"), "mamba_ssm_dtype"));
  const auto experts = [](bool normalises) {
    return with(small_config("qwen3_5_moe_text"), {{"num_experts", 4},
                                                   {"num_experts_per_tok", 2},
                                                   {"moe_intermediate_size", 8},
                                                   {"shared_expert_intermediate_size", 8},
                                                   {"norm_topk_prob", normalises}});
  };
  EXPECT_TRUE(parse(experts(true)).mixture.norm_topk_prob);
  EXPECT_TRUE(refuses(experts(false), "norm_topk_prob"));
}

}  // namespace
}  // namespace streambp
