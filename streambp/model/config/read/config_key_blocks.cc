// MiniMax M3's text model in config.json (transformers, configuration_minimax_m3_vl.py): published files say
// some of it in words of MiniMax's own reader.
#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "streambp/model/config/family.h"
#include "streambp/model/config/read/config_reader.h"

namespace streambp {
namespace {

using nlohmann::json;

constexpr const char *kKindsOfLayers = "layer_types", *kKindsOfMlps = "mlp_layer_types";
constexpr const char *kLayerWithIndexer = "minimax_m3_sparse", *kLayerWithout = "full_attention";
constexpr const char *kOfSparse = "sparse_attention_config", *kExpertsOfLayers = "moe_layer_freq",
                     *kLayersWithIndexers = "sparse_attention_freq";

// The class's keys of indexers, and what sparse_attention_config calls them, which counts more there.
constexpr std::array<std::pair<const char*, const char*>, 5> kIndexerNames = {
    {{"index_n_heads", "sparse_num_index_heads"},
     {"index_head_dim", "sparse_index_dim"},
     {"index_block_size", "sparse_block_size"},
     {"index_topk_blocks", "sparse_topk_blocks"},
     {"index_local_blocks", "sparse_local_block"}}};

// What MiniMax's own reader is told and transformers' class has so.
const std::array<std::pair<const char*, json>, 8> kOfMiniMax = {{{"use_qk_norm", true},
                                                                 {"qk_norm_type", "per_head"},
                                                                 {"use_gemma_norm", true},
                                                                 {"attention_output_gate", false},
                                                                 {"scoring_func", "sigmoid"},
                                                                 {"use_routing_bias", true},
                                                                 {"n_shared_experts", 1},
                                                                 {"router_jitter_noise", 0}}};

// A word for each layer, by a list of numbers of which 0 means the second.
json words_of(const ConfigReader& settings, const char* key, int64_t layers, const char* of_others,
              const char* of_zeros) {
  const json& numbers = *settings.find(key);
  const auto is_number = [](const json& one) { return one.is_number_integer() || one.is_boolean(); };
  if (!numbers.is_array() || numbers.size() != static_cast<std::size_t>(layers) ||
      !std::all_of(numbers.begin(), numbers.end(), is_number))
    settings.refuse(key, fmt::format("a number for each of the {} layers", layers));
  json words = json::array();
  for (const json& one : numbers) words.push_back(one == 0 || one == false ? of_zeros : of_others);
  return words;
}

// What an indexer may have besides its choice, which transformers' class has not.
void refuse_index_values(const ConfigReader& sparse, const json& kinds) {
  constexpr const char* kKey = "sparse_disable_index_value";
  const json* const list = sparse.find(kKey);
  if (list == nullptr) return;
  bool good = list->is_array() && list->size() == kinds.size();
  for (std::size_t layer = 0; good && layer < kinds.size(); ++layer)
    good = kinds[layer] != kLayerWithIndexer || (*list)[layer] == 1 || (*list)[layer] == true;
  if (!good) sparse.refuse(kKey, "1 for each layer with an indexer: values of indexers are not supported");
}

}  // namespace

json in_words_of_minimax_m3(const ConfigReader& given) {
  json own = given.object();
  own.erase(kOfSparse);
  own.erase(kExpertsOfLayers);
  for (const auto& [key, value] : kOfMiniMax) {
    given.only(key, value);
    own.erase(key);
  }
  const int64_t layers = given.size("num_hidden_layers", kMaxLayers);
  const bool is_stated = given.find(kKindsOfLayers) != nullptr;
  if (!is_stated)
    own[kKindsOfLayers] = std::vector<std::string>(static_cast<std::size_t>(layers), kLayerWithout);
  if (given.find(kOfSparse) != nullptr) {
    const ConfigReader sparse = given.inner(kOfSparse);
    sparse.only("use_sparse_attention", true);
    sparse.only("sparse_score_type", "max");
    sparse.only("sparse_init_block", 0);
    for (const auto& [key, other] : kIndexerNames) {
      if (sparse.find(other) == nullptr) continue;
      if (given.find(key) != nullptr) given.only(key, *sparse.find(other));
      own[key] = *sparse.find(other);
    }
    if (sparse.find(kLayersWithIndexers) != nullptr) {
      const json kinds = words_of(sparse, kLayersWithIndexers, layers, kLayerWithIndexer, kLayerWithout);
      if (is_stated) given.only(kKindsOfLayers, kinds);
      own[kKindsOfLayers] = kinds;
    }
    refuse_index_values(sparse, own[kKindsOfLayers]);
  }
  if (given.find(kExpertsOfLayers) != nullptr) {
    const json kinds = words_of(given, kExpertsOfLayers, layers, "sparse", "dense");
    if (given.find(kKindsOfMlps) != nullptr) given.only(kKindsOfMlps, kinds);
    own[kKindsOfMlps] = kinds;
  }
  if (own.value(kKindsOfMlps, json()).is_null())
    own[kKindsOfMlps] = std::vector<std::string>(static_cast<std::size_t>(layers), "sparse");
  // The class runs its clamped gate whatever this says.
  if (given.text("hidden_act") == "swigluoai") own.erase("hidden_act");
  return own;
}

void parse_key_blocks(const ConfigReader& settings, Config& config) {
  settings.only("index_topk", nullptr);
  const json& types = *settings.find(kKindsOfLayers);
  const auto layers = static_cast<std::size_t>(config.num_hidden_layers);
  IndexerSettings indexer;
  bool good = types.is_array() && types.size() == layers;
  for (std::size_t i = 0; good && i < layers; ++i) {
    good = types[i] == kLayerWithIndexer || types[i] == kLayerWithout;
    indexer.layers.push_back(types[i] == kLayerWithIndexer);
  }
  if (!good)
    settings.refuse(kKindsOfLayers, fmt::format("{} or {} for each of the {} layers", kLayerWithIndexer,
                                                kLayerWithout, layers));
  constexpr const char *kIndexHeads = "index_n_heads", *kLocalBlocks = "index_local_blocks";
  indexer.heads = settings.size(kIndexHeads, kMaxHeads, 4);
  indexer.head_dim = settings.size("index_head_dim", kMaxHeadDim, 128);
  constexpr int64_t kMostRows = int64_t{1} << 20;  // so that those of topk blocks are counted in 64 bits
  indexer.block = settings.size("index_block_size", kMostRows, 128);
  indexer.topk = settings.size("index_topk_blocks", kMaxPositions, 16);
  indexer.local_blocks = settings.size_from_zero(kLocalBlocks, kMaxPositions, 1);
  indexer.norm_eps = config.rms_norm_eps;
  if (std::find(indexer.layers.begin(), indexer.layers.end(), true) == indexer.layers.end()) return;
  if (config.num_attention_heads % indexer.heads != 0)
    settings.refuse(kIndexHeads,
                    fmt::format("a divisor of num_attention_heads ({})", config.num_attention_heads));
  if (indexer.local_blocks > indexer.topk)
    settings.refuse(kLocalBlocks, fmt::format("at most index_topk_blocks ({})", indexer.topk));
  config.indexer = indexer;
}

void check_key_blocks(const ConfigReader& settings, const Config& config) {
  // Which the class does not read: how much of a head turns partial_rotary_factor says. transformers writes
  // its own 64 into every file, of heads that are smaller, or of which a stated part turns, too.
  constexpr const char *kEntries = "rotary_dim", *kShare = "partial_rotary_factor";
  constexpr int64_t kOfClass = 64;
  const auto is_stated = [&](const char* key) {
    return settings.find(key) != nullptr && settings.inner(key).find(kShare) != nullptr;
  };
  const bool means_nothing = config.head_dim <= kOfClass || settings.find(kShare) != nullptr ||
                             is_stated("rope_parameters") || is_stated("rope_scaling");
  if (!means_nothing || settings.optional_size(kEntries, kMaxHeadDim).value_or(kOfClass) != kOfClass)
    settings.only(kEntries, config.rotary_dim);
  if (config.has_indexers() && config.indexer.head_dim < config.rotary_dim)
    settings.refuse("index_head_dim", fmt::format("at least the {} entries that rotate", config.rotary_dim));
}

}  // namespace streambp
