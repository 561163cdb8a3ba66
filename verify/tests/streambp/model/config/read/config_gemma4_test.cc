// Gemma 4 in config.json: defaults, the spellings of its heads, and refusals by name.
#include <cmath>

#include "verify/tests/streambp/model/config_testing.h"

namespace streambp {
namespace {

using nlohmann::json;

/// Three layers, the last of which sees all tokens.
json gemma4() {
  const json settings = {{"hidden_size_per_layer_input", 0}, {"global_head_dim", 12}, {"sliding_window", 5}};
  return with(without(small_config("gemma4_text"), "rope_theta"), settings);
}

json with_layers(int64_t layers, const std::vector<int64_t>& without_window) {
  std::vector<std::string> types(static_cast<size_t>(layers), "sliding_attention");
  for (const int64_t layer : without_window) types[static_cast<size_t>(layer)] = "full_attention";
  return with(gemma4(), {{"num_hidden_layers", layers}, {"layer_types", types}});
}

/// The same in transformers 5's own spelling, with `value` for per_layer_config.
json with_per_layer_config(const json& config, const json& value) {
  return with(without(config, "global_head_dim"), {{"per_layer_config", value}});
}

json rope(const std::string& type, double theta, const json& more = json::object()) {
  return with({{"rope_type", type}, {"rope_theta", theta}}, more);
}

TEST(Gemma4, TakesTheDefaultsOfItsClass) {
  const Config config = parse({{"model_type", "gemma4_text"},
                               {"vocab_size", 101},
                               {"hidden_size", 48},
                               {"intermediate_size", 44},
                               {"num_hidden_layers", 7},
                               {"num_attention_heads", 6},
                               {"num_key_value_heads", 2}});
  EXPECT_EQ(config.windows, (std::vector<int64_t>{512, 512, 512, 512, 512, 0, 0}));
  EXPECT_EQ(config.head_dim, 256);
  Gemma4Settings expected;
  expected.global_head_dim = 512;
  expected.num_global_key_value_heads = 2;
  expected.hidden_size_per_layer_input = 256;
  expected.vocab_size_per_layer_input = 262144;
  EXPECT_EQ(config.gemma4, expected);
  EXPECT_EQ(config.attention_scale, 1.0);
  EXPECT_EQ(config.embedding_scale, std::sqrt(48.0));
  EXPECT_TRUE(config.tie_word_embeddings && config.qk_norm && config.norms_values && config.layer_scalar &&
              config.sandwich_norms);
  EXPECT_FALSE(config.norm_adds_one || config.qkv_bias);
  EXPECT_EQ(config.pad_token_id, 0);
  EXPECT_EQ(config.final_logit_softcapping, 0.0);
  EXPECT_EQ(config.hidden_act, Activation::kGeluTanh);
  EXPECT_EQ(config.mixture.num_experts, 0);
  EXPECT_EQ(config.rope.type, RopeType::kProportional);
  EXPECT_EQ(config.rope.theta, 1e6);
  EXPECT_EQ(config.rope.proportion, 0.25);
  EXPECT_EQ(config.local_rope, rope_settings(RopeType::kDefault, 1e4));
}

TEST(Gemma4, TheLastLayerSeesAllTokensWhateverTheFileSays) {
  const json all_local = with_layers(3, {});
  EXPECT_EQ(parse(all_local).windows, (std::vector<int64_t>{5, 5, 0}));
  EXPECT_EQ(parse(gemma4()).windows, (std::vector<int64_t>{5, 5, 0}));
  EXPECT_EQ(parse(with_layers(3, {0})).windows, (std::vector<int64_t>{0, 5, 0}));
  // Of a single layer there is then no window, which is what the switch says here.
  const json one = with(with_layers(1, {}), {{"use_sliding_window", false}});
  EXPECT_EQ(parse(one).windows, std::vector<int64_t>{0});
  EXPECT_TRUE(
      refuses(with(gemma4(), {{"use_sliding_window", false}}), "use_sliding_window is false", "true"));
  EXPECT_TRUE(refuses(with(gemma4(), {{"sliding_window_pattern", 3}}), "sliding_window_pattern is 3", "6"));
  EXPECT_TRUE(refuses(with(gemma4(), {{"layer_types", {"full_attention"}}}), "layer_types", "3 layers"));
}

TEST(Gemma4, PerLayerConfigSaysWhatTheGlobalKeysSay) {
  const json values = {{"attention_k_eq_v", true}, {"num_global_key_value_heads", 1}};
  const Config published = parse(with(gemma4(), values));
  EXPECT_EQ(published.head_dim_of(2), 12);
  EXPECT_EQ(published.key_value_heads_of(2), 1);
  EXPECT_EQ(published.head_dim_of(1), 8);
  const json saved = with_per_layer_config(with(gemma4(), {{"attention_k_eq_v", true}}),
                                           {{"2", {{"head_dim", 12}, {"num_key_value_heads", 1}}}});
  EXPECT_EQ(parse(saved), published);
  EXPECT_EQ(parse(with(saved, {{"global_head_dim", 12}, {"num_global_key_value_heads", 1}})), published);
  EXPECT_TRUE(refuses(with(saved, {{"global_head_dim", 16}}), "global_head_dim is 16", "12"));
  EXPECT_TRUE(
      refuses(with(saved, {{"num_global_key_value_heads", 2}}), "num_global_key_value_heads is 2", "1"));
  // Of keys that are no values transformers reads the number from per_layer_config alone.
  EXPECT_EQ(parse(with(gemma4(), {{"num_global_key_value_heads", 1}})).key_value_heads_of(2), 2);
  EXPECT_EQ(parse(with(saved, {{"attention_k_eq_v", false}})).key_value_heads_of(2), 1);
}

TEST(Gemma4, AnEmptyPerLayerConfigLeavesTheSizesOfTheModel) {
  for (const json& value : {json(nullptr), json::object()}) {
    const Config config = parse(with_per_layer_config(gemma4(), value));
    EXPECT_EQ(config.gemma4.global_head_dim, 8);
    EXPECT_EQ(config.rotary_dim, 8);
    EXPECT_EQ(config.gemma4.num_global_key_value_heads, 2);
    EXPECT_TRUE(has_parameter(config, "model.layers.2.self_attn.q_proj.weight", {48, 48}));
  }
}

TEST(Gemma4, ReadsPerLayerConfigWithPaddedNumbers) {
  const json heads = {{"head_dim", 12}}, config = with_layers(12, {5, 11});
  const Config expected = parse(config);
  EXPECT_EQ(expected.head_dim_of(5), 12);
  EXPECT_EQ(parse(with_per_layer_config(config, {{"05", heads}, {"11", heads}})), expected);
  EXPECT_EQ(parse(with_per_layer_config(config, {{"5", heads}, {"11", heads}})), expected);
  EXPECT_TRUE(refuses(with_per_layer_config(config, {{"05", heads}, {"5", heads}, {"11", heads}}),
                      "per_layer_config.5", "one key for the layer, not 05 too"));
  EXPECT_TRUE(refuses(with_per_layer_config(config, {{"11", heads}}), "per_layer_config.11",
                      "the same sizes in all layers without a window"));
}

TEST(Gemma4, RefusesAPerLayerConfigOfOtherThings) {
  const auto config = [](const json& value) { return with_per_layer_config(gemma4(), value); };
  EXPECT_TRUE(refuses(config({{"0", {{"head_dim", 12}}}}), "per_layer_config.0", "layers with a window"));
  EXPECT_TRUE(refuses(config({{"3", {{"head_dim", 12}}}}), "per_layer_config.3", "0 to 2"));
  for (const char* key : {"", "x", "-1", "1.0", "000001"})
    EXPECT_TRUE(refuses(config({{key, {{"head_dim", 12}}}}), "numbers of layers, 0 to 2")) << key;
  EXPECT_TRUE(refuses(config({{"last", {{"head_dim", 12}}}}), "per_layer_config.last", "0 to 2"));
  EXPECT_TRUE(refuses(config({{"2", {{"sliding_window", 3}}}}), "per_layer_config.2.sliding_window is 3"));
  EXPECT_TRUE(refuses(config({{"2", 12}}), "per_layer_config.2. is not a JSON object"));
  EXPECT_TRUE(refuses(config({{"2", {{"head_dim", 7}}}}), "an even number"));
  EXPECT_TRUE(refuses(config({{"2", {{"num_key_value_heads", 4}}}}), "a divisor of num_attention_heads (6)"));
  EXPECT_TRUE(refuses(config(json::array()), "per_layer_config. is not a JSON object"));
}

TEST(Gemma4, TheLastLayersMayReadKeysAndValuesBelow) {
  const json config = with_layers(5, {2, 4});
  const Config shared = parse(with(config, {{"num_kv_shared_layers", 2}, {"use_double_wide_mlp", true}}));
  EXPECT_EQ(shared.producer_of(3), 1);
  EXPECT_EQ(shared.producer_of(4), 2);
  EXPECT_EQ(shared.producer_of(2), 2);
  EXPECT_TRUE(has_parameter(shared, "model.layers.4.mlp.up_proj.weight", {88, 48}));
  EXPECT_TRUE(has_parameter(shared, "model.layers.2.mlp.up_proj.weight", {44, 48}));
  EXPECT_FALSE(has_parameter(shared, "model.layers.4.self_attn.k_proj.weight", {24, 48}));
  EXPECT_TRUE(
      refuses(with(config, {{"num_kv_shared_layers", 3}}), "num_kv_shared_layers is 3", "layer 2", "fewer"));
  EXPECT_TRUE(refuses(with(config, {{"num_kv_shared_layers", 5}}), "num_kv_shared_layers is 5", "1 to 4"));
  EXPECT_TRUE(refuses(with(config, {{"num_kv_shared_layers", -1}}), "num_kv_shared_layers is -1"));
}

TEST(Gemma4, ReadsRopesOfBothKindsOfLayersOrNone) {
  const auto config = [](const json& full, const json& local) {
    return with(gemma4(), {{"rope_parameters", {{"full_attention", full}, {"sliding_attention", local}}}});
  };
  const json half = {{"partial_rotary_factor", 0.5}}, local = rope("default", 300.0);
  const Config read = parse(config(rope("proportional", 700.0, half), local));
  EXPECT_EQ(read.rope.proportion, 0.5);
  EXPECT_EQ(read.rotary_dim, 12);
  EXPECT_EQ(read.local_rotary_dim(), 8);
  EXPECT_EQ(read.local_rope->theta, 300.0);
  // The older name of the key, which transformers still reads.
  json older = without(rope("", 700.0, half), "rope_type");
  older["type"] = "proportional";
  EXPECT_EQ(parse(config(older, local)), read);
  const json no_type = {{"rope_theta", 300.0}};
  EXPECT_EQ(parse(config(older, no_type)), read);
  EXPECT_TRUE(refuses(config(rope("default", 700.0, half), local), "full_attention.partial_rotary_factor"));
  EXPECT_TRUE(refuses(config(rope("linear", 700.0, {{"factor", 2.0}}), local), "rope_type is \"linear\"",
                      "default or proportional"));
  EXPECT_TRUE(refuses(config(rope("proportional", 700.0, {{"partial_rotary_factor", 1.5}}), local),
                      "partial_rotary_factor is 1.5"));
  EXPECT_TRUE(refuses(config({{"rope_type", "default"}}, local), "rope_theta is missing"));
}

TEST(Gemma4, NeedsRopesOfTheKindsThatThereAre) {
  const json full = {{"full_attention", rope("default", 700.0)}};
  EXPECT_EQ(parse(with(with_layers(2, {0, 1}), {{"rope_parameters", full}})).rope.theta, 700.0);
  EXPECT_TRUE(refuses(with(gemma4(), {{"rope_parameters", full}}), "rope_parameters",
                      "full_attention and sliding_attention"));
  EXPECT_TRUE(refuses(with(gemma4(), {{"rope_parameters", json::object()}}), "rope_parameters",
                      "full_attention and sliding_attention"));
  EXPECT_TRUE(refuses(with(gemma4(), {{"rope_parameters", rope("default", 1.0)}}), "rope_parameters.rope_"));
  EXPECT_TRUE(refuses(with(gemma4(), {{"rope_theta", 700.0}}), "rope_theta is 700"));
  EXPECT_TRUE(refuses(with(gemma4(), {{"rope_scaling", rope("default", 1.0)}}), "rope_scaling"));
}

TEST(Gemma4, RefusesWhatItDoesNotHonour) {
  const json config = gemma4();
  EXPECT_TRUE(refuses(with(config, {{"hidden_size_per_layer_input", nullptr}}), "hidden_size_per_layer_input",
                      "0 for none"));
  EXPECT_TRUE(refuses(with(config, {{"hidden_size_per_layer_input", 4}, {"vocab_size_per_layer_input", 100}}),
                      "vocab_size_per_layer_input is 100", "at least vocab_size (101)"));
  EXPECT_TRUE(refuses(with(config, {{"use_bidirectional_attention", "all"}}), "use_bidirectional_attention"));
  EXPECT_EQ(parse(with(config, {{"use_bidirectional_attention", "vision"}})), parse(config));
  EXPECT_TRUE(refuses(with(config, {{"query_pre_attn_scalar", 16}}), "query_pre_attn_scalar"));
  EXPECT_TRUE(refuses(with(config, {{"attn_logit_softcapping", 50.0}}), "attn_logit_softcapping"));
  EXPECT_TRUE(refuses(with(config, {{"num_experts", 4}}), "num_experts is 4"));
  const json mixture = with(
      config,
      {{"enable_moe_block", true}, {"num_experts", 4}, {"top_k_experts", 2}, {"moe_intermediate_size", 6}});
  EXPECT_TRUE(parse(mixture).is_sparse(1) && parse(mixture).mixture.next_to_mlp);
  EXPECT_TRUE(refuses(with(mixture, {{"top_k_experts", 5}}), "top_k_experts is 5"));
  EXPECT_TRUE(refuses(without(mixture, "moe_intermediate_size"), "moe_intermediate_size is missing"));
  EXPECT_EQ(parse(with(mixture, {{"output_router_logits", true}})), parse(mixture));
  // Other families have none of it.
  for (const char* key : {"global_head_dim", "num_kv_shared_layers", "hidden_size_per_layer_input"})
    EXPECT_TRUE(refuses(with(small_config("llama"), {{key, 4}}), key));
  EXPECT_TRUE(refuses(with(small_config("gemma3_text"), {{"attention_k_eq_v", true}}), "attention_k_eq_v"));
}

TEST(Gemma4, IsTheTextPartOfAMultimodalFile) {
  const json text = without(without(gemma4(), "tie_word_embeddings"), "torch_dtype");
  const json whole = {{"model_type", "gemma4"},
                      {"text_config", text},
                      {"tie_word_embeddings", true},
                      {"dtype", "bfloat16"},
                      {"vision_config", {{"model_type", "gemma4_vision"}}}};
  EXPECT_EQ(parse(whole), parse(gemma4()));
  EXPECT_FALSE(parse(with(whole, {{"tie_word_embeddings", false}})).tie_word_embeddings);
  // The key outside is what transformers reads, or its default there.
  json inside = without(whole, "tie_word_embeddings");
  inside["text_config"]["tie_word_embeddings"] = true;
  EXPECT_TRUE(parse(inside).tie_word_embeddings);
  inside["text_config"]["tie_word_embeddings"] = false;
  EXPECT_TRUE(refuses(inside, "text_config.tie_word_embeddings is false", "outside text_config"));
}

}  // namespace
}  // namespace streambp
