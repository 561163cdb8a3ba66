// MiniMax M3's text model in config.json: as transformers writes it, in the words of published files, and
// what is refused; names of parameters.
#include "streambp/model/files/stored_names.h"
#include "verify/tests/streambp/model/config_testing.h"
#include "verify/tests/streambp/model/made_checkpoint.h"

namespace streambp {
namespace {

using nlohmann::json;

json minimax_m3() {
  return with(small_config("minimax_m3_vl_text"), {{"num_hidden_layers", 4},
                                                   {"dense_intermediate_size", 36},
                                                   {"shared_intermediate_size", 20},
                                                   {"num_local_experts", 8},
                                                   {"num_experts_per_tok", 2},
                                                   {"index_n_heads", 2},
                                                   {"index_head_dim", 10},
                                                   {"partial_rotary_factor", 0.5}});
}

const json kKinds = {"full_attention", "minimax_m3_sparse", "full_attention", "minimax_m3_sparse"};

json with_indexers() {
  return with(minimax_m3(),
              {{"layer_types", kKinds}, {"mlp_layer_types", {"dense", "sparse", "sparse", "dense"}}});
}

/// A whole model as published, with a text part of the class's own sizes but for its layers.
json published() {
  return {{"model_type", "minimax_m3_vl"},
          {"tie_word_embeddings", false},
          {"text_config",
           {{"num_hidden_layers", 4},
            {"partial_rotary_factor", 0.5},
            {"rotary_dim", 64},
            {"rope_theta", 5e6},
            {"hidden_act", "swigluoai"},
            {"use_qk_norm", true},
            {"qk_norm_type", "per_head"},
            {"use_gemma_norm", true},
            {"attention_output_gate", false},
            {"scoring_func", "sigmoid"},
            {"use_routing_bias", true},
            {"n_shared_experts", 1},
            {"moe_layer_freq", {0, 1, 1, 1}},
            {"sparse_attention_config",
             {{"use_sparse_attention", true},
              {"sparse_num_index_heads", 4},
              {"sparse_index_dim", 64},
              {"sparse_block_size", 32},
              {"sparse_topk_blocks", 8},
              {"sparse_init_block", 0},
              {"sparse_local_block", 2},
              {"sparse_score_type", "max"},
              {"sparse_disable_index_value", {0, 1, 0, 1}},
              {"sparse_attention_freq", {0, 1, 0, 1}}}}}}};
}

json changed(json config, const char* key, const json& value) {
  config["text_config"][key] = value;
  return config;
}

json changed_sparse(json config, const char* key, const json& value) {
  config["text_config"]["sparse_attention_config"][key] = value;
  return config;
}

TEST(MiniMaxM3, HasItsClassesDefaults) {
  const Config config = parse(with_indexers());
  EXPECT_TRUE(config.picks_key_blocks() && config.has_indexer(1) && !config.has_indexer(2));
  EXPECT_EQ(config.indexer.block, 128);
  EXPECT_EQ(config.indexer.topk, 16);
  EXPECT_EQ(config.indexer.local_blocks, 1);
  const PickKind kind = config.pick_kind();
  EXPECT_EQ(kind.width(), 2 * 16);
  EXPECT_EQ(kind.seen(128), 1);
  EXPECT_EQ(kind.seen(129), 2);
  EXPECT_EQ(config.intermediate_size, 36);
  EXPECT_EQ(config.rotary_dim, 4);
  // The class's own number of entries, which it writes of any head and does not read.
  EXPECT_EQ(parse(with(with_indexers(), {{"rotary_dim", 64}})).rotary_dim, 4);
  EXPECT_EQ(parse(with(without(with_indexers(), "partial_rotary_factor"), {{"rotary_dim", 64}})).rotary_dim,
            8);
  EXPECT_TRUE(config.norm_adds_one && config.qk_norm && config.fused_gate_up && config.clamps_all_mlps);
  EXPECT_EQ(config.swiglu_alpha, 1.702);
  EXPECT_EQ(config.swiglu_limit, 7.0);
  const MixtureSettings& mixture = config.mixture;
  EXPECT_EQ(mixture.moe_intermediate_size, 44);
  EXPECT_EQ(mixture.shared_expert_intermediate_size, 20);
  EXPECT_EQ(mixture.routed_scaling_factor, 2.0);
  EXPECT_EQ(mixture.added_to_sum, 0.0);
  EXPECT_EQ(mixture.sparse, (std::vector<bool>{false, true, true, false}));
  EXPECT_TRUE(mixture.sigmoid_scores && mixture.corrected && mixture.norm_topk_prob && mixture.stacked);
  EXPECT_EQ(mixture.router_aux_loss_coef, 0.001);
  EXPECT_TRUE(mixture.has_router_loss() && !mixture.output_router_logits);
  // Without types all layers see all rows, and have experts.
  const Config plain = parse(minimax_m3());
  EXPECT_FALSE(plain.has_indexers() || plain.picks_key_blocks());
  EXPECT_EQ(plain.mixture.sparse, (std::vector<bool>(4, true)));
}

TEST(MiniMaxM3, HasTheParametersOfTransformers) {
  const Config config = parse(with_indexers());
  const std::string sparse = "model.layers.1.";
  EXPECT_TRUE(has_parameter(config, sparse + "self_attn.indexer.q_proj.weight", {20, 48}));
  EXPECT_TRUE(has_parameter(config, sparse + "self_attn.indexer.k_proj.weight", {10, 48}));
  EXPECT_TRUE(has_parameter(config, sparse + "self_attn.indexer.q_norm.weight", {10}));
  EXPECT_FALSE(has_parameter(config, "model.layers.2.self_attn.indexer.q_proj.weight", {20, 48}));
  EXPECT_TRUE(has_parameter(config, sparse + "mlp.experts.gate_up_proj", {8, 88, 48}));
  EXPECT_TRUE(has_parameter(config, sparse + "mlp.experts.down_proj", {8, 48, 44}));
  EXPECT_TRUE(has_parameter(config, sparse + "mlp.gate.e_score_correction_bias", {8}));
  EXPECT_TRUE(has_parameter(config, sparse + "mlp.shared_experts.gate_up_proj.weight", {40, 48}));
  EXPECT_TRUE(has_parameter(config, "model.layers.3.mlp.gate_up_proj.weight", {72, 48}));
}

TEST(MiniMaxM3, ReadsTheWordsOfPublishedFiles) {
  const Config config = parse(published());
  EXPECT_EQ(config.hidden_size, 6144);
  EXPECT_EQ(config.rotary_dim, 64);
  EXPECT_EQ(config.indexer.block, 32);
  EXPECT_EQ(config.indexer.topk, 8);
  EXPECT_EQ(config.indexer.heads, 4);
  EXPECT_EQ(config.indexer.head_dim, 64);
  EXPECT_EQ(config.indexer.local_blocks, 2);
  EXPECT_EQ(config.indexer.layers, (std::vector<bool>{false, true, false, true}));
  EXPECT_EQ(config.mixture.sparse, (std::vector<bool>{false, true, true, true}));
  const json same = {{"layer_types", kKinds}, {"mlp_layer_types", {"dense", "sparse", "sparse", "sparse"}}};
  json both = published();
  both["text_config"].update(same);
  EXPECT_EQ(parse(both), config);
}

TEST(MiniMaxM3, HasTheNamesThatTransformersWritesOfTheTextModelAlone) {
  const Config config = parse(with_indexers());
  for (const ParameterShape& shape : parameter_shapes(config)) {
    EXPECT_EQ(stored_name(config, shape.name), shape.name);
    EXPECT_EQ(parameter_name(config, shape.name), shape.name);
  }
}

/// What published files hold of a parameter: names, and shapes of equally many bytes, in its order.
std::vector<std::pair<std::string, std::vector<int64_t>>> published_tensors(const ParameterShape& parameter,
                                                                            bool is_sparse) {
  const auto replaced = [](std::string name, const std::string& from, const std::string& to) {
    const size_t at = name.find(from);
    return at == std::string::npos ? name : name.replace(at, from.size(), to);
  };
  std::string name = "language_model." + parameter.name;
  if (is_sparse) name = replaced(name, ".mlp.", ".block_sparse_moe.");
  name = replaced(name, ".gate.e_score_correction_bias", ".e_score_correction_bias");
  name = replaced(name, ".indexer.", ".index_");
  const std::vector<int64_t>& shape = parameter.shape;
  std::vector<std::pair<std::string, std::vector<int64_t>>> all;
  const size_t both = name.find("gate_up_proj");
  if (shape.size() == 3) {
    for (int64_t expert = 0; expert < shape[0]; ++expert) {
      const std::string one = name.substr(0, name.rfind('.') + 1) + std::to_string(expert);
      if (both == std::string::npos) {
        all.emplace_back(one + ".w2.weight", std::vector{shape[1], shape[2]});
        continue;
      }
      all.emplace_back(one + ".w1.weight", std::vector{shape[1] / 2, shape[2]});
      all.emplace_back(one + ".w3.weight", std::vector{shape[1] / 2, shape[2]});
    }
  } else if (both != std::string::npos) {
    all.emplace_back(replaced(name, "gate_up_proj", "gate_proj"), std::vector{shape[0] / 2, shape[1]});
    all.emplace_back(replaced(name, "gate_up_proj", "up_proj"), std::vector{shape[0] / 2, shape[1]});
  } else {
    all.emplace_back(name, shape);
  }
  return all;
}

TEST(MiniMaxM3, ReadsTheTensorsOfPublishedFiles) {
  const json text = with(with_indexers(), {{"torch_dtype", "float32"}, {"tie_word_embeddings", false}});
  const Config config = parse(text);
  std::map<std::string, MadeTensor> tensors;
  std::map<std::string, std::vector<std::byte>> expected;
  int value = 0;
  for (const ParameterShape& parameter : parameter_shapes(config)) {
    const bool is_sparse =
        parameter.name.starts_with("model.layers.1.") || parameter.name.starts_with("model.layers.2.");
    std::vector<std::byte>& whole = expected[parameter.name];
    for (const auto& [name, shape] : published_tensors(parameter, is_sparse)) {
      int64_t numbers = 1;
      for (const int64_t size : shape) numbers *= size;
      std::vector<std::byte> bytes;
      for (int64_t i = 0; i < 4 * numbers; ++i) bytes.push_back(static_cast<std::byte>(++value % 251));
      whole.insert(whole.end(), bytes.begin(), bytes.end());
      tensors[name] = {"F32", shape, bytes};
    }
  }
  const std::vector<std::byte> one(4);
  for (const char* name : {"vision_tower.vision_model.pre_layrnorm.weight", "patch_merge_mlp.linear_1.weight",
                           "multi_modal_projector.linear_1.weight", "language_model.model.mtp.norm.weight"})
    tensors[name] = {"F32", {1}, one};
  const auto open = [&] {
    const TempFolder folder;
    json whole = {{"model_type", "minimax_m3_vl"}, {"text_config", text}, {"tie_word_embeddings", false}};
    folder.write("config.json", whole.dump());
    return open_made(folder, tensors);
  };
  {
    const TempFolder folder;
    json whole = {{"model_type", "minimax_m3_vl"}, {"text_config", text}, {"tie_word_embeddings", false}};
    folder.write("config.json", whole.dump());
    const Checkpoint checkpoint = open_made(folder, tensors);
    for (const auto& [name, bytes] : expected) EXPECT_TRUE(checkpoint.bytes(name) == bytes) << name;
    // Across the ends of pieces.
    const std::string experts = "model.layers.1.mlp.experts.gate_up_proj";
    std::vector<std::byte> some(4 * 44 * 48 + 10);
    checkpoint.stored(experts).read(7, some);
    EXPECT_TRUE(std::equal(some.begin(), some.end(), expected[experts].begin() + 7));
  }
  const std::string last = "language_model.model.layers.2.block_sparse_moe.experts.7.w2.weight";
  const MadeTensor kept = tensors.at(last);
  tensors.erase(last);
  EXPECT_TRUE(refused(open, "model.layers.2.mlp.experts.down_proj expert 7"));
  tensors[last] = {"F32", {44, 48}, kept.bytes};
  EXPECT_TRUE(refused(open, last, "F32 [44,48], expected F32 [48,44]"));
  tensors[last] = kept;
  tensors["language_model.model.layers.2.block_sparse_moe.experts.8.w2.weight"] = kept;
  EXPECT_TRUE(refused(open, "expected 8 experts"));
}

TEST(MiniMaxM3, IsRefusedByNameWhereItCanNotBe) {
  const json good = published();
  EXPECT_TRUE(refuses(changed(good, "moe_layer_freq", {0, 1}), "text_config.moe_layer_freq"));
  EXPECT_TRUE(refuses(changed(good, "layer_types", json(4, "full_attention")), "layer_types"));
  EXPECT_TRUE(refuses(changed(good, "index_block_size", 16), "index_block_size is 16"));
  EXPECT_TRUE(refuses(changed(good, "use_gemma_norm", false), "use_gemma_norm"));
  EXPECT_TRUE(refuses(changed(good, "use_routing_bias", false), "use_routing_bias"));
  EXPECT_TRUE(refuses(changed(good, "hidden_act", "gelu"), "hidden_act"));
  EXPECT_TRUE(refuses(changed(good, "index_topk", 8), "index_topk is 8"));
  EXPECT_TRUE(refuses(changed(good, "partial_rotary_factor", nullptr), "rotary_dim is 64"));
  EXPECT_TRUE(refuses(changed(good, "rotary_dim", 32), "rotary_dim is 32"));
  EXPECT_TRUE(refuses(changed_sparse(good, "sparse_init_block", 1), "sparse_init_block"));
  EXPECT_TRUE(refuses(changed_sparse(good, "sparse_block_size", int64_t{1} << 21), "from 1 to 1048576"));
  EXPECT_TRUE(refuses(changed_sparse(good, "sparse_score_type", "lse"), "sparse_score_type"));
  EXPECT_TRUE(refuses(changed_sparse(good, "use_sparse_attention", false), "use_sparse_attention"));
  EXPECT_TRUE(refuses(changed_sparse(good, "sparse_disable_index_value", {1, 0, 1, 1}),
                      "sparse_disable_index_value", "values of indexers"));
  EXPECT_TRUE(refuses(changed_sparse(good, "sparse_local_block", 9), "at most index_topk_blocks (8)"));
  EXPECT_TRUE(refuses(changed_sparse(good, "sparse_num_index_heads", 5), "a divisor of num_attention_heads"));
  EXPECT_TRUE(refuses(changed_sparse(good, "sparse_index_dim", 62), "at least the 64 entries that rotate"));
  json kinds = kKinds;
  kinds[0] = "sliding_attention";
  EXPECT_TRUE(refuses(with(with_indexers(), {{"layer_types", kinds}}), "layer_types"));
}

}  // namespace
}  // namespace streambp
