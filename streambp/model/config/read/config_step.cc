// Step 3.5 and 3.7 in config.json: published files say some of it in words that transformers' class reads and
// does not write (configuration_step3p7.py), and some is this class's alone.
#include <algorithm>
#include <array>
#include <set>
#include <string>
#include <utility>

#include "streambp/model/config/family.h"
#include "streambp/model/config/read/config_reader.h"

namespace streambp {
namespace {

using nlohmann::json;

// What the class calls a key, and what files may.
constexpr std::array<std::pair<const char*, const char*>, 5> kOtherNames = {
    {{"num_key_value_heads", "num_attention_groups"},
     {"n_routed_experts", "moe_num_experts"},
     {"n_routed_experts", "num_local_experts"},
     {"num_experts_per_tok", "moe_top_k"},
     {"share_expert_dim", "share_expert_dims"}}};

// Lists with an entry for each layer, and in published files more for those that predict further tokens.
constexpr std::array<const char*, 6> kOfLayers = {"layer_types",   "mlp_layer_types",
                                                  "swiglu_limits", "swiglu_limits_shared",
                                                  "rope_theta",    "partial_rotary_factors"};

// What StepFun's own code reads and transformers' does not, whose class has it so.
const std::array<std::pair<const char*, json>, 6> kFixed = {{{"use_head_wise_attn_gate", true},
                                                             {"moe_router_activation", "sigmoid"},
                                                             {"use_moe_router_bias", true},
                                                             {"norm_expert_weight", true},
                                                             {"zero_centered", true},
                                                             {"sparse_attention_config", nullptr}}};

bool is_there(const json& words, const char* key) {
  return words.contains(key) && !words.at(key).is_null();
}

// moe_layers_enum, "3,4,5" or a list of the numbers, as a word for each layer; absent: all from 3 on.
void name_mlps(const ConfigReader& settings, int64_t layers, json& words) {
  constexpr const char* kEnum = "moe_layers_enum";
  const json* const given = settings.find(kEnum);
  words.erase(kEnum);
  if (is_there(words, "mlp_layer_types")) return;
  std::set<int64_t> sparse;
  const auto refuse = [&] { settings.refuse(kEnum, "numbers of layers, in a list or between commas"); };
  if (given == nullptr) {
    for (int64_t layer = 3; layer < layers; ++layer) sparse.insert(layer);
  } else if (given->is_string()) {
    const auto text = given->get<std::string>();
    for (size_t at = 0; at < text.size();) {
      const size_t end = std::min(text.find(',', at), text.size());
      const std::string number = text.substr(at, end - at);
      const bool good =
          !number.empty() && number.size() < 6 && number.find_first_not_of("0123456789") == std::string::npos;
      if (!good) refuse();
      sparse.insert(std::stoll(number));
      at = end + 1;
    }
  } else {
    if (!given->is_array()) refuse();
    for (const json& layer : *given) {
      if (!layer.is_number_unsigned()) refuse();
      sparse.insert(layer.get<int64_t>());
    }
  }
  json types = json::array();
  for (int64_t layer = 0; layer < layers; ++layer)
    types.push_back(sparse.contains(layer) ? "sparse" : "dense");
  words["mlp_layer_types"] = std::move(types);
}

// attention_other_setting, whose heads are those of layers with a window.
void name_heads(const ConfigReader& settings, json& words) {
  constexpr const char* kOther = "attention_other_setting";
  words.erase(kOther);
  if (settings.find(kOther) == nullptr || is_there(words, "num_sliding_attention_heads")) return;
  const ConfigReader other = settings.inner(kOther);
  for (const auto& [key, own] :
       {std::pair("num_attention_groups", "num_key_value_heads"), {"head_dim", "head_dim"}}) {
    if (other.find(key) != nullptr && is_there(words, own)) other.only(key, words.at(own));
  }
  if (const json* const heads = other.find("num_attention_heads"))
    words["num_sliding_attention_heads"] = *heads;
}

// The keys of per_layer_config without the zeros by which transformers gives them one length.
void name_layers(json& words) {
  constexpr const char* kKey = "per_layer_config";
  if (!is_there(words, kKey) || !words.at(kKey).is_object()) return;
  json named = json::object();
  for (const auto& [key, value] : words.at(kKey).items())
    named[key.empty() ? key : key.substr(std::min(key.find_first_not_of('0'), key.size() - 1))] = value;
  words[kKey] = std::move(named);
}

// The entry of a list, or the number, that all layers of a kind have; null: the key is absent.
json of_kind(const ConfigReader& settings, const json& words, const char* key, const json& types,
             const char* kind) {
  if (!is_there(words, key)) return nullptr;
  const json& value = words.at(key);
  if (!value.is_array()) return value;
  if (value.size() != types.size())
    settings.refuse(key, fmt::format("a number for each of the {} layers", types.size()));
  json found;
  for (size_t layer = 0; layer < types.size(); ++layer) {
    if (types[layer] != kind) continue;
    if (!found.is_null() && found != value[layer])
      settings.refuse(key, fmt::format("one number for all layers of type {}", kind));
    found = value[layer];
  }
  return found;
}

// Lists of bases and of rotated parts, and a scaling of the layers that see all tokens, as an object for each
// kind of layer.
void name_ropes(const ConfigReader& settings, int64_t layers, json& words) {
  settings.only("yarn_only_types", json::array({"full_attention"}));
  const json* const rotates = settings.find("use_rope_layers");
  if (rotates != nullptr && !rotates->empty())
    settings.only("use_rope_layers", json(std::vector<bool>(rotates->size(), true)));
  if (is_there(words, "rope_parameters")) return;
  json types = is_there(words, "layer_types") ? words.at("layer_types")
                                              : json(std::vector<std::string>(layers, "full_attention"));
  if (!types.is_array()) return;  // which is refused where windows are read
  json ropes = json::object();
  for (const char* kind : {"full_attention", "sliding_attention"}) {
    if (std::find(types.begin(), types.end(), kind) == types.end()) continue;
    json& rope = ropes[kind] = {{"rope_type", "default"}};
    const json theta = of_kind(settings, words, "rope_theta", types, kind);
    const json part = of_kind(settings, words, "partial_rotary_factors", types, kind);
    rope["rope_theta"] = theta.is_null() ? json(1e4) : theta;
    if (!part.is_null()) rope["partial_rotary_factor"] = part;
    if (kind == std::string_view("full_attention") && is_there(words, "rope_scaling"))
      rope.update(settings.inner("rope_scaling").object());
  }
  words["rope_parameters"] = std::move(ropes);
  for (const char* key : {"rope_theta", "partial_rotary_factors", "rope_scaling"}) words.erase(key);
}

// A number of at least 0 for each layer, or null; empty: all are 0.
std::vector<double> limits_of(const ConfigReader& settings, const char* key, int64_t layers) {
  const json* const list = settings.find(key);
  if (list == nullptr) return {};
  bool good = list->is_array() && list->size() == static_cast<size_t>(layers), any = false;
  std::vector<double> limits;
  for (size_t layer = 0; good && layer < list->size(); ++layer) {
    const json& limit = (*list)[layer];
    good = limit.is_null() || (limit.is_number() && limit >= 0);
    limits.push_back(good && !limit.is_null() ? limit.get<double>() : 0.0);
    any = any || limits.back() > 0.0;
  }
  if (!good)
    settings.refuse(key, fmt::format("a number of at least 0, or null, for each of the {} layers", layers));
  return any ? limits : std::vector<double>{};
}

}  // namespace

void forget_what_step_renames(const json& given, json& sizes) {
  for (const auto& [key, other] : kOtherNames) {
    if (given.contains(other)) sizes.erase(key);
  }
}

json in_words_of_step(const ConfigReader& settings) {
  for (const auto& [key, value] : kFixed) settings.only(key, value);
  if (settings.text("gating") != "per-head") settings.only("gating", true);
  json words = settings.object();
  const int64_t layers = settings.size("num_hidden_layers", kMaxLayers);
  const int64_t further = settings.size_from_zero("num_nextn_predict_layers", kMaxLayers, 0);
  for (const char* key : kOfLayers) {
    if (further == 0 || !words.contains(key) || !words.at(key).is_array()) continue;
    json& list = words.at(key);
    if (list.size() == static_cast<size_t>(layers + further)) list.erase(list.begin() + layers, list.end());
  }
  for (const auto& [key, other] : kOtherNames) {
    if (!words.contains(other)) continue;
    if (words.contains(key) && words.at(key) != words.at(other))
      settings.refuse(key, fmt::format("the same as {}: {}", other, shown(words.at(other))));
    words[key] = words.at(other);
    words.erase(other);
  }
  name_mlps(settings, layers, words);
  name_heads(settings, words);
  name_layers(words);
  name_ropes(settings, layers, words);
  return words;
}

void parse_step(const ConfigReader& settings, Config& config) {
  constexpr const char* kHeads = "num_sliding_attention_heads";
  config.gates_heads = true;
  settings.only("mlp_bias", false);  // which experts have not
  const int64_t heads = settings.size(kHeads, kMaxHeads, config.num_attention_heads);
  if (heads % config.num_key_value_heads != 0)
    settings.refuse(kHeads,
                    fmt::format("a multiple of num_key_value_heads ({})", config.num_key_value_heads));
  json of_layers = json::object();
  for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    if (config.has_window(layer)) of_layers[std::to_string(layer)] = {{"num_attention_heads", heads}};
  }
  if (settings.find("per_layer_config") != nullptr) settings.only("per_layer_config", of_layers);
  if (!of_layers.empty() && heads != config.num_attention_heads) config.window_attention_heads = heads;
  config.expert_limits = limits_of(settings, "swiglu_limits", config.num_hidden_layers);
  config.mlp_limits = limits_of(settings, "swiglu_limits_shared", config.num_hidden_layers);
}

}  // namespace streambp
