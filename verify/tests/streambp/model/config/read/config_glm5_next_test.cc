// GLM-5.3 in config.json: which layers recur, pick and share picks, its bound of decays, its streams, the
// names of its files, and refusals by name.
#include "streambp/model/files/stored_names.h"
#include "verify/tests/streambp/model/config_testing.h"

namespace streambp {
namespace {

using nlohmann::json;

json glm5_next() {
  return with(without(without(small_config("glm5_next_text"), "head_dim"), "rope_theta"),
              {{"num_key_value_heads", 6},
               {"num_hidden_layers", 5},
               {"n_routed_experts", 8},
               {"num_experts_per_tok", 3},
               {"moe_intermediate_size", 12},
               {"q_lora_rank", 10},
               {"kv_lora_rank", 14},
               {"qk_nope_head_dim", 6},
               {"v_head_dim", 7},
               {"index_kpool", 3},
               {"index_topk", 12},
               {"index_n_heads", 2},
               {"index_head_dim", 8},
               {"linear_num_heads", 4},
               {"linear_head_dim", 5}});
}

TEST(Glm5Next, IsReadFromTheGoldenModels) {
  const Config config = read_config(kModels / "glm5-next" / "config.json");
  EXPECT_EQ(config.linear_attention, (std::vector<bool>{true, false, false, true}));
  EXPECT_EQ(config.latent, (LatentAttentionSettings{9, 7, 5, 0, 6, 1e-5}));
  const IndexerSettings indexer{
      .topk = 2, .heads = 8, .head_dim = 10, .shared = {false, false, true, false}, .group = 3};
  EXPECT_EQ(config.indexer, indexer);
  EXPECT_EQ(config.pick_kind().rate, 3);
  EXPECT_TRUE(config.has_indexer(1) && !config.has_indexer(2) && !config.has_indexer(0));
  EXPECT_EQ(config.picker_of(2), 1);
  EXPECT_EQ(config.delta_rule.decay_bound, -5.0);
  EXPECT_EQ(config.delta_rule.conv_kernel, 4);
  EXPECT_EQ(config.hyper, (HyperSettings{3, 2.0, 1e-3, 4, true}));
  EXPECT_TRUE(config.has_streams() && !config.has_head_gates());
  EXPECT_TRUE(config.limits_all_mlps && config.swiglu_limit == 0.9);
  EXPECT_EQ(config.mixture.sparse, (std::vector<bool>{false, true, true, false}));
  EXPECT_TRUE(config.mixture.sigmoid_scores && config.mixture.corrected && !config.mixture.is_stacked());
  EXPECT_EQ(config.rotary_dim, 0);
  const Config listed = read_config(kModels / "glm5-next-listed" / "config.json");
  EXPECT_EQ(listed.linear_attention, (std::vector<bool>{false, true}));
  EXPECT_EQ(listed.delta_rule.decay_bound, 0.0);
  EXPECT_EQ(listed.delta_rule.key_heads, 3);
  EXPECT_EQ(listed.delta_rule.key_head_dim, 5);
  EXPECT_EQ(listed.delta_rule.conv_kernel, 3);
  EXPECT_TRUE(listed.qkv_bias && listed.o_bias && listed.tie_word_embeddings &&
              !listed.mixture.norm_topk_prob);
  EXPECT_EQ(read_config(kModels / "glm5-next-alone" / "config.json").pick_kind().rate, 1);
}

TEST(Glm5Next, HasItsClassesDefaults) {
  json config = glm5_next();
  for (const char* key :
       {"qk_nope_head_dim", "v_head_dim", "kv_lora_rank", "q_lora_rank", "index_kpool", "index_topk",
        "index_n_heads", "index_head_dim", "n_routed_experts", "num_experts_per_tok", "moe_intermediate_size",
        "linear_num_heads", "linear_head_dim"})
    config = without(config, key);
  const Config parsed = parse(config);
  EXPECT_EQ(parsed.latent, (LatentAttentionSettings{1536, 512, 256, 0, 256, parsed.rms_norm_eps}));
  EXPECT_EQ(parsed.indexer.topk, 128);
  EXPECT_EQ(parsed.indexer.group, 16);
  EXPECT_EQ(parsed.indexer.heads, 32);
  EXPECT_EQ(parsed.linear_attention, (std::vector<bool>{true, true, true, false, true}));
  EXPECT_EQ(parsed.delta_rule.key_heads, 64);
  EXPECT_EQ(parsed.delta_rule.key_head_dim, 128);
  EXPECT_EQ(parsed.hyper, (HyperSettings{4, 2.0, 1e-6, 20, true}));
  EXPECT_EQ(parsed.mixture.num_experts, 288);
  EXPECT_EQ(parsed.mixture.num_experts_per_tok, 8);
  EXPECT_EQ(parsed.mixture.routed_scaling_factor, 2.5);
  EXPECT_EQ(parsed.mixture.router_aux_loss_coef, 0.001);
  EXPECT_TRUE(parsed.mixture.has_router_loss());
  EXPECT_EQ(parsed.mixture.sparse, (std::vector<bool>{false, false, false, true, true}));
  // The text part of a whole model, and a file that has its text's settings outside.
  EXPECT_EQ(parse({{"model_type", "glm5_next"}, {"tie_word_embeddings", true}, {"text_config", config}}),
            parsed);
  EXPECT_EQ(parse(with(config, {{"model_type", "glm5_next"}})), parsed);
}

TEST(Glm5Next, ReadsTheObjectOfItsRule) {
  const auto bound = [](const json& changes) {
    return parse(with(glm5_next(), changes)).delta_rule.decay_bound;
  };
  EXPECT_EQ(bound({{"linear_lower_bound", -3.0}}), -3.0);
  EXPECT_EQ(bound({{"linear_lower_bound", nullptr}}), 0.0);
  EXPECT_EQ(bound({{"linear_attn_config", {{"gate_lower_bound", -2.0}}}}), -2.0);
  EXPECT_EQ(bound({{"linear_attn_config", {{"gate_lower_bound", nullptr}}}}), -5.0);
  EXPECT_EQ(bound({{"linear_attn_config", {{"gate_lower_bound", nullptr}, {"safe_gate", false}}}}), 0.0);
  EXPECT_EQ(bound({{"linear_lower_bound", nullptr}, {"linear_attn_config", {{"safe_gate", nullptr}}}}), 0.0);
  EXPECT_TRUE(refuses(
      with(glm5_next(), {{"linear_lower_bound", -1.0}, {"linear_attn_config", {{"gate_lower_bound", -2.0}}}}),
      "linear_lower_bound"));
  EXPECT_TRUE(refuses(with(glm5_next(), {{"linear_lower_bound", 1.0}}), "a number below 0, or null"));
  EXPECT_TRUE(refuses(with(glm5_next(), {{"linear_attn_config", {{"num_heads", 3}}}}), "linear_num_heads"));
}

TEST(Glm5Next, HasTheParametersOfTransformers) {
  const Config config = parse(glm5_next());
  const std::string picks = "model.layers.3.self_attn.", recurs = "model.layers.1.self_attn.";
  EXPECT_TRUE(has_parameter(config, picks + "kv_a_proj_with_mqa.weight", {14, 48}));
  EXPECT_TRUE(has_parameter(config, picks + "q_b_proj.weight", {36, 10}));
  EXPECT_TRUE(has_parameter(config, picks + "indexer.index_kpool_compress_ape", {3, 8}));
  EXPECT_TRUE(has_parameter(config, picks + "indexer.index_kpool_compress_gate", {8, 48}));
  EXPECT_TRUE(is_never_trained(picks + "indexer.index_kpool_compress_ape"));
  EXPECT_TRUE(has_parameter(config, recurs + "forget_gate.A_log", {4}));
  EXPECT_TRUE(has_parameter(config, recurs + "forget_gate.dt_bias", {20}));
  EXPECT_TRUE(has_parameter(config, recurs + "k_conv1d.weight", {20, 1, 4}));
  EXPECT_TRUE(has_parameter(config, "model.layers.0.attn_hc.fn", {24, 4 * 48}));
  EXPECT_FALSE(has_parameter(config, "model.hc_head.hc_fn", {4, 4 * 48}));
  EXPECT_EQ(config.carry_width(3), 14);
}

TEST(Glm5Next, NamesInFilesAreThosePublished) {
  const Config config = parse(glm5_next());
  for (const auto& [stored, ours] :
       {std::pair("model.layers.1.self_attn.f_a_proj.weight",
                  "model.layers.1.self_attn.forget_gate.f_a_proj.weight"),
        std::pair("model.layers.1.self_attn.A_log", "model.layers.1.self_attn.forget_gate.A_log"),
        std::pair("model.layers.1.self_attn.dt_bias", "model.layers.1.self_attn.forget_gate.dt_bias"),
        std::pair("model.layers.1.self_attn.q_conv1d.weight", "model.layers.1.self_attn.q_conv1d.weight"),
        std::pair("model.layers.3.hc_attn_fn", "model.layers.3.attn_hc.fn"),
        std::pair("model.layers.3.hc_ffn_scale", "model.layers.3.ffn_hc.scale"),
        std::pair("model.layers.3.mlp.experts.2.gate_proj.weight",
                  "model.layers.3.mlp.experts.2.gate_proj.weight")}) {
    EXPECT_EQ(parameter_name(config, stored), ours);
    EXPECT_EQ(stored_name(config, ours), stored);
    EXPECT_EQ(parameter_name(config, ours), ours);
  }
}

TEST(Glm5Next, IsRefusedByNameWhereItCanNotBe) {
  const json good = with(glm5_next(), {{"layer_types",
                                        {"indexed_attention", "indexed_attention", "linear_attention",
                                         "full_attention", "indexed_attention"}}});
  const auto types = [&](const json& list) { return with(good, {{"indexer_types", list}}); };
  EXPECT_EQ(parse(types({"full", "shared", "shared", "full", "shared"})).indexer.shared,
            (std::vector<bool>{false, true, false, false, true}));
  // transformers hands picks on to the next layer alone.
  EXPECT_TRUE(
      refuses(types({"full", "full", "full", "shared", "full"}), "indexer_types", "full for layer 3"));
  EXPECT_TRUE(
      refuses(types({"shared", "full", "full", "full", "full"}), "indexer_types", "full for layer 0"));
  EXPECT_TRUE(
      refuses(with(good, {{"index_topk_freq", 2}, {"index_skip_topk_offset", 0}}), "full for layer 0"));
  EXPECT_TRUE(refuses(with(good, {{"index_topk", 13}}), "index_topk", "a multiple of index_kpool (3)"));
  EXPECT_TRUE(
      refuses(with(good, {{"index_kpool_always_select_tail", false}}), "index_kpool_always_select_tail"));
  EXPECT_TRUE(
      parse(with(good, {{"index_kpool", 1}, {"index_kpool_always_select_tail", false}})).has_indexers());
  EXPECT_TRUE(refuses(with(good, {{"q_lora_rank", nullptr}}), "q_lora_rank"));
  EXPECT_TRUE(refuses(with(good, {{"qk_rope_head_dim", 4}}), "qk_rope_head_dim"));
  EXPECT_TRUE(refuses(with(good, {{"num_key_value_heads", 2}}), "num_key_value_heads"));
  EXPECT_TRUE(parse(with(good, {{"output_router_logits", true}})).mixture.output_router_logits);
  EXPECT_TRUE(
      refuses(with(good, {{"rope_scaling", {{"rope_type", "yarn"}, {"factor", 2.0}}}}), "rope_scaling"));
  EXPECT_TRUE(refuses(with(good, {{"hc_magnitude", 1.5}}), "hc_magnitude"));
  EXPECT_TRUE(refuses(with(good, {{"swiglu_alpha", 1.5}}), "swiglu_alpha"));
  json words = good;
  words["layer_types"][0] = "sliding_attention";
  EXPECT_TRUE(refuses(words, "layer_types", "indexed_attention or linear_attention"));
}

}  // namespace
}  // namespace streambp
