// Zamba 2 in config.json: which layers run a shared transformer block before their state space, and what the
// block is (transformers, configuration_zamba2.py).
#include <algorithm>
#include <cmath>
#include <set>
#include <string>

#include "streambp/model/config/family.h"
#include "streambp/model/config/read/config_reader.h"

namespace streambp {
namespace {

using nlohmann::json;

// layers_block_type, or layer_types; transformers 4's name of the layers without a block is mamba.
std::vector<bool> layers_with_blocks(const ConfigReader& settings, int64_t count) {
  constexpr const char *kKey = "layers_block_type", *kOther = "layer_types";
  const ConfigReader either = settings.with_other_names({{kKey, kOther}});
  const json* const types = either.find(kKey);
  static const std::set<json> kKnown = {"hybrid", "linear_attention", "mamba"};
  bool good = types != nullptr && types->is_array() && types->size() == static_cast<std::size_t>(count);
  std::vector<bool> layers;
  for (std::size_t i = 0; good && i < types->size(); ++i) {
    layers.push_back((*types)[i] == "hybrid");
    good = kKnown.contains((*types)[i]);
  }
  // Where the key is absent, transformers takes the pattern of the model of 2.7 billion parameters.
  if (!good) either.refuse(kKey, fmt::format("hybrid or linear_attention for each of the {} layers", count));
  return layers;
}

}  // namespace

void parse_block_heads(const ConfigReader& settings, Config& config) {
  // Heads share out the block's input, which is twice as wide as the model: the class makes head_dim of that,
  // whatever a file says.
  const int64_t width = 2 * config.hidden_size, heads = config.num_attention_heads;
  if (width % heads != 0 || width / heads % 2 != 0)
    settings.refuse(
        "num_attention_heads",
        fmt::format("a number that divides 2 hidden_size ({}) into heads of an even size", width));
  config.head_dim = width / heads;
  for (const char* key : {"attention_head_dim", "head_dim"}) settings.only(key, config.head_dim);
  settings.only("attention_hidden_size", width);
}

void parse_shared_blocks(const ConfigReader& settings, Config& config) {
  constexpr int64_t kMaxRank = int64_t{1} << 16;
  const auto layers = static_cast<std::size_t>(config.num_hidden_layers);
  SharedBlockSettings& blocks = config.shared_blocks;
  blocks.layers = layers_with_blocks(settings, config.num_hidden_layers);
  const auto uses = std::count(blocks.layers.begin(), blocks.layers.end(), true);
  if (uses == 0) settings.refuse("layers_block_type", "a hybrid layer among them");
  blocks.count = settings.size("num_mem_blocks", kMaxLayers, 1);
  blocks.adapter_rank = settings.size("adapter_rank", kMaxRank, 128);
  blocks.attention_adapters = settings.flag("use_shared_attention_adapter", false);
  // Its adapters of keys and values are as wide as those of queries.
  if (blocks.attention_adapters && config.num_key_value_heads != config.num_attention_heads)
    settings.refuse("num_key_value_heads",
                    fmt::format("num_attention_heads ({}) with use_shared_attention_adapter",
                                config.num_attention_heads));
  config.linear_attention.assign(layers, true);
  config.no_mlp.assign(layers, true);
  config.no_mixer.assign(layers, false);
  if (!settings.flag("use_mem_rope", false)) config.no_rope.assign(layers, true);
  if (settings.flag("use_long_context", false)) config.max_position_embeddings = 16384;
  // Scores are scaled as if heads were half as wide.
  config.attention_scale = 1.0 / std::sqrt(static_cast<double>(config.head_dim) / 2.0);
  config.delta_rule.norm_eps = 1e-5;          // the class's own, whatever rms_norm_eps says
  settings.only("time_step_limit", nullptr);  // it is not read: this and no upper limit
  config.delta_rule.time_step_low = settings.number("time_step_min").value_or(0.001);
  // Without it transformers ties none of the model's weights: each layer would have a block of its own.
  settings.only("tie_word_embeddings", true);
  settings.only("use_conv_bias", true);  // the class has a bias, whatever the key says
  // What bitsandbytes makes of modules that share their weights is not known here.
  settings.only("quantization_config", nullptr);
}

bool Config::runs_block(int64_t layer) const {
  return has_shared_blocks() && shared_blocks.layers[static_cast<size_t>(layer)];
}

int64_t Config::block_use(int64_t layer) const {
  return std::count(shared_blocks.layers.begin(), shared_blocks.layers.begin() + layer, true);
}

int64_t Config::block_owner(int64_t layer) const {
  int64_t left = block_use(layer) % shared_blocks.count;
  int64_t owner = 0;
  while (!runs_block(owner) || left-- > 0) ++owner;
  return owner;
}

}  // namespace streambp
