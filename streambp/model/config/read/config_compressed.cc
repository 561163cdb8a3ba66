// DeepSeek V4 in config.json (transformers, configuration_deepseek_v4.py): older files say some of it in
// words of DeepSeek's own reader.
#include <algorithm>
#include <cmath>
#include <map>

#include "streambp/model/config/family.h"
#include "streambp/model/config/read/config_reader.h"

namespace streambp {
namespace {

using nlohmann::json;

constexpr const char *kSlidingLayer = "sliding_attention", *kSparseLayer = "compressed_sparse_attention",
                     *kHeavyLayer = "heavily_compressed_attention";
constexpr const char *kLayerKinds = "layer_types", *kMlpKinds = "mlp_layer_types",
                     *kCompressRates = "compress_rates";
constexpr const char *kRopeParameters = "rope_parameters", *kPartialRotary = "partial_rotary_factor";

json take_key(json& settings, const char* key) {
  const auto at = settings.find(key);
  if (at == settings.end()) return nullptr;
  json value = *at;
  settings.erase(at);
  return value;
}

/// Of each layer, from a list of rates or by the class's default: two of heavy compression, then in turn.
json kinds_by_ratios(const ConfigReader& given, const json& ratios, int64_t layers) {
  json types = json::array();
  if (ratios.is_null()) {
    for (int64_t layer = 0; layer < layers; ++layer)
      types.push_back(layer < 2 || layer % 2 == 0 ? kHeavyLayer : kSparseLayer);
    return types;
  }
  const std::map<int64_t, const char*> names = {{0, kSlidingLayer}, {4, kSparseLayer}, {128, kHeavyLayer}};
  const auto is_known = [&](const json& ratio) {
    return ratio.is_number_integer() && names.contains(ratio.get<int64_t>());
  };
  const bool good = ratios.is_array() && ratios.size() >= static_cast<std::size_t>(layers) &&
                    std::all_of(ratios.begin(), ratios.end(), is_known);
  if (!good) given.refuse("compress_ratios", fmt::format("0, 4 or 128 for each of the {} layers", layers));
  for (int64_t layer = 0; layer < layers; ++layer)
    types.push_back(names.at(ratios[static_cast<std::size_t>(layer)].get<int64_t>()));
  return types;
}

/// {main, compress} as the objects of layers with a window alone and of those with blocks.
json ropes_of(const ConfigReader& given, json& own) {
  json scaling = take_key(own, "rope_scaling"), parameters = take_key(own, kRopeParameters);
  const json theta = take_key(own, "rope_theta"), of_blocks = take_key(own, "compress_rope_theta");
  if (!scaling.is_null() && !parameters.is_null() && parameters != scaling)
    given.refuse("rope_scaling", "no rope_parameters besides");
  if (parameters.is_null()) parameters = scaling.is_null() ? json::object() : scaling;
  if (!parameters.is_object()) given.refuse(kRopeParameters, "a JSON object");
  if (parameters.contains("main") || parameters.contains("compress")) {
    for (const char* key : {"main", "compress"}) {
      if (!parameters.contains(key) || !parameters[key].is_object())
        given.refuse(kRopeParameters, "both main and compress, or neither");
    }
    return {{kSlidingLayer, parameters["main"]}, {"full_attention", parameters["compress"]}};
  }
  json blocks = parameters;
  blocks["rope_theta"] = of_blocks.is_null() ? json(160000.0) : of_blocks;
  const bool is_yarn = blocks.value("rope_type", blocks.value("type", json("default"))) == "yarn";
  if (is_yarn && !blocks.contains("attention_factor")) blocks["attention_factor"] = 1.0;
  return {
      {kSlidingLayer, {{"rope_type", "default"}, {"rope_theta", theta.is_null() ? json(10000.0) : theta}}},
      {"full_attention", blocks}};
}

/// A key for each type of layers with blocks.
int64_t rate_of(const ConfigReader& settings, const char* type, int64_t absent) {
  if (settings.find(kCompressRates) == nullptr) return absent;
  return settings.inner(kCompressRates).size(type, kMaxPositions);
}

}  // namespace

json in_words_of_deepseek_v4(const ConfigReader& given) {
  json own = given.object();
  const int64_t layers = given.size("num_hidden_layers", kMaxLayers);
  const json ratios = take_key(own, "compress_ratios"), hashed = take_key(own, "num_hash_layers");
  if (given.find(kLayerKinds) == nullptr) own[kLayerKinds] = kinds_by_ratios(given, ratios, layers);
  if (given.find(kMlpKinds) == nullptr) {
    const int64_t count = hashed.is_null() ? 3 : given.size_from_zero("num_hash_layers", kMaxLayers, 3);
    own[kMlpKinds] = json::array();
    for (int64_t layer = 0; layer < layers; ++layer)
      own[kMlpKinds].push_back(layer < count ? "hash_moe" : "moe");
  }
  for (const auto& [key, type] :
       {std::pair{"compress_rate_csa", kSparseLayer}, {"compress_rate_hca", kHeavyLayer}}) {
    const json rate = take_key(own, key);
    if (rate.is_null()) continue;
    if (given.find(kCompressRates) == nullptr && !own.contains(kCompressRates))
      own[kCompressRates] = {{kSparseLayer, 4}, {kHeavyLayer, 128}};
    own[kCompressRates][type] = rate;
  }
  own[kRopeParameters] = ropes_of(given, own);
  const json turning = take_key(own, "qk_rope_head_dim");
  if (!turning.is_null() && given.find(kPartialRotary) == nullptr) {
    const auto size = static_cast<double>(given.size("head_dim", kMaxHeadDim, 512));
    own[kPartialRotary] = static_cast<double>(given.size("qk_rope_head_dim", kMaxHeadDim)) / size;
  }
  return own;
}

void parse_compressed(const ConfigReader& settings, Config& config) {
  settings.only("num_key_value_heads", 1);
  settings.only("intermediate_size",
                config.intermediate_size);  // the class's other name of the experts' width
  config.num_key_value_heads = 1;
  constexpr int64_t kMaxRank = kMaxHidden;
  CompressedSettings& compressed = config.compressed;
  compressed.q_lora_rank = settings.size("q_lora_rank", kMaxRank, 1024);
  compressed.window = settings.size("sliding_window", kMaxPositions, 128);
  compressed.o_groups = settings.size("o_groups", config.num_attention_heads, 8);
  compressed.o_lora_rank = settings.size("o_lora_rank", kMaxRank, 1024);
  if (config.num_attention_heads % compressed.o_groups != 0)
    settings.refuse("o_groups",
                    fmt::format("a divisor of num_attention_heads ({})", config.num_attention_heads));
  const json& types = *settings.find(kLayerKinds);
  const auto layers = static_cast<std::size_t>(config.num_hidden_layers);
  bool good = types.is_array() && types.size() == layers;
  for (std::size_t i = 0; good && i < layers; ++i) {
    good = types[i] == kSlidingLayer || types[i] == kSparseLayer || types[i] == kHeavyLayer;
    compressed.overlaps.push_back(types[i] == kSparseLayer);
    compressed.rates.push_back(types[i] == kSlidingLayer  ? 0
                               : types[i] == kSparseLayer ? rate_of(settings, kSparseLayer, 4)
                                                          : rate_of(settings, kHeavyLayer, 128));
  }
  if (!good)
    settings.refuse(kLayerKinds, fmt::format("{}, {} or {} for each of the {} layers", kSlidingLayer,
                                             kSparseLayer, kHeavyLayer, layers));
  IndexerSettings indexer;
  indexer.topk = settings.size("index_topk", kMaxPositions, 512);
  indexer.heads = settings.size("index_n_heads", kMaxHeads, 64);
  indexer.head_dim = settings.size("index_head_dim", kMaxHeadDim, 128);
  indexer.rotates_last = true;
  indexer.norm_eps = config.rms_norm_eps;
  const bool picks =
      std::find(compressed.overlaps.begin(), compressed.overlaps.end(), true) != compressed.overlaps.end();
  if (picks) config.indexer = indexer;
  settings.only("router_jitter_noise", 0);
}

void check_compressed(const ConfigReader& settings, const Config& config) {
  if (config.has_indexers() && config.indexer.head_dim < config.rotary_dim)
    settings.refuse("index_head_dim", fmt::format("at least the {} entries that rotate", config.rotary_dim));
}

void parse_hashed_mixture(const ConfigReader& settings, Config& config) {
  MixtureSettings& mixture = config.mixture;
  const int64_t layers = config.num_hidden_layers, limit = kMaxExpertsOfAllLayers / layers;
  const auto experts = agreed(settings, "n_routed_experts", settings.optional_size("n_routed_experts", limit),
                              "num_local_experts", settings.optional_size("num_local_experts", limit));
  mixture.num_experts = experts.value_or(256);
  mixture.num_experts_per_tok = settings.size("num_experts_per_tok", mixture.num_experts, 6);
  mixture.moe_intermediate_size = config.intermediate_size;
  // The class has one such expert, whatever the key says.
  settings.only("n_shared_experts", 1);
  mixture.shared_expert_intermediate_size = config.intermediate_size;
  mixture.shared_expert_ungated = mixture.corrected = mixture.norm_topk_prob = true;
  mixture.sqrt_softplus_scores = true;
  mixture.added_to_sum = 1e-20;
  mixture.routed_scaling_factor = settings.positive("routed_scaling_factor", 1.5);
  settings.only("norm_topk_prob", true);  // the class always makes weights sum to 1
  settings.only("scoring_func", "sqrtsoftplus");
  settings.only("topk_method", "noaux_tc");
  parse_router_loss(settings, mixture);
  mixture.balanced_by_softmax = true;
  const json& types = *settings.find(kMlpKinds);
  bool good = types.is_array() && types.size() == static_cast<std::size_t>(layers);
  for (std::size_t i = 0; good && i < types.size(); ++i) {
    good = types[i] == "hash_moe" || types[i] == "moe";
    mixture.hashed.push_back(types[i] == "hash_moe");
  }
  if (!good) settings.refuse(kMlpKinds, fmt::format("hash_moe or moe for each of the {} layers", layers));
  mixture.sparse.assign(static_cast<std::size_t>(layers), true);
}

}  // namespace streambp
