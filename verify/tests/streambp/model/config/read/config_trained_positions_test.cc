// Mistral Large 4 in config.json: its latent attention and indexers, experts, the names of its files, and
// refusals by name.
#include <cmath>
#include <set>

#include "streambp/model/files/safetensors.h"
#include "streambp/model/files/stored_names.h"
#include "verify/tests/streambp/model/config_testing.h"

namespace streambp {
namespace {

using nlohmann::json;

json mistral_large4() {
  return with(without(without(small_config("mistral_large4_text"), "head_dim"), "rope_theta"),
              {{"num_key_value_heads", 6},
               {"num_hidden_layers", 5},
               {"n_routed_experts", 8},
               {"num_experts_per_tok", 3},
               {"moe_intermediate_size", 12},
               {"kv_lora_rank", 14},
               {"qk_nope_head_dim", 6},
               {"qk_rope_head_dim", 4},
               {"v_head_dim", 7},
               {"index_topk", 5},
               {"index_n_heads", 2},
               {"index_head_dim", 8}});
}

TEST(MistralLarge4, IsReadFromTheGoldenModels) {
  const Config config = read_config(kModels / "mistral-large4" / "config.json");
  EXPECT_EQ(config.latent, (LatentAttentionSettings{0, 7, 5, 6, 4, 1e-5, true}));
  EXPECT_EQ(config.indexer,
            (IndexerSettings{6, 8, 10, true, {false, false, false, true}, false, 1e-6, true}));
  EXPECT_TRUE(config.rope_interleaved && !config.qkv_bias);
  EXPECT_EQ(config.no_rope, (std::vector<bool>{false, true, false, false}));
  EXPECT_EQ(config.rope.attention_factor, 1.0);
  EXPECT_EQ(config.final_logit_softcapping, 3.0);
  const double scale = 0.1 * 0.7 * std::log(4.0) + 1.0;
  EXPECT_DOUBLE_EQ(config.attention_scale, scale * scale / std::sqrt(11.0));
  const MixtureSettings& mixture = config.mixture;
  EXPECT_TRUE(!mixture.sigmoid_scores && !mixture.corrected && mixture.norm_topk_prob &&
              mixture.shared_expert_ungated && mixture.wide_logits && !mixture.has_router_loss());
  EXPECT_EQ(mixture.n_group, 4);
  EXPECT_EQ(mixture.topk_group, 2);
  EXPECT_EQ(mixture.routed_scaling_factor, 1.7);
  const Config dense = read_config(kModels / "mistral-large4-dense" / "config.json");
  EXPECT_EQ(dense.no_rope, (std::vector<bool>{false, true, false}));
  EXPECT_EQ(dense.mixture.sparse, (std::vector<bool>{false, true, false}));
  EXPECT_EQ(dense.final_logit_softcapping, 30.0);
  EXPECT_TRUE(dense.qkv_bias && dense.o_bias && dense.tie_word_embeddings);
}

TEST(MistralLarge4, HasItsClassesDefaults) {
  json config = mistral_large4();
  for (const char* key :
       {"qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "kv_lora_rank", "index_topk", "index_n_heads",
        "index_head_dim", "n_routed_experts", "num_experts_per_tok", "moe_intermediate_size"})
    config = without(config, key);
  const Config parsed = parse(config);
  EXPECT_EQ(parsed.latent, (LatentAttentionSettings{0, 512, 64, 64, 128, parsed.rms_norm_eps, true}));
  const std::vector<bool> none(5, false);
  EXPECT_EQ(parsed.indexer, (IndexerSettings{2048, 32, 128, true, none, false, 1e-6, true}));
  EXPECT_EQ(parsed.no_rope, (std::vector<bool>{false, false, false, true, false}));
  EXPECT_EQ(parsed.rope.type, RopeType::kYarn);
  EXPECT_EQ(parsed.rope.factor, 2048.0);
  EXPECT_EQ(parsed.rope.original_max_position_embeddings, 512);
  EXPECT_EQ(parsed.rope.attention_factor, 1.0);
  EXPECT_EQ(parsed.mixture.num_experts, 128);
  EXPECT_EQ(parsed.mixture.num_experts_per_tok, 4);
  EXPECT_EQ(parsed.mixture.moe_intermediate_size, 6144);
  EXPECT_EQ(parsed.mixture.sparse, (std::vector<bool>{false, true, true, true, true}));
  // The text part of a whole model.
  EXPECT_EQ(parse({{"model_type", "mistral_large4"}, {"tie_word_embeddings", true}, {"text_config", config}}),
            parsed);
}

TEST(MistralLarge4, HasTheParametersOfTransformers) {
  const Config config = parse(with(mistral_large4(), {{"no_rope_layers", {1, 0, 1, 1, 1}}}));
  const std::string first = "model.layers.0.self_attn.", still = "model.layers.1.self_attn.";
  EXPECT_TRUE(has_parameter(config, first + "q_proj.weight", {60, 48}));
  EXPECT_TRUE(has_parameter(config, first + "kv_a_proj_with_mqa.weight", {18, 48}));
  EXPECT_TRUE(has_parameter(config, first + "kv_b_proj.weight", {6 * (6 + 7), 14}));
  EXPECT_TRUE(has_parameter(config, still + "kv_a_proj_with_mqa.weight", {14, 48}));
  EXPECT_TRUE(has_parameter(config, still + "kv_b_proj.weight", {6 * (10 + 7), 14}));
  EXPECT_TRUE(has_parameter(config, first + "softmax_scaling.scale", {6}));
  EXPECT_TRUE(has_parameter(config, first + "softmax_scaling.bias", {6}));
  EXPECT_TRUE(has_parameter(config, first + "indexer.wq_b.weight", {16, 48}));
  EXPECT_TRUE(has_parameter(config, first + "indexer.q_input_norm.bias", {48}));
  EXPECT_TRUE(has_parameter(config, first + "indexer.softmax_scaling.scale", {2}));
  EXPECT_TRUE(has_parameter(config, "model.rotary_emb.alpha", {2}));
  EXPECT_FALSE(has_parameter(config, "model.layers.1.mlp.gate.e_score_correction_bias", {8}));
  EXPECT_TRUE(is_always_wide("model.rotary_emb.alpha") && !is_never_trained("model.rotary_emb.alpha"));
  EXPECT_TRUE(is_never_trained(first + "indexer.softmax_scaling.bias"));
  EXPECT_EQ(config.carry_width(0), 18);
  EXPECT_EQ(config.carry_width(1), 14);
  EXPECT_TRUE(config.layers_share_parameters() && !config.layers_read_embedding());
}

TEST(MistralLarge4, ReadsLatentsOfLayersBelow) {
  const json sharing = with(mistral_large4(), {{"kv_source_layers", {0, 0, 2, 3, 2}}});
  const Config config = parse(sharing);
  EXPECT_EQ(config.latent.sources, (std::vector<int64_t>{0, 0, 2, 3, 2}));
  EXPECT_EQ(config.producer_of(4), 2);
  EXPECT_EQ(config.producer_of(3), 3);
  EXPECT_TRUE(config.has_consumers(0) && config.has_consumers(2) && !config.has_consumers(3));
  EXPECT_TRUE(config.shares_keys_values(1) && !config.shares_keys_values(2));
  EXPECT_FALSE(has_parameter(config, "model.layers.4.self_attn.kv_a_proj_with_mqa.weight", {18, 48}));
  EXPECT_FALSE(has_parameter(config, "model.layers.4.self_attn.kv_a_layernorm.weight", {14}));
  EXPECT_TRUE(has_parameter(config, "model.layers.4.self_attn.kv_b_proj.weight", {6 * (6 + 7), 14}));
  EXPECT_EQ(read_config(kModels / "mistral-large4-shared" / "config.json").latent.sources,
            (std::vector<int64_t>{0, 1, 0, 1, 0}));
}

TEST(MistralLarge4, NamesInFilesAreThosePublished) {
  const Config config = parse(mistral_large4());
  for (const auto& [stored, ours] :
       {std::pair("tok_embeddings.weight", "model.embed_tokens.weight"),
        std::pair("lerope.alpha", "model.rotary_emb.alpha"), std::pair("norm.weight", "model.norm.weight"),
        std::pair("output.weight", "lm_head.weight"),
        std::pair("layers.0.attention.wq.weight", "model.layers.0.self_attn.q_proj.weight"),
        std::pair("layers.0.attention.wo.weight", "model.layers.0.self_attn.o_proj.weight"),
        std::pair("layers.2.attention.indexer.ssmax_scaling.b",
                  "model.layers.2.self_attn.indexer.softmax_scaling.bias"),
        std::pair("layers.0.feed_forward.w1.weight", "model.layers.0.mlp.gate_proj.weight"),
        std::pair("layers.1.gate.weight", "model.layers.1.mlp.gate.weight"),
        std::pair("layers.1.experts.3.w2.weight", "model.layers.1.mlp.experts.3.down_proj.weight"),
        std::pair("layers.1.shared_experts.w3.weight", "model.layers.1.mlp.shared_experts.up_proj.weight")}) {
    EXPECT_EQ(parameter_name(config, stored), ours);
    EXPECT_EQ(parameter_name(config, ours), ours);
  }
}

// As transformers writes a text model alone, and reads it.
TEST(MistralLarge4, IsWrittenUnderTheNamesOfATextModelAlone) {
  const Config config = parse(mistral_large4());
  for (const auto& [stored, ours] :
       {std::pair("model.embed_tokens.weight", "model.embed_tokens.weight"),
        std::pair("model.rotary_emb.alpha", "model.rotary_emb.alpha"),
        std::pair("lm_head.weight", "lm_head.weight"),
        std::pair("model.layers.0.attention.wq.weight", "model.layers.0.self_attn.q_proj.weight"),
        std::pair("model.layers.0.attention.o_proj.weight", "model.layers.0.self_attn.o_proj.weight"),
        std::pair("model.layers.2.attention.wkv_a_with_mqa.weight",
                  "model.layers.2.self_attn.kv_a_proj_with_mqa.weight"),
        std::pair("model.layers.2.attention.kv_a_norm.weight",
                  "model.layers.2.self_attn.kv_a_layernorm.weight"),
        std::pair("model.layers.2.attention.ssmax_scaling.s",
                  "model.layers.2.self_attn.softmax_scaling.scale"),
        std::pair("model.layers.2.attention.indexer.wq_b.weight",
                  "model.layers.2.self_attn.indexer.wq_b.weight"),
        std::pair("model.layers.0.attention_norm.weight", "model.layers.0.input_layernorm.weight"),
        std::pair("model.layers.0.ffn_norm.weight", "model.layers.0.post_attention_layernorm.weight"),
        std::pair("model.layers.0.feed_forward.gate_proj.weight", "model.layers.0.mlp.gate_proj.weight"),
        std::pair("model.layers.1.gate.weight", "model.layers.1.mlp.gate.weight"),
        std::pair("model.layers.1.experts.3.w2.weight", "model.layers.1.mlp.experts.3.down_proj.weight"),
        std::pair("model.layers.1.shared_experts.gate_proj.weight",
                  "model.layers.1.mlp.shared_experts.gate_proj.weight")}) {
    EXPECT_EQ(parameter_name(config, stored), ours);
    EXPECT_EQ(stored_name(config, ours), stored);
  }
  // All names that transformers has written of the golden model, and no others.
  const SafetensorsFile file = SafetensorsFile::open(kModels / "mistral-large4" / "model.safetensors");
  const Config golden = read_config(kModels / "mistral-large4" / "config.json");
  std::set<std::string> written, ours;
  for (const auto& [name, entry] : file.entries()) written.insert(name);
  for (const ParameterShape& shape : parameter_shapes(golden)) ours.insert(stored_name(golden, shape.name));
  EXPECT_EQ(ours, written);
}

TEST(MistralLarge4, IsRefusedByNameWhereItCanNotBe) {
  const json good = mistral_large4();
  EXPECT_TRUE(parse(with(good, {{"kv_source_layers", {0, 1, 2, 3, 4}}})).is_latent());
  // The third layer's rotation is another's, a source that reads another's, and one that is not the last of
  // its kind that others read.
  for (const json& sources : {json{0, 1, 2, 0, 4}, json{0, 0, 1, 3, 4}, json{0, 1, 2}, json{0, 1, 1, 3, 0},
                              json{0, 2, 2, 3, 4}, json{0, -1, 2, 3, 4}})
    EXPECT_TRUE(refuses(with(good, {{"kv_source_layers", sources}}), "kv_source_layers"));
  EXPECT_TRUE(refuses(with(good, {{"q_lora_rank", 10}}), "q_lora_rank is 10"));
  EXPECT_TRUE(refuses(with(good, {{"norm_topk_prob", false}}), "norm_topk_prob"));
  EXPECT_TRUE(refuses(with(good, {{"scoring_func", "sigmoid"}}), "scoring_func"));
  EXPECT_TRUE(refuses(with(good, {{"router_aux_loss_coef", 0.1}}), "router_aux_loss_coef"));
  EXPECT_EQ(parse(with(good, {{"output_router_logits", true}})), parse(good));
  EXPECT_TRUE(refuses(with(good, {{"num_key_value_heads", 2}}), "num_key_value_heads"));
  EXPECT_TRUE(refuses(with(good, {{"index_head_dim", 2}}), "index_head_dim"));
  EXPECT_TRUE(refuses(with(good, {{"no_rope_layers", {1, 1}}}), "no_rope_layers"));
}

}  // namespace
}  // namespace streambp
