// Our reading of config.json against transformers' own: some hundred random files, and what transformers'
// classes and models made of each (verify/tests/streambp/model/config/config_table.jsonl, by
// scripts/make_config_table.py). Nothing of what is expected here has been through our parser.
#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <fstream>
#include <map>
#include <set>
#include <sstream>

#include "streambp/model/config/rope_frequencies.h"
#include "streambp/model/files/checkpoint.h"
#include "verify/tests/streambp/model/config_testing.h"

namespace streambp {
namespace {

using nlohmann::json;

constexpr double kLimit = 1e-14;

bool is_near(double value, double expected) {
  return std::abs(value - expected) <= kLimit * std::max(1.0, std::abs(expected));
}

/// What differs between a config and the values derived from its file, in words.
class Difference {
 public:
  Difference(const Config& config, const json& derived) : config_(config), derived_(derived) {}

  std::vector<std::string> all() {
    numbers();
    activation();
    recurrent_layers();
    keys_and_values();
    rotations();
    experts();
    frequencies("rope", config_.rope, config_.rotary_dim);
    if (config_.local_rope) frequencies("local_rope", *config_.local_rope, config_.local_rotary_dim());
    parameters();
    return found_;
  }

 private:
  template <typename Value>
  void same(const char* key, const Value& value) {
    if (derived_.at(key) != json(value))
      found_.push_back(
          fmt::format("{}: {}, transformers has {}", key, json(value).dump(), derived_.at(key).dump()));
  }

  void near(const std::string& key, double value, double expected) {
    if (!is_near(value, expected))
      found_.push_back(fmt::format("{}: {}, transformers has {}", key, value, expected));
  }

  void numbers() {
    same("head_dim", config_.head_dim_of(0));
    near("scaling", config_.attention_scale, derived_.at("scaling"));
    same("windows", config_.windows);
    near("rms_norm_eps", config_.rms_norm_eps, derived_.at("rms_norm_eps"));
    same("norm_adds_one", config_.norm_adds_one);
    for (const auto& [key, value] : {std::pair{"embed_scale", config_.embedding_scale},
                                     {"logits_scaling", config_.logits_scaling},
                                     {"residual_multiplier", config_.residual_multiplier}})
      near(key, value, derived_.at(key));
    same("tied", config_.tie_word_embeddings);
    const auto cap = [&](const char* key) {
      return derived_.at(key).is_null() ? 0.0 : derived_.at(key).get<double>();
    };
    near("attn_logit_softcapping", config_.attn_logit_softcapping, cap("attn_logit_softcapping"));
    near("final_logit_softcapping", config_.final_logit_softcapping, cap("final_logit_softcapping"));
    near("dropout", 0.0, derived_.at("dropout"));
    padding(config_);
    if (!derived_.at("dtype").is_null()) same("dtype", config_.dtype);
  }

  void activation() {
    near("swiglu_alpha", config_.swiglu_alpha, derived_.value("swiglu_alpha", 0.0));
    near("swiglu_limit", config_.swiglu_limit, derived_.value("swiglu_limit", 0.0));
    if (!derived_.contains("activation_at_0.7")) return;
    constexpr double kAt = 0.7;
    const double silu = kAt / (1.0 + std::exp(-kAt));
    const double gelu =
        0.5 * kAt * (1.0 + std::tanh(std::sqrt(2.0 / M_PI) * (kAt + 0.044715 * kAt * kAt * kAt)));
    const double exact = 0.5 * kAt * (1.0 + std::erf(kAt / std::sqrt(2.0)));
    near("activation",
         config_.hidden_act == Activation::kSilu   ? silu
         : config_.hidden_act == Activation::kGelu ? exact
                                                   : gelu,
         derived_.at("activation_at_0.7"));
  }

  /// The embedding's padding_idx.
  template <typename Read>
  void padding(const Read& config) {
    if constexpr (requires { config.pad_token_id; }) {
      const json& expected = derived_.at("padding_idx");
      const auto index = config.pad_token_id;
      if (index.has_value() == expected.is_null() || (index && *index != expected.get<int64_t>()))
        found_.push_back(fmt::format("pad_token_id: {}, transformers has {}",
                                     index ? std::to_string(*index) : "none", expected.dump()));
    }
  }

  void recurrent_layers() {
    std::vector<bool> recurrent;
    for (int64_t layer = 0; layer < config_.num_hidden_layers; ++layer)
      recurrent.push_back(config_.is_recurrent(layer));
    const bool any = std::find(recurrent.begin(), recurrent.end(), true) != recurrent.end();
    if (derived_.contains("linear_attention") != any) found_.push_back("recurrent layers");
    if (!any || !found_.empty()) return;
    same("linear_attention", recurrent);
    const DeltaRuleSettings& rule = config_.delta_rule;
    same("delta_rule", std::vector<int64_t>{rule.key_heads, rule.value_heads, rule.key_head_dim,
                                            rule.value_head_dim, rule.conv_kernel});
  }

  /// Of Gemma 4: whose keys and values each layer reads, and their sizes.
  void keys_and_values() {
    if (derived_.contains("producers") != (config_.gemma4.global_head_dim > 0))
      found_.push_back("keys and values");
    if (!derived_.contains("producers") || !found_.empty()) return;
    std::vector<int64_t> producers, head_dims, heads;
    for (int64_t layer = 0; layer < config_.num_hidden_layers; ++layer) {
      producers.push_back(config_.producer_of(layer));
      head_dims.push_back(config_.head_dim_of(layer));
      heads.push_back(config_.key_value_heads_of(layer));
    }
    same("producers", producers);
    same("head_dims", head_dims);
    same("key_value_heads", heads);
  }

  /// Which rope each layer's keys were rotated by, how the entries were paired, and the scale of queries.
  void rotations() {
    for (int64_t layer = 0; layer < config_.num_hidden_layers; ++layer) {
      // Two ropes of the same frequencies look the same.
      const json& seen = derived_.at("ropes").at(static_cast<std::size_t>(layer));
      const char* const ours = config_.local_rope && config_.has_window(layer) ? "local_rope" : "rope";
      const bool turns = config_.rotates(layer) && !config_.is_recurrent(layer);
      const bool good = turns ? std::find(seen.begin(), seen.end(), ours) != seen.end() : seen.empty();
      if (!good)
        found_.push_back(fmt::format("layer {}: {}, in transformers one of {}", layer,
                                     turns ? ours : "not rotated", seen.dump()));
    }
    if (!derived_.at("rope_interleaved").is_null()) same("rope_interleaved", config_.rope_interleaved);
    std::size_t i = 0;
    for (const int64_t position : {3, 17, 29}) {
      double scale = 1.0;
      if (config_.query_scale_beta > 0.0)
        scale += config_.query_scale_beta *
                 std::log(1.0 + static_cast<double>(position / config_.query_scale_original));
      near(fmt::format("scale of queries at {}", position), scale, derived_.at("query_scale").at(i++));
    }
  }

  void experts() {
    std::vector<bool> sparse;
    for (int64_t layer = 0; layer < config_.num_hidden_layers; ++layer)
      sparse.push_back(config_.is_sparse(layer));
    same("sparse", sparse);
    if (!derived_.contains("num_experts")) return;
    same("num_experts", config_.mixture.num_experts);
    same("top_k", config_.mixture.num_experts_per_tok);
    same("norm_topk_prob", config_.mixture.norm_topk_prob);
    const MixtureSettings& mixture = config_.mixture;
    near("router_loss", mixture.output_router_logits ? mixture.router_aux_loss_coef : 0.0,
         derived_.at("router_loss"));
    if (derived_.contains("groups") != mixture.sigmoid_scores) found_.push_back("scores of experts");
    if (!derived_.contains("groups")) return;
    same("groups", std::vector<int64_t>{mixture.n_group, mixture.topk_group});
    near("routed_scaling_factor", mixture.routed_scaling_factor, derived_.at("routed_scaling_factor"));
  }

  void frequencies(const char* name, const RopeSettings& rope, int64_t rotary_dim) {
    if (!derived_.contains(name)) return;  // no layer of the kind
    const json& expected = derived_.at(name);
    near(std::string(name) + " attention_scaling", rope.attention_factor, expected.at("attention_scaling"));
    const json& by_length = expected.at("inv_freq");
    const std::vector<double> shortest = by_length.at("12");
    for (const int64_t length : {12, 48}) {
      const std::string key = std::to_string(length);
      const auto truth = by_length.contains(key) ? by_length.at(key).get<std::vector<double>>() : shortest;
      const auto ours = rope_inverse_frequencies(rope, rotary_dim, length);
      bool good = ours.size() == truth.size();
      for (std::size_t i = 0; good && i < truth.size(); ++i)
        good = std::abs(ours[i] - truth[i]) <= kLimit * truth[i];
      if (!good)
        found_.push_back(fmt::format("{} at length {}: [{}], transformers has [{}]", name, length,
                                     fmt::join(ours, ", "), fmt::join(truth, ", ")));
    }
  }

  /// Names and shapes of a weight file.
  void parameters() {
    using Shapes = std::map<std::string, std::vector<int64_t>>;
    Shapes expected = derived_.at("others").get<Shapes>();
    const json& kinds = derived_.at("layer_kinds");
    for (std::size_t layer = 0; layer < derived_.at("layers").size(); ++layer) {
      const auto shapes = kinds.at(derived_.at("layers")[layer].get<std::size_t>()).get<Shapes>();
      for (const auto& [name, shape] : shapes) {
        const std::string prefix = fmt::format("model.layers.{}.", layer);
        const auto star = name.find('*');
        if (star == std::string::npos) {
          expected[prefix + name] = shape;
          continue;
        }
        for (int64_t expert = 0; expert < derived_.at("num_experts").get<int64_t>(); ++expert)
          expected[fmt::format("{}{}{}{}", prefix, name.substr(0, star), expert, name.substr(star + 1))] =
              shape;
      }
    }
    Shapes ours;
    for (const ParameterShape& shape : parameter_shapes(config_))
      ours[stored_name(config_, shape.name)] = shape.shape;
    for (const auto& [name, shape] : expected) {
      const auto found = ours.find(name);
      if (found == ours.end() || found->second != shape)
        found_.push_back(fmt::format("{} [{}]: {}", name, fmt::join(shape, ", "),
                                     found == ours.end() ? "not there" : "of another shape"));
    }
    for (const auto& [name, shape] : ours) {
      if (!expected.contains(name)) found_.push_back(name + ": not in transformers");
    }
  }

  const Config& config_;
  const json& derived_;
  std::vector<std::string> found_;
};

/// Why a file that transformers takes may be refused here: part of the message, and of how many files of the
/// table. More would be files that we ought to read.
const std::map<std::string, int> kReasons = {
    {"hidden_activation is \"gelu\"", 3},  // the exact GELU, in families of its tanh form
    {"attention_bias is true", 1},         // not read by transformers: mistral and phi3 have none,
    {"attention_bias is false", 1},        // qwen2 always has some
    {"attention_dropout is 0.1", 17},
    {"factor is 0.8", 3},                        // a context made shorter
    {"original_max_position_embeddings is", 2},  // phi3: the key outside the object holds
    {"rope_scaling.type is", 9},                 // gemma3, olmo3: read by transformers 4, not by 5
    {"truncate is false", 1},                    // the same
    {"head_dim is missing", 1},                  // gpt_oss, ministral3: the class's is hardly ever meant
    {"num_key_value_heads is 3", 3},             // deepseek_v3: not read where it is above half the heads
    {"scoring_func is \"softmax\"", 2},          // of DeepSeek's own reader, not read
    {"of the topk_group groups", 1},             // more experts than may be chosen: transformers takes others
    {"use_bidirectional_attention is \"all\"", 1},
    {"query_pre_attn_scalar is 16", 1},  // gemma4: not read
};

TEST(ConfigTable, EveryFileIsReadAsTransformersReadsItOrRefusedByName) {
  std::ifstream file(kModels.parent_path().parent_path() / "tests/streambp/model/config/config_table.jsonl");
  ASSERT_TRUE(file.good());
  int read = 0, lines = 0;
  std::map<std::string, int> refused;
  std::set<std::string> families;
  for (std::string line; std::getline(file, line); ++lines) {
    const json entry = json::parse(line);
    const std::string text = entry.at("config").dump();
    try {
      const Config config = parse_config(text, "table");
      ++read;
      families.insert(config.family);
      const auto differences = Difference(config, entry.at("derived")).all();
      EXPECT_TRUE(differences.empty()) << text << "\n  " << fmt::format("{}", fmt::join(differences, "\n  "));
    } catch (const InputError& error) {
      const std::string message = error.what();
      const auto reason = std::find_if(kReasons.begin(), kReasons.end(), [&](const auto& one) {
        return message.find(one.first) != std::string::npos;
      });
      EXPECT_NE(reason, kReasons.end()) << text << "\n  " << message;
      if (reason != kReasons.end()) ++refused[reason->first];
    }
  }
  EXPECT_EQ(lines, 768);
  EXPECT_EQ(families.size(), 32u);
  EXPECT_GE(read, 720);
  for (const auto& [reason, count] : kReasons) {
    EXPECT_LE(refused[reason], count) << reason;
    fmt::print("{} refused: {}\n", refused[reason], reason);
  }
  fmt::print("{} of {} files read\n", read, lines);
}

}  // namespace
}  // namespace streambp
