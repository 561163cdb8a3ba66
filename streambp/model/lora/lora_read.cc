// Reading adapter_config.json, key by key. See lora.h.
#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "streambp/error.h"
#include "streambp/model/files/strict_json.h"
#include "streambp/model/lora/lora.h"
#include "streambp/model/lora/whole_adapters.h"

namespace streambp {
namespace {

using nlohmann::json;

/// Keys that change the mathematics, with the only value taken here.
struct Fixed {
  const char* key;
  json value;
};

const std::vector<Fixed>& fixed_keys() {
  static const std::vector<Fixed> keys{
      {"peft_type", "LORA"},
      {"use_dora", false},
      {"use_qalora", false},
      {"use_bdlora", nullptr},
      {"fan_in_fan_out", false},
      {"layer_replication", nullptr},
      {"alora_invocation_tokens", nullptr},
      {"velora_config", nullptr},
      {"monteclora_config", nullptr},
      {"arrow_config", nullptr},
      {"kasa_config", nullptr},
      {"megatron_config", nullptr},
      {"enable_lora", nullptr},  // of PEFT before 0.3
  };
  return keys;
}

/// Keys that `read_lora_config` reads one by one.
const std::vector<std::string> kHonoured{"r",
                                         "lora_alpha",
                                         "use_rslora",
                                         "target_modules",
                                         "bias",
                                         "lora_bias",
                                         "exclude_modules",
                                         "layers_to_transform",
                                         "layers_pattern",
                                         "target_parameters",
                                         "rank_pattern",
                                         "alpha_pattern",
                                         "modules_to_save",
                                         "trainable_token_indices",
                                         "init_lora_weights",
                                         "ensure_weight_tying",
                                         "lora_dropout",
                                         "task_type"};

/// Keys that say nothing of the mathematics: where the adapter comes from, and settings of initialisations
/// and variants that other keys switch on.
const std::vector<std::string> kSilent{"auto_mapping",      "base_model_name_or_path",
                                       "revision",          "inference_mode",
                                       "peft_version",      "megatron_core",
                                       "qalora_group_size", "loftq_config",
                                       "eva_config",        "corda_config",
                                       "lora_ga_config",    "merge_weights"};

/// Initialisations that only draw A and B, which the file has anyway. The others subtract the
/// adapter from the base weights, or quantise them, when PEFT loads the folder (pissa, olora, corda, loftq,
/// lora_ga), or freeze B (mica).
bool is_harmless_init(const json& value) {
  return value.is_null() || value.is_boolean() || value == "gaussian" || value == "eva" ||
         value == "orthogonal";
}

/// A string that an error message can show as it is.
bool is_name(const json& value) {
  if (!value.is_string()) return false;
  const auto& text = value.get_ref<const std::string&>();
  return std::all_of(text.begin(), text.end(), [](char c) { return c >= ' ' && c <= '~'; });
}

/// Reads the keys of one file.
class Reader {
 public:
  Reader(const json& config, const std::string& where) : config_(config), where_(where) {}

  /// Null where the key is absent.
  const json& at(const char* key) const {
    static const json nothing;
    const auto found = config_.find(key);
    return found == config_.end() ? nothing : *found;
  }

  [[noreturn]] void refuse(const char* key, const std::string& expected) const {
    throw InputError("{}: {} is {}, expected {}", where_, key, shown(at(key)), expected);
  }

  bool flag(const char* key) const {
    const json& value = at(key);
    if (value.is_null()) return false;
    if (!value.is_boolean()) refuse(key, "true or false");
    return value.get<bool>();
  }

  int64_t rank(const json& value, const char* key) const {
    if (!value.is_number_integer() || value.get<int64_t>() < 1 || value.get<int64_t>() > 1'000'000)
      refuse(key, "a whole number from 1 to 1000000");
    return value.get<int64_t>();
  }

  double alpha(const json& value, const char* key) const {
    const double number = value.is_number() ? value.get<double>() : 0.0;
    if (!(number > 0.0 && std::isfinite(number))) refuse(key, "a positive number");
    return number;
  }

  std::vector<std::string> words(const char* key) const {
    const json& value = at(key);
    if (value.is_null()) return {};
    if (!value.is_array() ||
        !std::all_of(value.begin(), value.end(), [](const json& entry) { return is_name(entry); }))
      refuse(key, "a list of names");
    return value.get<std::vector<std::string>>();
  }

  /// Names of letters, digits, underscores and dots, which mean the same as regular expressions.
  std::vector<std::string> plain_words(const char* key) const {
    std::vector<std::string> given =
        at(key).is_string() ? std::vector{at(key).get<std::string>()} : words(key);
    for (const std::string& word : given) {
      const bool plain = !word.empty() && std::all_of(word.begin(), word.end(), [](unsigned char c) {
        return std::isalnum(c) != 0 || c == '_' || c == '.';
      });
      if (!plain) refuse(key, "names without special characters");
    }
    return given;
  }

  std::vector<int64_t> integers(const json& value, const char* key) const {
    if (value.is_number_integer()) return {value.get<int64_t>()};
    if (!value.is_array() ||
        !std::all_of(value.begin(), value.end(), [](const json& entry) { return entry.is_number_integer(); }))
      refuse(key, "whole numbers");
    return value.get<std::vector<int64_t>>();
  }

 private:
  const json& config_;
  const std::string& where_;
};

void refuse_unsupported_adapters(const json& config, const std::string& where) {
  for (const Fixed& fixed : fixed_keys()) {
    const auto found = config.find(fixed.key);
    // null stands for a default everywhere but where a type has to be named.
    if (found == config.end() || found->is_null() || *found == fixed.value) continue;
    throw InputError("{}: {} is {}, only {} is supported", where, fixed.key, shown(*found),
                     fixed.value.dump());
  }
  if (const auto type = config.find("peft_type"); type == config.end() || type->is_null())
    throw InputError("{}: no peft_type in it, expected \"LORA\"", where);
  const std::vector<std::string> known = known_lora_keys();
  for (const auto& [key, value] : config.items()) {
    if (std::find(known.begin(), known.end(), key) == known.end())
      throw InputError("{}: unknown key {}: no setting of PEFT's LoraConfig (0.21)", where, shown(key));
  }
  if (const auto init = config.find("init_lora_weights"); init != config.end() && !is_harmless_init(*init)) {
    throw InputError(
        "{}: init_lora_weights is {}, which changes base weights or what is trained when PEFT loads the "
        "folder; "
        "expected true, false, \"gaussian\", \"eva\" or \"orthogonal\" (save_pretrained with "
        "path_initial_model_for_weight_conversion makes a plain adapter)",
        where, shown(*init));
  }
}

template <typename Number, typename Read>
std::vector<std::pair<std::string, Number>> read_pattern(const nlohmann::ordered_json& config,
                                                         const char* key, const Reader& reader, Read read) {
  std::vector<std::pair<std::string, Number>> pattern;
  if (reader.at(key).is_null()) return pattern;
  if (!reader.at(key).is_object()) reader.refuse(key, "an object of names and numbers");
  for (const auto& [name, value] : config.at(key).items()) pattern.emplace_back(name, read(json(value), key));
  return pattern;
}

void read_targets(const Reader& reader, LoraConfig& lora, const std::string& where) {
  const json& targets = reader.at("target_modules");
  lora.target_parameters = reader.words("target_parameters");
  if (targets == kAllLinear) {
    lora.target_modules = {kAllLinear};
  } else if (targets.is_string()) {
    lora.target_pattern = targets.get<std::string>();
    if (lora.target_pattern.empty()) reader.refuse("target_modules", "names or a pattern");
  } else if (targets.is_array()) {
    lora.target_modules = reader.words("target_modules");
    // In a list PEFT takes it for a module's name, of which there is none.
    if (std::find(lora.target_modules.begin(), lora.target_modules.end(), kAllLinear) !=
        lora.target_modules.end())
      reader.refuse("target_modules", "\"all-linear\" by itself, not in a list");
    std::sort(lora.target_modules.begin(), lora.target_modules.end());
  }
  if (lora.target_modules.empty() && lora.target_pattern.empty() && lora.target_parameters.empty()) {
    if (targets.is_null()) throw InputError("{}: no target_modules in it", where);
    reader.refuse("target_modules", "a list of module names, a regular expression or \"all-linear\"");
  }
  if (const json& excluded = reader.at("exclude_modules"); excluded.is_string()) {
    lora.exclude_pattern = excluded.get<std::string>();
  } else {
    lora.exclude_modules = reader.words("exclude_modules");
  }
  if (const json& layers = reader.at("layers_to_transform"); !layers.is_null())
    lora.layers_to_transform = reader.integers(layers, "layers_to_transform");
  lora.layers_pattern = reader.plain_words("layers_pattern");
  if (!lora.layers_to_transform.empty() && !targets.is_array())
    reader.refuse("layers_to_transform", "target_modules by their names with it");
}

void read_extras(const Reader& reader, LoraConfig& lora) {
  lora.modules_to_save = reader.plain_words("modules_to_save");
  if (reader.at("task_type") == "SEQ_CLS") {  // PEFT saves the head of a classifier, by either name
    for (const char* head : {"classifier", "score"}) {
      if (std::find(lora.modules_to_save.begin(), lora.modules_to_save.end(), head) ==
          lora.modules_to_save.end())
        lora.modules_to_save.emplace_back(head);
    }
  }
  const char* key = "trainable_token_indices";
  if (const json& tokens = reader.at(key); tokens.is_object()) {
    for (const auto& [module, of_module] : tokens.items()) {
      if (!is_name(module)) reader.refuse(key, "names of modules");
      lora.trainable_token_indices[module] = reader.integers(of_module, key);
    }
  } else if (!tokens.is_null()) {
    lora.trainable_token_indices["embed_tokens"] = reader.integers(tokens, key);
  }
  lora.lora_bias = reader.flag("lora_bias");
  lora.ensure_weight_tying = reader.flag("ensure_weight_tying");
  // Shapes, predictions and gradients in evaluation mode, which these passes have, don't depend on it.
  if (const json& dropout = reader.at("lora_dropout");
      !dropout.is_null() &&
      !(dropout.is_number() && dropout.get<double>() >= 0.0 && dropout.get<double>() < 1.0))
    reader.refuse("lora_dropout", "a number from 0 and below 1");
  if (const json& bias = reader.at("bias"); !bias.is_null()) {
    if (bias != "none" && bias != "all" && bias != "lora_only")
      reader.refuse("bias", "\"none\", \"all\" or \"lora_only\"");
    lora.bias = bias.get<std::string>();
  }
}

}  // namespace

std::vector<std::string> known_lora_keys() {
  std::vector<std::string> keys = kHonoured;
  keys.insert(keys.end(), kSilent.begin(), kSilent.end());
  for (const Fixed& fixed : fixed_keys()) keys.emplace_back(fixed.key);
  return keys;
}

LoraConfig read_lora_config(const std::filesystem::path& folder) {
  const std::filesystem::path path = folder / "adapter_config.json";
  return parse_lora_config(read_text_file(path), path.string());
}

LoraConfig parse_lora_config(const std::string& text, const std::string& where) {
  const json config = parse_strict_json(text, where);
  if (!config.is_object()) throw InputError("{}: expected a JSON object", where);
  refuse_unsupported_adapters(config, where);
  const Reader reader(config, where);
  LoraConfig lora;
  lora.may_miss_targets = true;
  for (const char* key : {"r", "lora_alpha"}) {
    if (!reader.at(key).is_number()) throw InputError("{}: {} is missing or not a number", where, key);
  }
  lora.r = reader.rank(reader.at("r"), "r");
  lora.lora_alpha = reader.alpha(reader.at("lora_alpha"), "lora_alpha");
  lora.use_rslora = reader.flag("use_rslora");
  // The first pattern that fits counts, so their order does.
  const auto ordered = nlohmann::ordered_json::parse(text);
  lora.rank_pattern =
      read_pattern<int64_t>(ordered, "rank_pattern", reader,
                            [&](const json& value, const char* key) { return reader.rank(value, key); });
  lora.alpha_pattern =
      read_pattern<double>(ordered, "alpha_pattern", reader,
                           [&](const json& value, const char* key) { return reader.alpha(value, key); });
  read_targets(reader, lora, where);
  read_extras(reader, lora);
  return lora;
}

LoraConfig read_lora_config(const std::filesystem::path& folder, const Config& config) {
  LoraConfig lora = read_lora_config(folder);
  if (const std::filesystem::path weights = folder / kAdapterFile; std::filesystem::exists(weights)) {
    const SafetensorsFile file = SafetensorsFile::open(weights);
    const AdapterNames names(file.entries(), config);
    if (names.of_whole()) lora = lora_of_decoder(config, lora, names, file.entries());
  }
  try {
    lora_extras(config, lora);
  } catch (const InputError& error) {
    throw InputError("{}: {}", (folder / "adapter_config.json").string(), error.what());
  }
  return lora;
}

}  // namespace streambp
