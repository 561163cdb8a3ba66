// LFM3 in config.json (transformers, configuration_lfm3.py).
#include <algorithm>
#include <string>

#include "streambp/model/config/family.h"
#include "streambp/model/config/read/config_reader.h"

namespace streambp {
namespace {

using nlohmann::json;

constexpr const char *kTypes = "layer_types", *kConvolution = "conv", *kFull = "full_attention",
                     *kWindow = "sliding_attention";

// The kinds of layers: layer_types, or a full one and one with a window in turn, with a convolution between
// each two, two of which come first.
std::vector<std::string> kinds_of_layers(const ConfigReader& settings, int64_t count) {
  std::vector<std::string> kinds;
  const json* const types = settings.find(kTypes);
  if (types == nullptr) {
    for (int64_t layer = 0; layer < count; ++layer)
      kinds.emplace_back(layer % 4 == 2 ? kFull : layer % 4 == 0 && layer > 0 ? kWindow : kConvolution);
    return kinds;
  }
  bool good = types->is_array() && types->size() == static_cast<std::size_t>(count);
  for (std::size_t i = 0; good && i < types->size(); ++i) {
    const json& type = (*types)[i];
    good = type == kConvolution || type == kFull || type == kWindow;
    if (good) kinds.push_back(type.get<std::string>());
  }
  if (!good)
    settings.refuse(
        kTypes, fmt::format("{}, {} or {} for each of the {} layers", kFull, kWindow, kConvolution, count));
  return kinds;
}

}  // namespace

void parse_lfm3(const ConfigReader& settings, const Family& family, Config& config) {
  const std::vector<std::string> kinds = kinds_of_layers(settings, config.num_hidden_layers);
  // Of null transformers' class makes no mask for layers with a window.
  constexpr const char* kSize = "sliding_window";
  std::optional<int64_t> absent;
  if (!settings.has(kSize)) absent = family.windows.size;
  const bool has_windows = std::find(kinds.begin(), kinds.end(), kWindow) != kinds.end();
  const int64_t window = has_windows ? settings.size(kSize, kMaxPositions, absent) : 0;
  for (const std::string& kind : kinds) {
    config.linear_attention.push_back(kind == kConvolution);
    config.windows.push_back(kind == kWindow ? window : 0);
  }
  constexpr int64_t kMaxKernel = 64;
  DeltaRuleSettings& rule = config.delta_rule;
  rule.convolution_alone = true;
  rule.value_heads = 1;
  rule.value_head_dim = config.hidden_size;
  rule.conv_kernel = settings.size("conv_L_cache", kMaxKernel, 7);
  rule.conv_bias = rule.in_bias = rule.out_bias = settings.flag("conv_bias", false);
  config.sandwich_norms = settings.flag("use_sandwich_norm", true);
  config.gates_heads = settings.flag("use_attention_gate", true);
}

}  // namespace streambp
