// Latent attention in config.json (transformers, configuration_deepseek_v3.py).
#include <algorithm>
#include <cmath>
#include <vector>

#include "streambp/model/config/family.h"
#include "streambp/model/config/read/config_reader.h"

namespace streambp {

void parse_latent(const ConfigReader& settings, Config& config) {
  constexpr int64_t kMaxRank = kMaxHidden;
  const Family& family = family_of(config);
  LatentAttentionSettings& latent = config.latent;
  const FamilyLatent& absent = *family.latent;
  latent.kv_lora_rank = settings.size("kv_lora_rank", kMaxRank, absent.kv_lora_rank);
  latent.trained_positions = family.trained_positions;
  if (family.trained_positions) settings.only("q_lora_rank", nullptr);
  if (absent.reads_norm_eps) latent.norm_eps = config.rms_norm_eps;
  // null: queries are projected at once.
  const bool has_rank =
      settings.has("q_lora_rank") ? settings.find("q_lora_rank") != nullptr : absent.q_lora_rank > 0;
  latent.q_lora_rank = has_rank ? settings.size("q_lora_rank", kMaxRank, absent.q_lora_rank) : 0;
  latent.qk_nope_head_dim = settings.size("qk_nope_head_dim", kMaxHeadDim, absent.qk_nope_head_dim);
  if (family.glm5_next) {
    settings.only("qk_rope_head_dim", 0);
  } else {
    latent.qk_rope_head_dim = settings.size("qk_rope_head_dim", kMaxHeadDim, 64);
  }
  latent.v_head_dim = settings.size("v_head_dim", kMaxHeadDim, absent.v_head_dim);
  if (latent.qk_rope_head_dim % 2 != 0)
    settings.refuse("qk_rope_head_dim", fmt::format("an even number, not {}", latent.qk_rope_head_dim));
  // What transformers makes of them, and writes; it reads neither.
  const int64_t key = latent.qk_nope_head_dim + latent.qk_rope_head_dim;
  settings.only("qk_head_dim", key);
  if (!absent.other_head_dim)
    settings.only("head_dim", family.rope.share_of_key ? key : latent.qk_rope_head_dim);
  if (config.num_key_value_heads != config.num_attention_heads)
    settings.refuse("num_key_value_heads",
                    fmt::format("num_attention_heads ({}): every head has keys and values of its own",
                                config.num_attention_heads));
  config.head_dim = key;
  config.rotary_dim = latent.qk_rope_head_dim;
  constexpr const char* kInterleave = "rope_interleave";
  config.rope_interleaved = settings.flag(kInterleave, !settings.has(kInterleave));  // null: false
  config.attention_scale = 1.0 / std::sqrt(static_cast<double>(key));
}

// transformers hands on what the last layer of a kind, rotating or not, has left that any other reads,
// whatever a layer above says: it has to say the same.
void parse_latent_sources(const ConfigReader& settings, Config& config) {
  constexpr const char* kKey = "kv_source_layers";
  const nlohmann::json* const given = settings.find(kKey);
  if (given == nullptr) return;
  const int64_t layers = config.num_hidden_layers;
  bool good = given->is_array() && given->size() == static_cast<std::size_t>(layers);
  std::vector<int64_t> sources;
  for (int64_t layer = 0; good && layer < layers; ++layer) {
    const nlohmann::json& source = (*given)[static_cast<std::size_t>(layer)];
    good = source.is_number_unsigned() && source <= static_cast<uint64_t>(layer);
    if (good) sources.push_back(source.get<int64_t>());
    good = good && sources[static_cast<std::size_t>(sources.back())] == sources.back();
  }
  for (int64_t layer = 0; good && layer < layers; ++layer) {
    const int64_t source = sources[static_cast<std::size_t>(layer)];
    if (source == layer) continue;
    const auto is_read = [&](int64_t producer) {
      return std::find(sources.begin() + producer + 1, sources.end(), producer) != sources.end();
    };
    int64_t last = layer - 1;
    while (last > source && (config.rotates(last) != config.rotates(layer) || !is_read(last))) --last;
    good = last == source && config.rotates(source) == config.rotates(layer);
  }
  if (!good)
    settings.refuse(kKey,
                    fmt::format("for each of the {} layers itself, or the last layer below that is its own "
                                "source, rotates as it does and is read by others",
                                layers));
  for (int64_t layer = 0; layer < layers; ++layer) {
    if (sources[static_cast<std::size_t>(layer)] != layer) config.latent.sources = sources;
  }
}

}  // namespace streambp
