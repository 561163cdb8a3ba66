// DeepSeek V4 in config.json: as transformers writes it, in the words of DeepSeek's own reader, and what is
// refused; names of parameters and of tensors in files.
#include "streambp/model/files/stored_names.h"
#include "verify/tests/streambp/model/config_testing.h"

namespace streambp {
namespace {

using nlohmann::json;

json deepseek_v4() {
  return with(without(small_config("deepseek_v4"), "intermediate_size"), {{"num_hidden_layers", 4},
                                                                          {"num_key_value_heads", 1},
                                                                          {"head_dim", 16},
                                                                          {"num_attention_heads", 8},
                                                                          {"moe_intermediate_size", 12},
                                                                          {"n_routed_experts", 8},
                                                                          {"num_experts_per_tok", 2},
                                                                          {"q_lora_rank", 9},
                                                                          {"o_groups", 2},
                                                                          {"o_lora_rank", 5}});
}

TEST(DeepseekV4, HasItsClassesDefaults) {
  const Config config = parse(deepseek_v4());
  EXPECT_EQ(config.compressed.rates, (std::vector<int64_t>{128, 128, 128, 4}));
  EXPECT_EQ(config.compressed.overlaps, (std::vector<bool>{false, false, false, true}));
  EXPECT_EQ(config.mixture.hashed, (std::vector<bool>{true, true, true, false}));
  EXPECT_EQ(config.windows, (std::vector<int64_t>{0, 0, 0, 0}));
  EXPECT_EQ(config.compressed.window, 128);
  EXPECT_EQ(config.rotary_dim, 2);
  EXPECT_EQ(config.rope.theta, 160000.0);
  EXPECT_EQ(config.local_rope->theta, 500.0);  // the file's rope_theta
  EXPECT_EQ(config.hyper.streams, 4);
  EXPECT_EQ(config.hyper.sinkhorn_iters, 20);
  EXPECT_EQ(config.indexer.topk, 512);
  EXPECT_TRUE(config.has_indexer(3) && !config.has_indexer(0));
  EXPECT_EQ(config.pick_kind().rate, 4);
  EXPECT_EQ(config.carry_width(0), 3 * 16);
  EXPECT_EQ(config.carry_width(3), 5 * 16);
  EXPECT_EQ(config.mixture.router_aux_loss_coef, 0.001);
  EXPECT_TRUE(config.mixture.has_router_loss() && !config.mixture.output_router_logits);
  EXPECT_TRUE(parse(with(deepseek_v4(), {{"output_router_logits", true}})).mixture.output_router_logits);
}

TEST(DeepseekV4, ReadsTheWordsOfItsOwnReader) {
  const json words = with(deepseek_v4(), {{"compress_ratios", {0, 128, 4, 0, 0}},
                                          {"compress_rate_csa", 2},
                                          {"compress_rate_hca", 6},
                                          {"num_hash_layers", 1},
                                          {"qk_rope_head_dim", 4},
                                          {"rope_theta", 500.0},
                                          {"compress_rope_theta", 700.0}});
  const json same = with(
      deepseek_v4(),
      {{"layer_types",
        {"sliding_attention", "heavily_compressed_attention", "compressed_sparse_attention",
         "sliding_attention"}},
       {"compress_rates", {{"compressed_sparse_attention", 2}, {"heavily_compressed_attention", 6}}},
       {"mlp_layer_types", {"hash_moe", "moe", "moe", "moe"}},
       {"partial_rotary_factor", 0.25},
       {"rope_parameters",
        {{"main", {{"rope_type", "default"}, {"rope_theta", 500.0}, {"partial_rotary_factor", 0.25}}},
         {"compress", {{"rope_type", "default"}, {"rope_theta", 700.0}, {"partial_rotary_factor", 0.25}}}}}});
  EXPECT_EQ(parse(words), parse(same));
  EXPECT_EQ(parse(words).windows, (std::vector<int64_t>{128, 0, 0, 128}));
  const Config scaled = parse(with(words, {{"rope_scaling",
                                            {{"type", "yarn"},
                                             {"factor", 16.0},
                                             {"original_max_position_embeddings", 65536},
                                             {"beta_fast", 32.0},
                                             {"beta_slow", 1.0}}}}));
  EXPECT_EQ(scaled.rope.type, RopeType::kYarn);
  EXPECT_EQ(scaled.rope.attention_factor, 1.0);  // whatever the factor, as the class has it
  EXPECT_EQ(scaled.local_rope->type, RopeType::kDefault);
}

TEST(DeepseekV4, HasTheParametersOfTransformers) {
  const Config config = parse(deepseek_v4());
  const std::string sparse = "model.layers.3.", heavy = "model.layers.0.";
  EXPECT_TRUE(has_parameter(config, sparse + "self_attn.o_a_proj.weight", {10, 64}));
  EXPECT_TRUE(has_parameter(config, sparse + "self_attn.compressor.position_bias", {4, 32}));
  EXPECT_TRUE(has_parameter(config, sparse + "self_attn.compressor.indexer.position_bias", {4, 256}));
  EXPECT_TRUE(has_parameter(config, heavy + "self_attn.compressor.position_bias", {128, 16}));
  EXPECT_TRUE(has_parameter(config, heavy + "mlp.gate.tid2eid", {config.vocab_size, 2}));
  EXPECT_TRUE(has_parameter(config, sparse + "mlp.gate.e_score_correction_bias", {8}));
  EXPECT_TRUE(has_parameter(config, heavy + "attn_hc.fn", {24, 4 * config.hidden_size}));
  EXPECT_TRUE(has_parameter(config, heavy + "ffn_hc.scale", {3}));
  EXPECT_TRUE(is_always_wide(heavy + "mlp.gate.tid2eid") && is_never_trained(heavy + "mlp.gate.tid2eid"));
}

TEST(DeepseekV4, NamesInFilesAreThoseOfItsOwnReader) {
  const Config config = parse(deepseek_v4());
  for (const auto& [stored, ours] :
       {std::pair("model.layers.0.attn.wq_a.weight", "model.layers.0.self_attn.q_a_proj.weight"),
        std::pair("model.layers.0.attn.norm.weight", "model.layers.0.self_attn.kv_norm.weight"),
        std::pair("model.layers.0.attn.q_norm.weight", "model.layers.0.self_attn.q_a_norm.weight"),
        std::pair("model.layers.0.attn.attn_sink", "model.layers.0.self_attn.sinks"),
        std::pair("model.layers.3.attn.compressor.ape", "model.layers.3.self_attn.compressor.position_bias"),
        std::pair("model.layers.3.attn.indexer.compressor.norm.weight",
                  "model.layers.3.self_attn.compressor.indexer.kv_norm.weight"),
        std::pair("model.layers.3.attn.indexer.wq_b.weight",
                  "model.layers.3.self_attn.compressor.indexer.q_b_proj.weight"),
        std::pair("model.layers.3.attn.indexer.weights_proj.weight",
                  "model.layers.3.self_attn.compressor.indexer.scorer.weights_proj.weight"),
        std::pair("model.layers.3.ffn.gate.bias", "model.layers.3.mlp.gate.e_score_correction_bias"),
        std::pair("model.layers.3.ffn.experts.1.w2.weight", "model.layers.3.mlp.experts.1.down_proj.weight"),
        std::pair("model.layers.3.ffn.shared_experts.w1.weight",
                  "model.layers.3.mlp.shared_experts.gate_proj.weight"),
        std::pair("model.layers.3.hc_ffn_base", "model.layers.3.ffn_hc.base"),
        std::pair("model.layers.3.ffn_norm.weight", "model.layers.3.post_attention_layernorm.weight"),
        std::pair("head.weight", "lm_head.weight"), std::pair("model.norm.weight", "model.norm.weight")}) {
    EXPECT_EQ(parameter_name(config, stored), ours);
    EXPECT_EQ(stored_name(config, ours), stored);
    EXPECT_EQ(parameter_name(config, ours), ours);
  }
  EXPECT_EQ(parameter_name(config, "layers.0.attn.wkv.weight"), "model.layers.0.self_attn.kv_proj.weight");
  EXPECT_EQ(parameter_name(config, "embed.weight"), "model.embed_tokens.weight");
  EXPECT_EQ(parameter_name(config, "hc_head_fn"), "model.hc_head.hc_fn");
}

TEST(DeepseekV4, IsRefusedByNameWhereItCanNotBe) {
  const json good = deepseek_v4();
  EXPECT_TRUE(refuses(with(good, {{"scoring_func", "sigmoid"}}), "scoring_func"));
  EXPECT_TRUE(refuses(with(good, {{"norm_topk_prob", false}}), "norm_topk_prob"));
  EXPECT_TRUE(refuses(with(good, {{"n_shared_experts", 2}}), "n_shared_experts"));
  EXPECT_TRUE(refuses(with(good, {{"o_groups", 3}}), "o_groups"));
  EXPECT_TRUE(refuses(with(good, {{"num_key_value_heads", 2}}), "num_key_value_heads"));
  EXPECT_TRUE(refuses(with(good, {{"attention_bias", true}}), "attention_bias"));
  EXPECT_TRUE(refuses(with(good, {{"layer_types", {"full_attention"}}}), "layer_types"));
  EXPECT_TRUE(refuses(with(good, {{"mlp_layer_types", {"dense"}}}), "mlp_layer_types"));
  EXPECT_TRUE(refuses(with(good, {{"compress_ratios", {3, 3, 3, 3}}}), "compress_ratios"));
  EXPECT_TRUE(refuses(with(good, {{"index_head_dim", 1}}), "index_head_dim"));
}

}  // namespace
}  // namespace streambp
