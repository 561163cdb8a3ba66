// Which layers have a window, and how long it is, as config.json says it (transformers, configuration_*.py).
#include <algorithm>
#include <array>
#include <string_view>

#include "streambp/model/config_reader.h"

namespace streambp {
namespace {

using nlohmann::json;

// Which layers have a window, and whether the file says so in words of its own: if so, layer_types may only
// repeat it; if not, layer_types decides where it is there.
struct LocalLayers {
  std::vector<bool> local;
  bool stated = true;
};

LocalLayers gemma_layers(const ConfigReader& settings, const Config& config) {
  LocalLayers layers;
  int64_t pattern = 2;
  if (config.family == "gemma2") {
    settings.only("sliding_window_pattern", 2);
    layers.stated = settings.find("sliding_window_pattern") != nullptr;
  } else if (config.family == "gemma4_text") {
    settings.only("sliding_window_pattern", 6);  // transformers does not read it
    pattern = 6;
    layers.stated = false;
  } else {
    // transformers 5 also writes the pattern's default as _sliding_window_pattern, and does not read it.
    pattern = settings.size("sliding_window_pattern", kMaxLayers, 6);
    layers.stated = settings.find("sliding_window_pattern") != nullptr;
  }
  for (int64_t layer = 1; layer <= config.num_hidden_layers; ++layer) {
    layers.local.push_back(layer % pattern != 0);
  }
  return layers;
}

// qwen2, qwen2_moe, qwen3, qwen3_moe: published files carry a window that is switched off.
LocalLayers qwen_layers(const ConfigReader& settings, const Config& config) {
  const auto count = static_cast<std::size_t>(config.num_hidden_layers);
  if (!settings.flag("use_sliding_window", false)) {
    if (settings.find("sliding_window") != nullptr && settings.find("use_sliding_window") == nullptr) {
      settings.refuse("sliding_window", "null, or use_sliding_window with it");
    }
    return {std::vector<bool>(count, false)};
  }
  if (config.family == "qwen3_moe") {
    settings.only("max_window_layers", 0);
    return {std::vector<bool>(count, true)};
  }
  const bool alternates = config.family == "qwen2_moe";  // every other one of the first layers has it
  const json* const from = settings.find("max_window_layers");
  if (from == nullptr && settings.find("layer_types") != nullptr) {
    return {std::vector<bool>(count, false), false};
  }
  if (from == nullptr || !from->is_number_unsigned()) {
    settings.refuse("max_window_layers", alternates ? "an integer: from this layer on, none has the window"
                                                    : "an integer: the first layer that has the window");
  }
  LocalLayers layers;
  for (uint64_t layer = 0; layer < count; ++layer) {
    const bool from_here = layer >= from->get<uint64_t>();
    layers.local.push_back(alternates ? layer % 2 == 0 && !from_here : from_here);
  }
  return layers;
}

// Of the layers that do not rotate.
LocalLayers smollm3_layers(const ConfigReader& settings, const Config& config) {
  const bool windows = settings.flag("use_sliding_window", false);
  if (!windows && settings.find("sliding_window") != nullptr &&
      settings.find("use_sliding_window") == nullptr)
    settings.refuse("sliding_window", "null, or use_sliding_window with it");
  if (!windows || settings.find("sliding_window") == nullptr)
    return {std::vector<bool>(static_cast<std::size_t>(config.num_hidden_layers), false)};
  return {config.no_rope, false};
}

// All but every fourth, or every second one.
LocalLayers all_but_every(int64_t period, const Config& config) {
  LocalLayers layers{{}, false};
  for (int64_t layer = 1; layer <= config.num_hidden_layers; ++layer)
    layers.local.push_back(layer % period != 0);
  return layers;
}

LocalLayers local_layers(const ConfigReader& settings, const Family& family, const Config& config) {
  if (family.gemma && config.family != "gemma") return gemma_layers(settings, config);
  if (config.family.starts_with("qwen")) return qwen_layers(settings, config);
  if (config.family == "smollm3") return smollm3_layers(settings, config);
  if (config.family == "olmo3") return all_but_every(4, config);
  if (config.family == "gpt_oss") return all_but_every(2, config);
  const auto count = static_cast<std::size_t>(config.num_hidden_layers);
  static constexpr std::array<std::string_view, 5> kWithout = {"gemma", "glm4", "granite", "llama", "olmo2"};
  if (std::find(kWithout.begin(), kWithout.end(), config.family) != kWithout.end()) {
    if (settings.find("sliding_window") != nullptr && settings.find("use_sliding_window") == nullptr) {
      settings.refuse("sliding_window", "null, or use_sliding_window: false with it");
    }
    return {std::vector<bool>(count, false)};
  }
  if (config.family == "mistral" && !settings.has("sliding_window")) {
    settings.refuse("sliding_window", "an integer, or null for none (transformers would take 4096)");
  }
  return {std::vector<bool>(count, settings.find("sliding_window") != nullptr)};
}

// layer_types as which layers have a window.
std::vector<bool> parse_layer_types(const ConfigReader& settings, const json& types, int64_t layers) {
  bool good = types.is_array() && types.size() == static_cast<std::size_t>(layers);
  std::vector<bool> local;
  for (std::size_t i = 0; good && i < types.size(); ++i) {
    good = types[i] == "full_attention" || types[i] == "sliding_attention";
    local.push_back(types[i] == "sliding_attention");
  }
  if (!good) {
    settings.refuse("layer_types",
                    fmt::format("full_attention or sliding_attention for each of the {} layers", layers));
  }
  return local;
}

}  // namespace

void parse_windows(const ConfigReader& settings, const Family& family, Config& config) {
  LocalLayers layers = local_layers(settings, family, config);
  if (const json* const types = settings.find("layer_types")) {
    std::vector<bool> local = parse_layer_types(settings, *types, config.num_hidden_layers);
    if (layers.stated && local != layers.local) {
      settings.refuse("layer_types", "the windows that the file states elsewhere");
    }
    layers.local = std::move(local);
  }
  if (config.family == "gemma4_text") layers.local.back() = false;  // whatever layer_types says
  const bool any = std::find(layers.local.begin(), layers.local.end(), true) != layers.local.end();
  // Families without this switch don't read it; it may be there if it says what is so.
  const bool has_switch = config.family.starts_with("qwen") || config.family == "smollm3";
  if (!has_switch && settings.find("use_sliding_window") != nullptr) {
    settings.only("use_sliding_window", any);
  }
  std::optional<int64_t> fallback;
  if (!settings.has("sliding_window")) {
    if (family.gemma || config.family == "olmo3") fallback = config.family == "gemma4_text" ? 512 : 4096;
    if (config.family == "gpt_oss") fallback = 128;
  }
  const int64_t window = any ? settings.size("sliding_window", kMaxPositions, fallback) : 0;
  for (const bool local : layers.local) config.windows.push_back(local ? window : 0);
}

}  // namespace streambp
