// Qwen4-Exp in config.json: which layers recur and pick, its streams and gates, its tables of n-grams and how
// tokens are hashed, parts of tables in files, and refusals by name.
#include "streambp/model/config/ngram_settings.h"
#include "streambp/model/files/stored_names.h"
#include "verify/tests/streambp/model/config_testing.h"
#include "verify/tests/streambp/model/made_checkpoint.h"

namespace streambp {
namespace {

using nlohmann::json;

json qwen4_exp() {
  return with(small_config("qwen4_exp_text"), {{"num_hidden_layers", 4},
                                               {"num_experts", 6},
                                               {"num_experts_per_tok", 2},
                                               {"moe_intermediate_size", 12},
                                               {"shared_expert_intermediate_size", 10},
                                               {"linear_num_key_heads", 2},
                                               {"linear_num_value_heads", 4},
                                               {"linear_key_head_dim", 6},
                                               {"linear_value_head_dim", 5},
                                               {"hc_lowrank", 7},
                                               {"indexer_n_heads", 3},
                                               {"indexer_kv_heads", 1},
                                               {"indexer_head_dim", 9},
                                               {"indexer_budget", 12},
                                               {"indexer_compress_ratio", 4},
                                               {"ple_layer_ids", {3, 1}},
                                               {"ple_embed_dim", 16},
                                               {"heads_per_ngram", 2},
                                               {"ngram_vocab_size_base", 40},
                                               {"make_ngram_vocab_size_divisible_by", 8},
                                               {"split_ngram_parts", 3},
                                               {"eos_token_id", 5}});
}

TEST(Qwen4Exp, IsReadFromTheGoldenModels) {
  const Config config = read_config(kModels / "qwen4-exp" / "config.json");
  EXPECT_EQ(config.linear_attention, (std::vector<bool>{true, false, true, false}));
  EXPECT_TRUE(config.has_low_rank_streams() && config.has_streams() && !config.has_head_gates());
  EXPECT_EQ(config.hyper.streams, 3);
  EXPECT_EQ(config.hyper.lowrank, 5);
  EXPECT_TRUE(config.indexer.of_means && config.has_indexer(1) && !config.has_indexer(0));
  EXPECT_EQ(config.indexer.topk, 2);
  EXPECT_EQ(config.pick_kind().rate, 3);
  EXPECT_EQ(config.rotary_dim, 4);
  EXPECT_EQ(config.ngrams.modules, (std::vector<int64_t>{0, -1, 1, -1}));
  EXPECT_EQ(config.ngrams.boundary, 6);
  EXPECT_FALSE(config.delta_rule.logistic_gate);
  EXPECT_TRUE(config.mixture.norm_topk_prob && config.mixture.has_router_loss());
  const Config recurrent = read_config(kModels / "qwen4-exp-recurrent" / "config.json");
  EXPECT_TRUE(recurrent.delta_rule.logistic_gate && !recurrent.has_indexers() &&
              !recurrent.mixture.norm_topk_prob);
  EXPECT_TRUE(recurrent.ngrams.modules.empty() && recurrent.mixture.output_router_logits);
  const Config pairs = read_config(kModels / "qwen4-exp-pairs" / "config.json");
  EXPECT_EQ(pairs.ngrams.boundary, 7);
  EXPECT_EQ(pairs.rotary_dim, 8);
  EXPECT_EQ(pairs.pick_kind().rate, 1);
}

TEST(Qwen4Exp, HasItsClassesDefaults) {
  json config = qwen4_exp();
  for (const char* key : {"hc_lowrank", "ple_embed_dim", "heads_per_ngram", "ngram_vocab_size_base",
                          "make_ngram_vocab_size_divisible_by", "split_ngram_parts"})
    config = without(config, key);
  const Config parsed = parse(config);
  EXPECT_EQ(parsed.linear_attention, (std::vector<bool>{true, true, true, false}));
  EXPECT_EQ(parsed.hyper.streams, 4);
  EXPECT_EQ(parsed.hyper.lowrank, 320);
  EXPECT_EQ(parsed.ngrams, (NgramSettings{{0, -1, 1, -1}, 3, 8, 48, 4, 20'000'000, 128, 1234, 512, 5}));
  EXPECT_EQ(parsed.rotary_dim, 8);
  EXPECT_EQ(parsed.mixture.router_aux_loss_coef, 0.001);
  // The text part of a whole model; a list of tokens, of which the first counts.
  config["eos_token_id"] = {5, 9};
  EXPECT_EQ(parse({{"model_type", "qwen4_exp"}, {"tie_word_embeddings", true}, {"text_config", config}}),
            parsed);
  EXPECT_TRUE(parse(with(config, {{"ple_layer_ids", nullptr}})).ngrams.modules.empty());
}

// transformers 5.24, modeling_qwen4_exp.py, for these settings.
TEST(Qwen4Exp, HashesNgramsAsTransformersDoes) {
  const NgramSettings settings = parse(qwen4_exp()).ngrams;
  EXPECT_EQ(ngram_head_rows(settings, 0), (std::vector<int64_t>{41, 43, 47, 53}));
  EXPECT_EQ(ngram_head_rows(settings, 1), (std::vector<int64_t>{59, 61, 67, 71}));
  EXPECT_EQ(ngram_table_rows(settings, 0), 184);
  EXPECT_EQ(ngram_table_rows(settings, 1), 264);
  EXPECT_EQ(ngram_multipliers(settings, 0, 101),
            (std::vector<int64_t>{48171812685133527, 60425070036698535, 63875411791415245}));
  EXPECT_EQ(ngram_multipliers(settings, 1, 101),
            (std::vector<int64_t>{89652060466912001, 33297754302284963, 74484843492265589}));
}

TEST(Qwen4Exp, HasTheParametersOfTransformers) {
  const Config config = parse(qwen4_exp());
  const std::string picks = "model.layers.3.self_attn.indexer.", adds = "model.layers.2.ple.";
  EXPECT_TRUE(has_parameter(config, picks + "index_qk_proj.weight", {36, 48}));
  EXPECT_TRUE(has_parameter(config, picks + "k_layernorm.weight", {9}));
  EXPECT_TRUE(is_never_trained(picks + "index_qk_proj.weight"));
  EXPECT_TRUE(has_parameter(config, adds + "ple_embedding.ngram_embedding.weight", {264, 4}));
  EXPECT_TRUE(has_parameter(config, adds + "key_proj.weight", {192, 16}));
  EXPECT_TRUE(has_parameter(config, adds + "value_proj.weight", {48, 16}));
  EXPECT_TRUE(has_parameter(config, adds + "norm_conv.weight", {192}));
  EXPECT_TRUE(has_parameter(config, adds + "conv1d.weight", {192, 1, 4}));
  EXPECT_FALSE(has_parameter(config, "model.layers.1.ple.value_proj.weight", {48, 16}));
  EXPECT_TRUE(
      has_parameter(config, "model.layers.0.mlp_hyper_connection.block_inject_weight.weight", {4, 192}));
  EXPECT_TRUE(has_parameter(config, "model.hyper_connection_mixer.input_mix_weight_up.weight", {192, 7}));
  EXPECT_FALSE(has_parameter(config, "model.norm.weight", {48}));
  EXPECT_FALSE(has_parameter(config, "model.layers.0.input_layernorm.weight", {48}));
  const std::string map = "model.layers.0.mlp.experts.2.gate_proj.weight";
  EXPECT_EQ(parameter_name(config, map), map);
  EXPECT_EQ(stored_name(config, map), map);
}

// As transformers writes them, with a table in parts, and how n-grams are hashed beside it.
TEST(Qwen4Exp, TablesAreReadInParts) {
  const json text = with(qwen4_exp(), {{"torch_dtype", "float32"}});
  const Config config = parse(text);
  const std::string table = "model.layers.0.ple.ple_embedding.ngram_embedding";
  std::map<std::string, MadeTensor> tensors;
  std::vector<std::byte> whole;
  int value = 0;
  const auto of_numbers = [](const std::vector<int64_t>& numbers) {
    const auto bytes = std::as_bytes(std::span(numbers));
    return MadeTensor{"I64", {static_cast<int64_t>(numbers.size())}, {bytes.begin(), bytes.end()}};
  };
  for (const ParameterShape& parameter : parameter_shapes(config)) {
    int64_t numbers = 1;
    for (const int64_t size : parameter.shape) numbers *= size;
    if (parameter.name != table + ".weight") {
      tensors[parameter.name] = {"F32", parameter.shape,
                                 std::vector<std::byte>(static_cast<size_t>(4 * numbers))};
      continue;
    }
    int64_t part = 0;
    for (const int64_t rows : {62, 62, 60}) {  // as torch.chunk cuts 184
      std::vector<std::byte> bytes;
      for (int64_t i = 0; i < 4 * 4 * rows; ++i) bytes.push_back(static_cast<std::byte>(++value % 251));
      whole.insert(whole.end(), bytes.begin(), bytes.end());
      tensors[fmt::format("{}.shard_{}.weight", table, part++)] = {"F32", {rows, 4}, bytes};
    }
  }
  const std::string hash = "model.layers.2.ple.ple_embedding.";
  tensors[hash + "layer_multipliers"] = of_numbers(ngram_multipliers(config.ngrams, 1, 101));
  tensors[hash + "ngram_heads_vocab_sizes"] = of_numbers({59, 61, 67, 71});
  tensors[hash + "ngram_heads_offsets"] = of_numbers({0, 59, 120, 187});
  const auto open = [&] {
    const TempFolder folder;
    folder.write("config.json", text.dump());
    const Checkpoint checkpoint = open_made(folder, tensors);
    return checkpoint.bytes(table + ".weight");
  };
  EXPECT_TRUE(open() == whole);
  tensors[hash + "ngram_heads_offsets"] = of_numbers({0, 59, 120, 188});
  EXPECT_TRUE(refused(open, "ngram_heads_offsets", "is not what config.json says of n-grams"));
  tensors.erase(hash + "ngram_heads_offsets");
  const MadeTensor kept = tensors.at(table + ".shard_1.weight");
  tensors.erase(table + ".shard_1.weight");
  EXPECT_TRUE(refused(open, "part 1 of 3 (split_ngram_parts) is missing"));
  tensors[table + ".shard_1.weight"] = {"F32", {31, 8}, kept.bytes};
  EXPECT_TRUE(refused(open, "F32 [31,8], expected F32 rows of 4"));
  tensors[table + ".shard_1.weight"] = kept;
  tensors[table + ".shard_3.weight"] = kept;
  EXPECT_TRUE(refused(open, "shard_3", "expected 3 parts"));
}

TEST(Qwen4Exp, IsRefusedByNameWhereItCanNotBe) {
  const json good = qwen4_exp();
  const auto refuses_with = [&](const json& changes, const auto&... parts) {
    return refuses(with(good, changes), parts...);
  };
  EXPECT_TRUE(refuses_with({{"hc_count", 1}}, "hc_count", "2 or more"));
  EXPECT_TRUE(refuses_with({{"output_gate_type", "swish"}}, "output_gate_type", "silu, sigmoid or null"));
  EXPECT_TRUE(refuses_with({{"indexer_kv_heads", 2}}, "indexer_kv_heads"));
  EXPECT_TRUE(refuses_with({{"indexer_kv_heads", nullptr}}, "indexer_kv_heads"));
  EXPECT_TRUE(
      refuses_with({{"indexer_budget", 13}}, "indexer_budget", "a multiple of indexer_compress_ratio (4)"));
  EXPECT_TRUE(
      refuses_with({{"indexer_head_dim", 7}}, "indexer_head_dim", "at least the 8 entries that rotate"));
  EXPECT_TRUE(
      refuses_with({{"layer_types", json(4, "sliding_attention")}}, "layer_types", "indexed_attention"));
  EXPECT_TRUE(refuses_with({{"ple_layer_ids", {4}}}, "ple_layer_ids", "linear_attention"));
  EXPECT_TRUE(refuses_with({{"ple_layer_ids", {0}}}, "ple_layer_ids", "from 1 to 4"));
  EXPECT_TRUE(refuses_with({{"ple_layer_ids", {5}}}, "ple_layer_ids", "from 1 to 4"));
  EXPECT_TRUE(refuses_with({{"ple_layer_ids", 1}}, "ple_layer_ids", "from 1 to 4"));
  EXPECT_TRUE(refuses_with({{"ple_embed_dim", 15}}, "ple_embed_dim", "a multiple of the 4 heads"));
  EXPECT_TRUE(refuses_with({{"heads_per_ngram", 1025}}, "heads_per_ngram",
                           "4100 heads of n-grams are more than 4096"));
  EXPECT_TRUE(refuses_with({{"ngram_size", 1}}, "ngram_size", "2 or more"));
  EXPECT_TRUE(refuses_with({{"eos_token_id", nullptr}}, "eos_token_id", "n-grams end with it"));
  EXPECT_TRUE(refuses_with({{"eos_token_id", 101}}, "eos_token_id", "a token below 101"));
  EXPECT_TRUE(refuses_with({{"eos_token_id", json::array()}}, "eos_token_id"));
  EXPECT_TRUE(refuses_with({{"index_topk", 8}}, "index_topk"));
  EXPECT_TRUE(refuses_with({{"hc_mult", 4}}, "hc_mult"));
  EXPECT_TRUE(refuses_with({{"mlp_only_layers", {1}}}, "mlp_only_layers", "every layer has experts"));
  json plain = good;
  for (const char* key : {"indexer_n_heads", "indexer_kv_heads", "indexer_head_dim", "indexer_budget",
                          "indexer_compress_ratio"})
    plain = without(plain, key);
  EXPECT_TRUE(refuses(plain, "indexer_n_heads", "attends without an indexer"));
  EXPECT_FALSE(parse(with(plain, {{"layer_types", json(4, "linear_attention")}})).has_indexers());
  // Of other families.
  EXPECT_TRUE(refuses(with(small_config("llama"), {{"hc_count", 4}}), "hc_count"));
}

}  // namespace
}  // namespace streambp
