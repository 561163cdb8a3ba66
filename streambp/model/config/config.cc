#include "streambp/model/config/config.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <fmt/ranges.h>

#include "streambp/model/config/family.h"
#include "streambp/model/config/read/config_reader.h"
#include "streambp/model/quantized/packed.h"

namespace streambp {
namespace {

using nlohmann::json;

// LFM2's, which counts more than intermediate_size.
constexpr const char* kConvolutionsMlpWidth = "block_ff_dim";

constexpr std::array<const char*, 4> kModelDtypes = {"float64", "float32", "bfloat16", "float16"};

// The text part of a multimodal Gemma 3 or 4, Mistral 3 or Qwen3.5, as a config of its own. There
// transformers leaves out what equals the class's default, sizes included, and keeps a few settings of the
// whole model outside.
json text_part(const ConfigReader& file, const Family& family) {
  json part = json::parse(family.whole.sizes);
  part["model_type"] = family.name;
  const ConfigReader text = file.inner("text_config");
  if (family.step) forget_what_step_renames(text.object(), part);
  if (family.alias == nullptr || text.text("model_type").value_or("") != family.alias)
    text.only("model_type", part["model_type"]);
  constexpr const char* kTied = "tie_word_embeddings";
  // transformers 5 takes the key outside, or its default there. Mistral 3's files may have it inside alone:
  // an own head among the weights is then not tied in transformers either.
  const bool tied = family.whole.tied.value_or(family.tied);
  const bool is_absent = !family.whole.tied_inside && file.find(kTied) == nullptr;
  if (is_absent && text.flag(kTied, tied) != tied)
    text.refuse(kTied, fmt::format("{} or the same key outside text_config, which counts", tied));
  part.update(text.object());
  part["model_type"] = family.name;
  if (is_absent) part[kTied] = tied;
  if (!family.whole.caps_logits) part.erase("final_logit_softcapping");
  for (const char* key : {kTied, "dtype", "torch_dtype", "quantization_config"}) {
    const json* const outside = file.find(key);
    const json* const inside = text.find(key);
    if (outside != nullptr && inside != nullptr && *outside != *inside) {
      text.refuse(key, fmt::format("the same as {} outside: {}", key, shown(*outside)));
    }
    if (outside != nullptr) part[key] = *outside;
  }
  return part;
}

void parse_heads(const ConfigReader& settings, const Family& family, Config& config) {
  config.num_attention_heads = settings.size("num_attention_heads", kMaxHeads);
  const int64_t heads = config.num_attention_heads;
  constexpr const char* kKeyValueHeads = "num_key_value_heads";
  // null is as many as there are; where the key is absent, most classes have a number of their own.
  const bool of_class = family.key_value_heads > 0 && !settings.has(kKeyValueHeads);
  config.num_key_value_heads =
      settings.size(kKeyValueHeads, kMaxHeads, of_class ? family.key_value_heads : heads);
  if (heads % config.num_key_value_heads != 0) {
    settings.refuse(
        kKeyValueHeads,
        fmt::format("a divisor of num_attention_heads ({}){}", heads,
                    of_class ? fmt::format(", not the {} of its class", family.key_value_heads) : ""));
  }
  if (family.latent) return;  // heads of other sizes: parse_latent
  if (family.shared_blocks) return parse_block_heads(settings, config);
  int64_t fallback = family.head_dim;
  if (fallback == 0 && (config.hidden_size % heads == 0 || !family.heads_divide))
    fallback = config.hidden_size / heads;
  // transformers takes 128 for a Qwen3 without head_dim, other readers the quotient; for a Ministral 3 and a
  // GPT-OSS it takes its own number where the key is absent and the quotient where it is null.
  if (family.head_dim_disputed && config.hidden_size != heads * family.head_dim) fallback = 0;
  config.head_dim = fallback > 0 ? settings.size("head_dim", kMaxHeadDim, fallback)
                                 : settings.size("head_dim", kMaxHeadDim);
  if (config.head_dim % 2 != 0) {
    settings.refuse("head_dim", fmt::format("an even number, not {}", config.head_dim));
  }
  if (family.heads_fill_hidden && heads * config.head_dim != config.hidden_size) {
    settings.refuse("head_dim", fmt::format("hidden_size / num_attention_heads: {} x {} is not {}", heads,
                                            config.head_dim, config.hidden_size));
  }
}

// nn.Embedding counts a negative padding_idx from the end, and refuses one beyond the vocabulary.
void parse_pad_token(const ConfigReader& settings, const Family& family, Config& config) {
  if (family.pad_token_unread) return;
  std::optional<int64_t> fallback;
  if (family.pad_token_id >= 0) fallback = family.pad_token_id;
  std::optional<int64_t> token;
  if (!settings.has("pad_token_id")) token = fallback;
  const json* const value = settings.find("pad_token_id");
  const bool is_integer = value != nullptr && value->is_number_integer();
  // Far ids would not fit into 64 bits with a sign.
  const bool is_near = is_integer && std::abs(value->get<double>()) <= static_cast<double>(kMaxVocab);
  if (is_near) token = value->get<int64_t>();
  if ((value != nullptr && !is_near) ||
      (token && (*token < -config.vocab_size || *token >= config.vocab_size))) {
    const std::string absent = fallback ? fmt::format(", absent: {}", *fallback) : "";
    settings.refuse("pad_token_id",
                    fmt::format("null or an integer from {} to {} (from the end where negative{})",
                                -config.vocab_size, config.vocab_size - 1, absent));
  }
  if (token) config.pad_token_id = *token < 0 ? *token + config.vocab_size : *token;
}

void parse_dtype(const ConfigReader& settings, Config& config) {
  config.dtype =
      agreed(settings, "dtype", settings.text("dtype"), "torch_dtype", settings.text("torch_dtype"))
          .value_or(stored_packed(settings) ? "bfloat16" : config.dtype);
  if (std::find(kModelDtypes.begin(), kModelDtypes.end(), config.dtype) == kModelDtypes.end()) {
    settings.refuse(settings.find("dtype") != nullptr ? "dtype" : "torch_dtype",
                    fmt::format("one of {}", fmt::join(kModelDtypes, ", ")));
  }
}

/// A model with a score where the LM head would be, as transformers saves its
/// <Model>ForSequenceClassification.
bool parse_value_model(const ConfigReader& settings) {
  const json* const architectures = settings.find("architectures");
  const bool classifies =
      architectures != nullptr && architectures->is_array() &&
      std::any_of(architectures->begin(), architectures->end(), [](const json& name) {
        return name.is_string() && name.get<std::string>().ends_with("ForSequenceClassification");
      });
  if (!classifies) return false;
  const json* const labels = settings.find("id2label");
  const bool is_score =
      labels != nullptr ? labels->size() == 1 : settings.size("num_labels", kMaxVocab, 2) == 1;
  if (!is_score)
    settings.refuse(labels != nullptr ? "id2label" : "num_labels", "one label, whose logit is a score");
  return true;
}

// The key of the width of dense MLPs.
const char* mlp_width_key(const ConfigReader& settings, const Family& family) {
  const auto is_there = [&](const char* key) {
    const json* const value = settings.find(key);
    return value != nullptr && *value != 0;
  };
  // Where no layer has a dense MLP there need not be its width.
  if (family.experts.always && !is_there(family.mlp_width)) return "moe_intermediate_size";
  if (family.experts.shared_may_lack && !is_there(family.mlp_width)) return "intermediate_size";
  return family.convolutions && is_there(kConvolutionsMlpWidth) ? kConvolutionsMlpWidth : family.mlp_width;
}

// Kimi Linear's files say so, and its class reads either.
const ConfigReader::OtherNames kKimiNames = {{"max_position_embeddings", "model_max_length"},
                                             {"norm_topk_prob", "moe_renormalize"},
                                             {"n_group", "num_expert_group"},
                                             {"num_local_experts", "num_experts"},
                                             {"num_experts_per_tok", "num_experts_per_token"},
                                             {"n_shared_experts", "num_shared_experts"}};

// What LFM3's class reads as well as its own name.
const ConfigReader::OtherNames kLfm3Names = {{"norm_eps", "rms_norm_eps"}};

Config parse_settings(const ConfigReader& given) {
  const Family& family = find_family(given);
  const bool key_blocks = family.indexers == Indexers::kOfKeyBlocks;
  const json own = family.step         ? in_words_of_step(given)
                   : family.compressed ? in_words_of_deepseek_v4(given)
                   : key_blocks        ? in_words_of_minimax_m3(given)
                                       : json::object();
  const ConfigReader settings = family.step || family.compressed || key_blocks ? given.of(own)
                                : family.kimi ? given.with_other_names(kKimiNames)
                                : family.lfm3 ? given.with_other_names(kLfm3Names)
                                              : given;
  Config config;
  config.family = family.name;
  config.vocab_size = settings.size("vocab_size", kMaxVocab);
  config.hidden_size = settings.size("hidden_size", kMaxHidden);
  std::optional<int64_t> absent_width;
  if (family.shared_blocks) absent_width = 4 * config.hidden_size;
  config.intermediate_size = settings.size(mlp_width_key(settings, family), kMaxIntermediate, absent_width);
  config.num_hidden_layers = family.one_part_layers ? static_cast<int64_t>(layer_parts(settings).size())
                                                    : settings.size("num_hidden_layers", kMaxLayers);
  parse_heads(settings, family, config);
  // The length a model was trained for limits nothing here, but some scalings of positions start from it.
  config.max_position_embeddings = settings.size("max_position_embeddings", kMaxPositions, family.positions);
  config.rms_norm_eps = settings.positive(family.norm_eps, family.rms_norm_eps);
  config.tie_word_embeddings = settings.flag("tie_word_embeddings", family.tied);
  if (family.convolutions)
    config.tie_word_embeddings = settings.flag("tie_embedding", config.tie_word_embeddings);
  parse_pad_token(settings, family, config);
  parse_dtype(settings, config);
  parse_family(settings, family, config);
  parse_rope(settings, family, config);
  if (family.compressed) check_compressed(settings, config);
  if (key_blocks) check_key_blocks(settings, config);
  if (family.qwen4_exp) check_qwen4_exp(settings, config);
  if (family.trained_positions) parse_latent_sources(settings, config);
  config.value_model = parse_value_model(settings);
  return config;
}

}  // namespace

bool Config::has_indexer(int64_t layer) const {
  if (is_compressed()) return has_blocks(layer) && compressed.overlaps_in(layer);
  if (picks_key_blocks()) return indexer.layers[static_cast<size_t>(layer)];
  return has_indexers() && attends(layer) && picker_of(layer) == layer;
}

PickKind Config::pick_kind() const {
  if (picks_key_blocks()) return {indexer.topk, indexer.block, indexer.heads, /*are_open=*/true};
  for (int64_t layer = 0; layer < num_hidden_layers; ++layer) {
    if (is_compressed() && has_indexer(layer))
      return {.topk = indexer.topk, .rate = compressed.rate_of(layer)};
  }
  return {.topk = indexer.topk, .rate = indexer.rows_of_pick()};
}

double Config::mlp_limit(int64_t layer, bool of_expert) const {
  const std::vector<double>& limits = of_expert ? expert_limits : mlp_limits;
  return limits.empty() ? 0.0 : limits[static_cast<size_t>(layer)];
}

int64_t Config::producer_of(int64_t layer) const {
  if (!shares_keys_values(layer)) return layer;
  if (latent.shares(layer)) return latent.sources[static_cast<size_t>(layer)];
  int64_t producer = num_hidden_layers - gemma4.num_kv_shared_layers - 1;
  while (has_window(producer) != has_window(layer)) --producer;
  return producer;
}

bool Config::has_consumers(int64_t layer) const {
  if (shares_keys_values(layer)) return false;
  for (int64_t above = layer + 1; above < num_hidden_layers; ++above) {
    if (shares_keys_values(above) && producer_of(above) == layer) return true;
  }
  return false;
}

NormNames Config::norm_names(int64_t layer) const {
  if (has_shared_blocks())
    return {runs_block(layer) ? "mamba_decoder.input_layernorm" : "input_layernorm", "", "", ""};
  if (!no_mixer.empty())
    return has_mixer(layer) ? NormNames{"norm", "", "", ""} : NormNames{"", "", "norm", ""};
  if (has_low_rank_streams()) return {};
  if (parallel) return {"input_layernorm", "", "", ""};
  if (norm_after) return {"", "post_attention_layernorm", "", "post_feedforward_layernorm"};
  if (glm_norm_names)
    return {"input_layernorm", "post_self_attn_layernorm", "post_attention_layernorm", "post_mlp_layernorm"};
  const FamilyModules& modules = modules_of(*this);
  if (sandwich_norms && modules.after_attention != nullptr)
    return {modules.before_attention, modules.after_attention, modules.before_mlp, modules.after_mlp};
  if (sandwich_norms) {
    return {"input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm",
            "post_feedforward_layernorm"};
  }
  return {modules.before_attention, "", modules.before_mlp, ""};
}

Config parse_config(std::string_view text, const std::string& where) {
  const json document = parse_config_json(text, where);
  const ConfigReader file(document, where);
  const json* const type = file.find("model_type");
  const auto text_of = [](const json* value) {
    return value != nullptr && value->is_string() ? value->get<std::string>() : std::string();
  };
  const json* const inner = file.find("text_config");
  const json* const text_type = inner != nullptr && inner->is_object() && inner->contains("model_type")
                                    ? &inner->at("model_type")
                                    : nullptr;
  const Family* const row = find_text_family(text_of(type), text_of(text_type));
  const bool is_flat =
      row != nullptr && inner == nullptr && row->alias != nullptr && text_of(type) == row->alias;
  if (row == nullptr || is_flat) return parse_settings(file);
  const json part = text_part(file, *row);
  return parse_settings(ConfigReader(part, where, "text_config."));
}

Config read_config(const std::filesystem::path& path) {
  return parse_config(read_text_file(path), path.string());
}

}  // namespace streambp
