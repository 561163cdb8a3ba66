// Indexers in config.json (transformers, configuration_deepseek_v32.py, configuration_glm_moe_dsa.py,
// configuration_hy_v4.py, configuration_mistral_large4.py and configuration_glm5_next.py).
#include <algorithm>

#include "streambp/model/config/family.h"
#include "streambp/model/config/read/config_reader.h"

namespace streambp {
namespace {

using nlohmann::json;

constexpr const char *kIndexerTypes = "indexer_types", *kPattern = "index_topk_pattern",
                     *kPeriod = "index_topk_freq", *kOffset = "index_skip_topk_offset";

// Of each layer whether it sees another's picks, by a list of words or a string of letters.
std::vector<bool> shared_by(const ConfigReader& settings, const char* key, int64_t layers) {
  const json& given = *settings.find(key);
  json types = given;
  if (given.is_string()) {
    types = json::array();
    for (const char letter : given.get<std::string>())
      types.push_back(letter == 'F' ? "full" : letter == 'S' ? "shared" : "");
  }
  bool good = types.is_array() && types.size() == static_cast<std::size_t>(layers);
  std::vector<bool> shared;
  for (std::size_t i = 0; good && i < types.size(); ++i) {
    good = types[i] == "full" || types[i] == "shared";
    shared.push_back(types[i] == "shared");
  }
  if (!good) settings.refuse(key, fmt::format("full or shared for each of the {} layers", layers));
  return shared;
}

// Every index_topk_freq-th layer from index_skip_topk_offset - 1 on has one, and all before.
std::vector<bool> shared_by_frequency(const ConfigReader& settings, int64_t layers) {
  const int64_t period = std::max<int64_t>(settings.size_from_zero(kPeriod, kMaxLayers, 1), 1);
  const int64_t offset = settings.size_from_zero(kOffset, kMaxLayers, 2);
  std::vector<bool> shared;
  for (int64_t layer = 0; layer < layers; ++layer)
    shared.push_back(std::max<int64_t>(layer - offset + 1, 0) % period != 0);
  return shared;
}

// The key that says which layers see another's picks.
const char* sharing_key(const ConfigReader& settings) {
  for (const char* key : {kIndexerTypes, kPattern}) {
    if (settings.find(key) != nullptr) return key;
  }
  return settings.find(kOffset) != nullptr ? kOffset : kPeriod;
}

std::vector<bool> shared_layers(const ConfigReader& settings, int64_t layers) {
  const std::string_view key = sharing_key(settings);
  return key == kIndexerTypes || key == kPattern ? shared_by(settings, key.data(), layers)
                                                 : shared_by_frequency(settings, layers);
}

void require_first_full(const ConfigReader& settings, const std::vector<bool>& shared) {
  if (shared.front()) settings.refuse(sharing_key(settings), "one with which the first layer is full");
}

void parse_index_heads(const ConfigReader& settings, const Family& family, IndexerSettings& indexer) {
  indexer.heads = settings.size("index_n_heads", kMaxHeads, family.index_heads);
  indexer.head_dim = settings.size("index_head_dim", kMaxHeadDim, 128);
}

}  // namespace

void parse_indexer(const ConfigReader& settings, const Family& family, Config& config) {
  const LatentAttentionSettings& latent = config.latent;
  if (latent.q_lora_rank == 0 && !family.trained_positions)
    settings.refuse("q_lora_rank", "an integer: the indexer reads the queries' latents");
  // The classes do not read it: latent attention rotates neighbours, or Hunyuan 4's halves.
  config.rope_interleaved = !family.hyper;
  settings.only("rope_interleave", config.rope_interleaved);
  IndexerSettings& indexer = config.indexer;
  indexer.topk = settings.size("index_topk", kMaxPositions, 2048);
  parse_index_heads(settings, family, indexer);
  if (indexer.head_dim < latent.qk_rope_head_dim)
    settings.refuse("index_head_dim", fmt::format("at least qk_rope_head_dim ({})", latent.qk_rope_head_dim));
  if (family.indexers == Indexers::kOfEachLayer) {
    for (const char* key : {kIndexerTypes, kPattern, kPeriod, kOffset}) settings.only(key, nullptr);
    return;
  }
  const int64_t layers = config.num_hidden_layers;
  if (family.hyper) {
    indexer.rotates_last = true;
    indexer.norm_eps = config.rms_norm_eps;
    for (const char* key : {kPattern, kPeriod, kOffset}) settings.only(key, nullptr);
    if (settings.find(kIndexerTypes) != nullptr) {
      indexer.shared = shared_by(settings, kIndexerTypes, layers);
      require_first_full(settings, indexer.shared);
    } else {
      for (int64_t layer = 0; layer < layers; ++layer)
        indexer.shared.push_back(layer > 0 && (layer - 1) % 4 != 0);
    }
    return;
  }
  indexer.interleaved = true;
  indexer.reads_hidden = family.trained_positions;
  indexer.shared = shared_layers(settings, layers);
  require_first_full(settings, indexer.shared);
}

// transformers hands what a layer has picked to the next one alone, be it one that attends or not.
void parse_group_indexer(const ConfigReader& settings, const Family& family, Config& config) {
  if (config.latent.q_lora_rank == 0)
    settings.refuse("q_lora_rank", "an integer: the indexer reads the queries' latents");
  IndexerSettings indexer;
  indexer.group = settings.size("index_kpool", kMaxPositions, 16);
  const int64_t rows = settings.size("index_topk", kMaxPositions, 2048);
  if (rows % indexer.group != 0)
    settings.refuse("index_topk", fmt::format("a multiple of index_kpool ({})", indexer.group));
  indexer.topk = rows / indexer.group;
  parse_index_heads(settings, family, indexer);
  // Rows before the end of a sequence's first group would see nothing.
  if (indexer.group > 1) settings.only("index_kpool_always_select_tail", true);
  indexer.shared = shared_layers(settings, config.num_hidden_layers);
  bool attends = false;
  for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    const auto at = static_cast<std::size_t>(layer);
    if (!config.attends(layer)) indexer.shared[at] = false;
    attends = attends || config.attends(layer);
    if (indexer.shared[at] && (layer == 0 || !config.attends(layer - 1) || indexer.shared[at - 1]))
      settings.refuse(
          sharing_key(settings),
          fmt::format("full for layer {}: the layer below it, from which alone transformers hands "
                      "picks on, has no indexer",
                      layer));
  }
  if (attends) config.indexer = indexer;
}

}  // namespace streambp
