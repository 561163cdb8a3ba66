// Mixtures of experts in config.json (transformers, configuration_*.py).
#include <algorithm>

#include "streambp/model/config/family.h"
#include "streambp/model/config/read/config_reader.h"

namespace streambp {
namespace {

using nlohmann::json;

std::vector<bool> sparse_layers(const ConfigReader& settings, int64_t layers) {
  const int64_t step = settings.size("decoder_sparse_step", kMaxLayers, 1);
  std::vector<bool> sparse;
  for (int64_t layer = 1; layer <= layers; ++layer) sparse.push_back(layer % step == 0);
  const json* const dense = settings.find("mlp_only_layers");
  if (dense == nullptr) return sparse;
  const auto is_layer = [&](const json& value) {
    return value.is_number_unsigned() && value.get<uint64_t>() < static_cast<uint64_t>(layers);
  };
  if (!dense->is_array() || !std::all_of(dense->begin(), dense->end(), is_layer)) {
    settings.refuse("mlp_only_layers", fmt::format("a list of layers from 0 to {}", layers - 1));
  }
  for (const json& layer : *dense) sparse[layer.get<std::size_t>()] = false;
  return sparse;
}

constexpr const char* kMlpTypes = "mlp_layer_types";

// Scores are corrected sigmoids, whose sum DeepSeek V3's class and its kin keep from 0.
void set_sigmoids(MixtureSettings& mixture) {
  mixture.sigmoid_scores = mixture.corrected = true;
  mixture.added_to_sum = 1e-20;
}

// Sizes and rules of the experts, but for their width.
void parse_experts(const ConfigReader& settings, const FamilyExperts& family, const Config& config,
                   MixtureSettings& mixture) {
  // transformers 5 may write num_local_experts for num_experts; of Mixtral it is the key itself.
  const int64_t limit = kMaxExpertsOfAllLayers / config.num_hidden_layers;
  const auto experts = agreed(settings, "num_experts", settings.optional_size("num_experts", limit),
                              "num_local_experts", settings.optional_size("num_local_experts", limit));
  mixture.num_experts = experts ? *experts : settings.size("num_experts", limit);
  // The other classes know it by one name alone.
  if (!family.two_names && settings.find("num_experts") == nullptr)
    settings.refuse("num_experts", "an integer (num_local_experts is not read)");
  mixture.num_experts_per_tok = settings.size("num_experts_per_tok", mixture.num_experts);
  parse_router_loss(settings, mixture);
}

// Mixtral, GPT-OSS and MiniMax M2: all layers have experts, as wide as intermediate_size, and the chosen
// ones' logits are what the softmax is of, which is the same as dividing by the sum of their probabilities
// (MiniMax M2: of their sigmoids).
void parse_all_sparse(const ConfigReader& settings, const FamilyExperts& family, int64_t layers,
                      MixtureSettings& mixture) {
  settings.only("router_jitter_noise", 0);
  settings.only("norm_topk_prob", true);
  for (const char* key : {"moe_intermediate_size", "mlp_only_layers", "decoder_sparse_step"}) {
    settings.only(key, nullptr);
  }
  mixture.moe_intermediate_size = settings.size("intermediate_size", kMaxIntermediate / mixture.num_experts);
  mixture.norm_topk_prob = true;
  mixture.block_sparse_moe_names = family.block_sparse_moe_names;
  mixture.biased_interleaved = family.biased_interleaved;
  if (family.sigmoid_scores) {
    set_sigmoids(mixture);
    mixture.balanced_by_softmax = true;
    settings.only("scoring_func", "sigmoid");
  }
  // Of the files of OpenAI's own reader, which hold both.
  if (mixture.biased_interleaved) settings.only("experts_per_token", mixture.num_experts_per_tok);
  mixture.sparse.assign(static_cast<std::size_t>(layers), true);
}

// How the chosen experts of sigmoids are weighted, and among which groups the choice is.
void parse_groups(const ConfigReader& settings, const FamilyExperts& family, MixtureSettings& mixture) {
  mixture.routed_scaling_factor = settings.positive("routed_scaling_factor", family.scale);
  mixture.n_group = settings.size("n_group", mixture.num_experts, family.groups);
  mixture.topk_group = settings.size("topk_group", mixture.n_group, family.topk_groups);
  const int64_t of_group = mixture.num_experts / mixture.n_group;
  if (mixture.num_experts % mixture.n_group != 0 || of_group < 2)
    settings.refuse("n_group", fmt::format("a divisor of the {} experts that leaves groups of 2 or more",
                                           mixture.num_experts));
  if (mixture.num_experts_per_tok > mixture.topk_group * of_group)
    settings.refuse("num_experts_per_tok", fmt::format("at most {}, the experts of the topk_group groups",
                                                       mixture.topk_group * of_group));
}

// DeepSeek V3, GLM-4.5, 4.7 Flash and 5.3, Kimi Linear, Mistral 4 and Mistral Large 4.
void parse_sigmoid_mixture(const ConfigReader& settings, const Family& of_class, int64_t layers,
                           MixtureSettings& mixture) {
  const FamilyExperts& family = of_class.experts;
  const int64_t limit = kMaxExpertsOfAllLayers / layers;
  const auto experts = agreed(settings, "n_routed_experts", settings.optional_size("n_routed_experts", limit),
                              "num_local_experts", settings.optional_size("num_local_experts", limit));
  mixture.num_experts = experts ? *experts : settings.size("n_routed_experts", limit, family.experts);
  mixture.num_experts_per_tok = settings.size("num_experts_per_tok", mixture.num_experts, family.per_token);
  mixture.moe_intermediate_size =
      settings.size("moe_intermediate_size", kMaxIntermediate / mixture.num_experts, family.width);
  mixture.shared_expert_intermediate_size =
      mixture.moe_intermediate_size *
      settings.size("n_shared_experts", kMaxIntermediate / mixture.moe_intermediate_size, 1);
  mixture.shared_expert_ungated = true;
  constexpr const char* kNormalised = "norm_topk_prob";
  if (family.softmax_scores) {
    if (!family.reads_norm) settings.only(kNormalised, true);
    mixture.wide_logits = family.wide_logits;
    mixture.no_router_loss = true;
    mixture.added_to_sum = 1e-20;
  } else {
    set_sigmoids(mixture);
  }
  mixture.norm_topk_prob =
      (family.softmax_scores && !family.reads_norm) ||
      settings.flag(kNormalised, settings.has(kNormalised) ? family.normalised_null : family.normalised);
  parse_groups(settings, family, mixture);
  settings.only("num_experts", mixture.num_experts);
  settings.only("shared_expert_intermediate_size", nullptr);
  // What the files of DeepSeek's own reader say of it.
  settings.only("scoring_func", family.softmax_scores ? "softmax" : "sigmoid");
  settings.only("topk_method", "noaux_tc");
  settings.only("moe_layer_freq", 1);
  if (of_class.glm5_next) {
    parse_router_loss(settings, mixture);
    mixture.balanced_by_softmax = true;
  } else {
    // transformers has no such loss for these classes, whatever output_router_logits says; aux_loss_alpha and
    // seq_aux it does not read.
    settings.only("router_aux_loss_coef", 0);
  }
  mixture.kimi_names = of_class.kimi;
  mixture.stacked = family.stacked;
  if (family.by_layer_types && settings.find(kMlpTypes) != nullptr) {
    mixture.sparse = sparse_by_types(settings, layers);
    return;
  }
  constexpr const char* kDense = "first_k_dense_replace";
  if (family.by_types_alone) settings.only(kDense, family.dense_layers);
  const int64_t dense = settings.size_from_zero(kDense, kMaxLayers, family.dense_layers);
  for (int64_t layer = 0; layer < layers; ++layer) mixture.sparse.push_back(layer >= dense);
}

// Gemma 4's, in every layer next to its MLP. transformers knows no loss that balances them.
void parse_next_to_mlp(const ConfigReader& settings, Config& config) {
  MixtureSettings& mixture = config.mixture;
  const int64_t layers = config.num_hidden_layers;
  if (!settings.flag("enable_moe_block", false)) {
    for (const char* key : {"num_experts", "top_k_experts", "moe_intermediate_size"})
      settings.only(key, nullptr);
    mixture.sparse.assign(static_cast<std::size_t>(layers), false);
    return;
  }
  mixture.num_experts = settings.size("num_experts", kMaxExpertsOfAllLayers / layers);
  mixture.num_experts_per_tok = settings.size("top_k_experts", mixture.num_experts);
  mixture.moe_intermediate_size =
      settings.size("moe_intermediate_size", kMaxIntermediate / mixture.num_experts);
  mixture.norm_topk_prob = mixture.next_to_mlp = true;
  mixture.sparse.assign(static_cast<std::size_t>(layers), true);
  settings.only("router_aux_loss_coef", 0);
}

// 0 is what the files of Qwen3-Coder say; Qwen3-MoE's class has no such expert whatever they say.
void refuse_shared_expert(const ConfigReader& settings) {
  const nlohmann::json* const size = settings.find("shared_expert_intermediate_size");
  if (size == nullptr || *size != 0) settings.only("shared_expert_intermediate_size", nullptr);
}

// Nemotron-H.
void parse_by_layers(const ConfigReader& settings, Config& config) {
  MixtureSettings& mixture = config.mixture;
  for (const char part : layer_parts(settings)) mixture.sparse.push_back(part == 'E');
  if (std::find(mixture.sparse.begin(), mixture.sparse.end(), true) == mixture.sparse.end()) return;
  const int64_t limit = kMaxExpertsOfAllLayers / config.num_hidden_layers;
  mixture.num_experts = settings.size("n_routed_experts", limit, 8);
  mixture.num_experts_per_tok = settings.size("num_experts_per_tok", mixture.num_experts, 2);
  mixture.moe_intermediate_size =
      settings.size("moe_intermediate_size", kMaxIntermediate / mixture.num_experts, 7688);
  mixture.shared_expert_intermediate_size =
      settings.size("moe_shared_expert_intermediate_size", kMaxIntermediate, 7688);
  mixture.shared_expert_ungated = true;
  set_sigmoids(mixture);
  mixture.norm_topk_prob = settings.flag("norm_topk_prob", true);
  parse_groups(settings, {}, mixture);
  settings.only("num_local_experts", mixture.num_experts);
  mixture.moe_hidden_size = settings.optional_size("moe_latent_size", kMaxHidden).value_or(0);
  mixture.plain_latents = mixture.moe_hidden_size > 0;
}

// Granite's, of all layers or, in hybrids, none.
void parse_granite(const ConfigReader& settings, Config& config) {
  MixtureSettings& mixture = config.mixture;
  constexpr const char* kExperts = "num_local_experts";
  const json* const experts = settings.find(kExperts);
  const auto layers = static_cast<std::size_t>(config.num_hidden_layers);
  const bool may_lack = family_of(config).recurrent;
  mixture.sparse.assign(layers, !may_lack || experts == nullptr || *experts != 0);
  if (!mixture.sparse.front()) {
    settings.only("output_router_logits", false);
    return;
  }
  mixture.num_experts = settings.size(kExperts, kMaxExpertsOfAllLayers / config.num_hidden_layers, 8);
  settings.only("num_experts", nullptr);
  mixture.num_experts_per_tok = settings.size("num_experts_per_tok", mixture.num_experts, 2);
  mixture.moe_intermediate_size =
      settings.size("intermediate_size", kMaxIntermediate / mixture.num_experts, 11008);
  parse_router_loss(settings, mixture);
  mixture.norm_topk_prob = mixture.granite_names = mixture.shared_expert_ungated = true;
  const char* const width = family_of(config).mlp_width;
  const json* const shared = settings.find(width);
  if (width != std::string_view("intermediate_size") && shared != nullptr && *shared != 0)
    mixture.shared_expert_intermediate_size = config.intermediate_size;
}

// ERNIE 4.5's.
void parse_ernie(const ConfigReader& settings, Config& config) {
  MixtureSettings& mixture = config.mixture;
  const int64_t layers = config.num_hidden_layers;
  const int64_t limit = kMaxExpertsOfAllLayers / layers;
  const auto either = [&](const char* key, const char* other, int64_t largest, int64_t absent) {
    return agreed(settings, key, settings.optional_size(key, largest), other,
                  settings.optional_size(other, largest))
        .value_or(absent);
  };
  mixture.num_experts = either("moe_num_experts", "num_experts", limit, 64);
  mixture.num_experts_per_tok = either("moe_k", "num_experts_per_tok", mixture.num_experts, 6);
  mixture.moe_intermediate_size =
      settings.size("moe_intermediate_size", kMaxIntermediate / mixture.num_experts, 1536);
  mixture.shared_expert_intermediate_size =
      mixture.moe_intermediate_size *
      settings.size_from_zero("moe_num_shared_experts", kMaxIntermediate / mixture.moe_intermediate_size, 2);
  mixture.shared_expert_ungated = mixture.corrected = mixture.norm_topk_prob = true;
  mixture.least_sum = settings.positive("moe_norm_min", 1e-12);
  parse_router_loss(settings, mixture);
  settings.only("use_bias", false);  // with which the head has one too
  const int64_t first = settings.size_from_zero("moe_layer_start_index", kMaxLayers, 1);
  constexpr const char* kLast = "moe_layer_end_index";
  const json* const end = settings.find(kLast);
  const int64_t last =
      end == nullptr || *end == -1 ? layers - 1 : settings.size_from_zero(kLast, kMaxLayers, 0);
  const int64_t interval = settings.size("moe_layer_interval", kMaxLayers, 1);
  for (int64_t layer = 0; layer < layers; ++layer)
    mixture.sparse.push_back((layer + 1) % interval == 0 && layer >= first && layer <= last);
  if (std::find(mixture.sparse.begin(), mixture.sparse.end(), true) == mixture.sparse.end())
    settings.refuse("moe_layer_start_index", "one that leaves a layer with experts");
}

// LFM2's.
void parse_after_dense(const ConfigReader& settings, Config& config) {
  MixtureSettings& mixture = config.mixture;
  const int64_t layers = config.num_hidden_layers;
  mixture.num_experts = settings.size("num_experts", kMaxExpertsOfAllLayers / layers, 32);
  mixture.num_experts_per_tok = settings.size("num_experts_per_tok", mixture.num_experts, 4);
  mixture.moe_intermediate_size =
      settings.size("moe_intermediate_size", kMaxIntermediate / mixture.num_experts, 1792);
  mixture.sigmoid_scores = true;
  mixture.corrected = settings.flag("use_expert_bias", true);
  mixture.added_to_sum = 1e-6;
  mixture.norm_topk_prob = settings.flag("norm_topk_prob", true);
  mixture.routed_scaling_factor = settings.positive("routed_scaling_factor", 1.0);
  constexpr const char* kDense = "num_dense_layers";
  const int64_t first = settings.size_from_zero(kDense, kMaxLayers, 2);
  if (first >= layers) settings.refuse(kDense, fmt::format("less than the {} layers", layers));
  for (int64_t layer = 0; layer < layers; ++layer) mixture.sparse.push_back(layer >= first);
}

// Step 3.7's, in transformers' words (in_words_of_step).
void parse_step_mixture(const ConfigReader& settings, Config& config) {
  MixtureSettings& mixture = config.mixture;
  mixture.sparse = sparse_by_types(settings, config.num_hidden_layers);
  if (std::find(mixture.sparse.begin(), mixture.sparse.end(), true) == mixture.sparse.end()) return;
  mixture.num_experts =
      settings.size("n_routed_experts", kMaxExpertsOfAllLayers / config.num_hidden_layers, 288);
  mixture.num_experts_per_tok = settings.size("num_experts_per_tok", mixture.num_experts, 8);
  mixture.moe_intermediate_size =
      settings.size("moe_intermediate_size", kMaxIntermediate / mixture.num_experts, 1280);
  mixture.shared_expert_intermediate_size = settings.size("share_expert_dim", kMaxIntermediate, 1280);
  mixture.shared_expert_ungated = mixture.norm_topk_prob = true;
  set_sigmoids(mixture);
  mixture.added_to_sum = 0.0;
  mixture.routed_scaling_factor = settings.positive("moe_router_scaling_factor", 1.0);
}

// MiniMax M3's, in transformers' words (in_words_of_minimax_m3).
void parse_beside_dense(const ConfigReader& settings, Config& config) {
  MixtureSettings& mixture = config.mixture;
  constexpr const char* kShared = "shared_intermediate_size";
  mixture.sparse = sparse_by_types(settings, config.num_hidden_layers);
  parse_router_loss(settings, mixture);
  mixture.balanced_by_softmax = true;
  if (std::find(mixture.sparse.begin(), mixture.sparse.end(), true) == mixture.sparse.end()) return;
  const int64_t limit = kMaxExpertsOfAllLayers / config.num_hidden_layers;
  const auto experts =
      agreed(settings, "num_local_experts", settings.optional_size("num_local_experts", limit), "num_experts",
             settings.optional_size("num_experts", limit));
  mixture.num_experts = experts.value_or(128);
  mixture.num_experts_per_tok = settings.size("num_experts_per_tok", mixture.num_experts, 4);
  mixture.moe_intermediate_size =
      settings.size("intermediate_size", kMaxIntermediate / mixture.num_experts, 3072);
  mixture.shared_expert_intermediate_size = settings.size(kShared, kMaxIntermediate, 3072);
  mixture.shared_expert_ungated = mixture.norm_topk_prob = mixture.stacked = true;
  set_sigmoids(mixture);
  mixture.added_to_sum = 0.0;
  mixture.routed_scaling_factor = settings.positive("routed_scaling_factor", 2.0);
  for (const char* key : {"norm_topk_prob", "topk_method", "moe_intermediate_size"})
    settings.only(key, nullptr);
}

void parse_router(const ConfigReader& settings, const Family& family, Config& config) {
  const int64_t layers = config.num_hidden_layers;
  const FamilyExperts& of_family = family.experts;
  MixtureSettings& mixture = config.mixture;
  switch (of_family.router) {
    case Router::kGrouped:
      return parse_sigmoid_mixture(settings, family, layers, mixture);
    case Router::kNextToMlp:
      return parse_next_to_mlp(settings, config);
    case Router::kNone:
      for (const char* key : {"num_experts", "num_local_experts", "num_experts_per_tok"}) {
        const auto* const value = settings.find(key);
        if (value == nullptr || *value != 1)
          settings.only(key, nullptr);  // one is none, as Hunyuan's files say
      }
      mixture.sparse.assign(static_cast<std::size_t>(layers), false);
      return;
    case Router::kGranite:
      return parse_granite(settings, config);
    case Router::kErnie:
      return parse_ernie(settings, config);
    case Router::kAfterDense:
      return parse_after_dense(settings, config);
    case Router::kByLayers:
      return parse_by_layers(settings, config);
    case Router::kStep:
      return parse_step_mixture(settings, config);
    case Router::kBesideDense:
      return parse_beside_dense(settings, config);
    case Router::kMuseSpark:
      return parse_muse_spark_mixture(settings, config);
    case Router::kHashed:
      return parse_hashed_mixture(settings, config);
    case Router::kSoftmax:
    case Router::kOfAllLayers:
      break;
  }
  if (!of_family.shared) refuse_shared_expert(settings);
  parse_experts(settings, of_family, config, mixture);
  if (of_family.router == Router::kOfAllLayers) return parse_all_sparse(settings, of_family, layers, mixture);
  mixture.moe_intermediate_size =
      settings.size("moe_intermediate_size", kMaxIntermediate / mixture.num_experts);
  const bool is_fixed = of_family.always && !of_family.reads_norm;
  if (is_fixed) settings.only("norm_topk_prob", true);
  mixture.norm_topk_prob = is_fixed || settings.flag("norm_topk_prob", of_family.normalised);
  mixture.sparse = sparse_layers(settings, layers);
  if (of_family.always &&
      std::find(mixture.sparse.begin(), mixture.sparse.end(), false) != mixture.sparse.end())
    settings.refuse(settings.find("mlp_only_layers") != nullptr ? "mlp_only_layers" : "decoder_sparse_step",
                    "none: every layer has experts");
  if (of_family.shared) {
    mixture.shared_expert_intermediate_size =
        settings.size("shared_expert_intermediate_size", kMaxIntermediate);
  }
}

}  // namespace

std::vector<bool> sparse_by_types(const ConfigReader& settings, int64_t layers) {
  const json& types = *settings.find(kMlpTypes);
  std::vector<bool> sparse;
  bool good = types.is_array() && types.size() == static_cast<std::size_t>(layers);
  for (std::size_t i = 0; good && i < types.size(); ++i) {
    good = types[i] == "dense" || types[i] == "sparse";
    sparse.push_back(types[i] == "sparse");
  }
  if (!good) settings.refuse(kMlpTypes, fmt::format("dense or sparse for each of the {} layers", layers));
  return sparse;
}

void parse_router_loss(const ConfigReader& settings, MixtureSettings& mixture) {
  const double coefficient = settings.number("router_aux_loss_coef").value_or(0.001);
  if (!(coefficient >= 0.0)) settings.refuse("router_aux_loss_coef", "a number of at least 0");
  mixture.router_aux_loss_coef = coefficient;
  mixture.output_router_logits = settings.flag("output_router_logits", false);
}

void parse_mixture(const ConfigReader& settings, const Family& family, Config& config) {
  parse_router(settings, family, config);
  // What the class takes where the key is absent may be too much.
  const MixtureSettings& mixture = config.mixture;
  if (mixture.num_experts_per_tok > mixture.num_experts)
    settings.refuse(family.experts.router == Router::kErnie ? "moe_k" : "num_experts_per_tok",
                    fmt::format("at most the {} experts", mixture.num_experts));
}

}  // namespace streambp
