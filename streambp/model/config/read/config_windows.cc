// Which layers have a window, and how long it is, as config.json says it (transformers, configuration_*.py).
#include <algorithm>

#include "streambp/model/config/family.h"
#include "streambp/model/config/read/config_reader.h"

namespace streambp {
namespace {

using nlohmann::json;

// Which layers have a window, and whether layer_types may only repeat it; if not, layer_types decides where
// it is there.
struct LocalLayers {
  std::vector<bool> local;
  bool stated = true;
};

// sliding_window_pattern: a number, or of EXAONE 4 as many Ls and then a G.
int64_t stated_period(const ConfigReader& settings, const char* key, int64_t fallback) {
  const json* const value = settings.find(key);
  if (value == nullptr || !value->is_string()) return settings.size(key, kMaxLayers, fallback);
  const auto text = value->get<std::string>();
  const auto size = static_cast<int64_t>(text.size());
  if (size < 1 || size > kMaxLayers || text.find_first_not_of('L') != text.size() - 1 || text.back() != 'G')
    settings.refuse(key, "a number of layers, or Ls and a G");
  return size;
}

// All but every period-th.
LocalLayers all_but_every(const ConfigReader& settings, const FamilyWindows& windows, int64_t count) {
  constexpr const char* kKey = "sliding_window_pattern";
  if (windows.null_is_none && settings.has("sliding_window") && settings.find("sliding_window") == nullptr)
    return {std::vector<bool>(static_cast<std::size_t>(count), false)};
  // Classes that have layer_types read nothing else where it is there, and write the pattern's default next
  // to it.
  LocalLayers layers{{}, false};
  if (settings.find("layer_types") != nullptr) return layers;
  if (!windows.other_periods) settings.only(kKey, windows.period);
  const bool reads = windows.reads_period && windows.other_periods;
  const int64_t period = reads ? stated_period(settings, kKey, windows.period) : windows.period;
  for (int64_t layer = 1; layer <= count; ++layer)
    layers.local.push_back((windows.from_last ? count - layer : layer) % period != 0);
  return layers;
}

// Whether use_sliding_window is true. Published files carry a window that is switched off.
bool is_switched_on(const ConfigReader& settings) {
  const bool windows = settings.flag("use_sliding_window", false);
  if (!windows && settings.find("sliding_window") != nullptr &&
      settings.find("use_sliding_window") == nullptr)
    settings.refuse("sliding_window", "null, or use_sliding_window with it");
  return windows;
}

// A window that is switched on and null is none to transformers; of an absent one its class has a size.
bool is_null(const ConfigReader& settings) {
  return settings.has("sliding_window") && settings.find("sliding_window") == nullptr;
}

// qwen2, qwen2_moe, qwen3: those from max_window_layers on, or every other one below it.
LocalLayers layers_by_number(const ConfigReader& settings, bool alternates, std::size_t count) {
  // The classes write max_window_layers, be it their default, next to a list that they have taken instead.
  if (settings.find("layer_types") != nullptr) return {{}, false};
  const json* const from = settings.find("max_window_layers");
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

LocalLayers local_layers(const ConfigReader& settings, const FamilyWindows& windows, const Config& config) {
  const auto count = static_cast<std::size_t>(config.num_hidden_layers);
  const LocalLayers none{std::vector<bool>(count, false)};
  switch (windows.layers) {
    case WindowLayers::kNone:
      if (settings.find("sliding_window") != nullptr && settings.find("use_sliding_window") == nullptr)
        settings.refuse("sliding_window", "null, or use_sliding_window: false with it");
      return none;
    case WindowLayers::kAllAsStated:
      if (!settings.has("sliding_window"))
        settings.refuse("sliding_window", "an integer, or null for none (transformers would take 4096)");
      [[fallthrough]];
    case WindowLayers::kAll:
      return {std::vector<bool>(count, settings.find("sliding_window") != nullptr)};
    case WindowLayers::kFromLayer:
    case WindowLayers::kEvenBelowLayer:
      if (!is_switched_on(settings) || (windows.layers == WindowLayers::kFromLayer && is_null(settings)))
        return none;
      return layers_by_number(settings, windows.layers == WindowLayers::kEvenBelowLayer, count);
    case WindowLayers::kAllIfSwitchedOn:
      if (!is_switched_on(settings) || is_null(settings)) return none;
      settings.only("max_window_layers", 0);
      return {std::vector<bool>(count, true)};
    case WindowLayers::kThoseWithoutRope:
      if (!is_switched_on(settings) || settings.find("sliding_window") == nullptr) return none;
      return {config.no_rope, false};
    case WindowLayers::kByTypes:
      return {std::vector<bool>(count, false), false};
    case WindowLayers::kAllButEvery:
      return all_but_every(settings, windows, config.num_hidden_layers);
  }
  return none;
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

bool has_switch(WindowLayers layers) {
  return layers == WindowLayers::kFromLayer || layers == WindowLayers::kEvenBelowLayer ||
         layers == WindowLayers::kAllIfSwitchedOn || layers == WindowLayers::kThoseWithoutRope;
}

}  // namespace

void parse_windows(const ConfigReader& settings, const Family& family, Config& config) {
  const FamilyWindows& windows = family.windows;
  const auto count = static_cast<std::size_t>(config.num_hidden_layers);
  if (family.compressed) {
    for (const int64_t rate : config.compressed.rates)
      config.windows.push_back(rate == 0 ? config.compressed.window : 0);
    return;
  }
  if (family.indexers != Indexers::kNone) {
    // What transformers makes of them, and writes.
    if (family.indexers != Indexers::kOfKeyBlocks)  // whose types parse_key_blocks has read
      settings.only("layer_types", std::vector<std::string>(count, "indexed_attention"));
    settings.only("sliding_window", nullptr);
    config.windows.assign(count, 0);
    return;
  }
  LocalLayers layers = local_layers(settings, windows, config);
  if (const json* const types = settings.find("layer_types")) {
    std::vector<bool> local = parse_layer_types(settings, *types, config.num_hidden_layers);
    if (layers.stated && local != layers.local) {
      settings.refuse("layer_types", "the windows that the file states elsewhere");
    }
    layers.local = std::move(local);
  }
  if (windows.last_sees_all) layers.local.back() = false;  // whatever layer_types says
  const bool any = std::find(layers.local.begin(), layers.local.end(), true) != layers.local.end();
  // Families without this switch don't read it; it may be there if it says what is so.
  if (!has_switch(windows.layers) && settings.find("use_sliding_window") != nullptr) {
    settings.only("use_sliding_window", any);
  }
  std::optional<int64_t> fallback;
  if (!settings.has("sliding_window") && windows.size > 0) fallback = windows.size;
  const int64_t window = any ? settings.size("sliding_window", kMaxPositions, fallback) : 0;
  for (const bool local : layers.local) config.windows.push_back(local ? window : 0);
  const bool may_have_window = !settings.has("sliding_window") || settings.find("sliding_window") != nullptr;
  if (family.no_rope != NoRope::kFullLayers || !may_have_window) return;
  for (const bool local : layers.local) config.no_rope.push_back(!local);
}

}  // namespace streambp
