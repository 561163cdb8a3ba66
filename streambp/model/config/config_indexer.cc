// Indexers in config.json (transformers, configuration_deepseek_v32.py, configuration_glm_moe_dsa.py,
// configuration_hy_v4.py and configuration_mistral_large4.py).
#include <algorithm>

#include "streambp/model/config/config_reader.h"
#include "streambp/model/config/family.h"

namespace streambp {
namespace {

using nlohmann::json;

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
    good = types[i] == "full" || (types[i] == "shared" && i > 0);
    shared.push_back(types[i] == "shared");
  }
  if (!good)
    settings.refuse(key,
                    fmt::format("full or shared for each of the {} layers, the first of them full", layers));
  return shared;
}

// Every index_topk_freq-th layer from index_skip_topk_offset - 1 on has one, and all before.
std::vector<bool> shared_by_frequency(const ConfigReader& settings, int64_t layers) {
  const int64_t period = std::max<int64_t>(settings.size_from_zero("index_topk_freq", kMaxLayers, 1), 1);
  const int64_t offset = settings.size_from_zero("index_skip_topk_offset", kMaxLayers, 2);
  std::vector<bool> shared;
  for (int64_t layer = 0; layer < layers; ++layer)
    shared.push_back(std::max<int64_t>(layer - offset + 1, 0) % period != 0);
  if (shared.front())
    settings.refuse("index_skip_topk_offset", "one with which the first layer has an indexer");
  return shared;
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
  indexer.heads = settings.size("index_n_heads", kMaxHeads, family.index_heads);
  indexer.head_dim = settings.size("index_head_dim", kMaxHeadDim, 128);
  if (indexer.head_dim < latent.qk_rope_head_dim)
    settings.refuse("index_head_dim", fmt::format("at least qk_rope_head_dim ({})", latent.qk_rope_head_dim));
  constexpr const char *kTypes = "indexer_types", *kPattern = "index_topk_pattern";
  if (family.indexers == Indexers::kOfEachLayer) {
    for (const char* key : {kTypes, kPattern, "index_topk_freq", "index_skip_topk_offset"})
      settings.only(key, nullptr);
    return;
  }
  const int64_t layers = config.num_hidden_layers;
  if (family.hyper) {
    indexer.rotates_last = true;
    indexer.norm_eps = config.rms_norm_eps;
    for (const char* key : {kPattern, "index_topk_freq", "index_skip_topk_offset"})
      settings.only(key, nullptr);
    if (settings.find(kTypes) != nullptr) {
      indexer.shared = shared_by(settings, kTypes, layers);
    } else {
      for (int64_t layer = 0; layer < layers; ++layer)
        indexer.shared.push_back(layer > 0 && (layer - 1) % 4 != 0);
    }
    return;
  }
  indexer.interleaved = true;
  indexer.reads_hidden = family.trained_positions;
  indexer.shared = settings.find(kTypes) != nullptr     ? shared_by(settings, kTypes, layers)
                   : settings.find(kPattern) != nullptr ? shared_by(settings, kPattern, layers)
                                                        : shared_by_frequency(settings, layers);
}

}  // namespace streambp
