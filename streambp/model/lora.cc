#include "streambp/model/lora.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <fmt/ranges.h>
#include <fstream>
#include <nlohmann/json.hpp>

#include "streambp/error.h"
#include "streambp/model/strict_json.h"

namespace streambp {
namespace {

using nlohmann::json;

/// Keys of adapter_config.json that change the mathematics, with the only value taken here.
struct Fixed {
  const char* key;
  json value;
};

const std::vector<Fixed>& fixed_keys() {
  static const std::vector<Fixed> keys{
      {"peft_type", "LORA"},
      {"bias", "none"},
      {"use_dora", false},
      {"use_qalora", false},
      {"use_bdlora", nullptr},
      {"lora_bias", false},
      {"fan_in_fan_out", false},
      {"modules_to_save", nullptr},
      {"layers_to_transform", nullptr},
      {"layer_replication", nullptr},
      {"exclude_modules", nullptr},
      {"target_parameters", nullptr},
      {"trainable_token_indices", nullptr},
      {"alora_invocation_tokens", nullptr},
      {"rank_pattern", json::object()},
      {"alpha_pattern", json::object()},
      {"lora_dropout", 0.0},
  };
  return keys;
}

std::vector<std::string> read_targets(const json& value, const std::string& where) {
  if (value == kAllLinear) return {kAllLinear};
  if (value.is_array() && !value.empty() &&
      std::all_of(value.begin(), value.end(), [](const json& entry) { return entry.is_string(); })) {
    auto targets = value.get<std::vector<std::string>>();
    std::sort(targets.begin(), targets.end());
    return targets;
  }
  throw InputError("{}: target_modules is {}, expected a list of module names or \"all-linear\"", where,
                   value.dump());
}

std::vector<std::string> all_linear_modules(const Config& config) {
  if (config.fused_projections) return {"qkv_proj", "o_proj", "gate_up_proj", "down_proj"};
  return {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"};
}

}  // namespace

double LoraConfig::scale() const {
  return lora_alpha / (use_rslora ? std::sqrt(static_cast<double>(r)) : static_cast<double>(r));
}

std::vector<LoraTarget> lora_targets(const Config& config, const LoraConfig& lora) {
  if (lora.r < 1) throw InputError("LoRA rank {}: expected 1 or more", lora.r);
  if (!(lora.lora_alpha > 0.0 && std::isfinite(lora.lora_alpha))) {
    throw InputError("LoRA alpha {}: expected a positive number", lora.lora_alpha);
  }
  const std::vector<std::string> known = all_linear_modules(config);
  const auto& chosen =
      lora.target_modules == std::vector<std::string>{kAllLinear} ? known : lora.target_modules;
  for (const std::string& target : chosen) {
    if (std::find(known.begin(), known.end(), target) == known.end()) {
      throw InputError("LoRA target '{}': no such linear map in a {} layer; expected some of {}", target,
                       config.family, fmt::join(known, ", "));
    }
  }
  if (chosen.empty()) throw InputError("LoRA: no target modules");
  std::vector<LoraTarget> targets;
  for (const ParameterShape& parameter : parameter_shapes(config)) {
    constexpr std::string_view kWeight = ".weight";
    if (!parameter.name.ends_with(kWeight) || parameter.shape.size() != 2) continue;
    const std::string module = parameter.name.substr(0, parameter.name.size() - kWeight.size());
    const std::string last = module.substr(module.rfind('.') + 1);
    if (std::find(chosen.begin(), chosen.end(), last) != chosen.end()) {
      targets.push_back({module, parameter.shape[0], parameter.shape[1]});
    }
  }
  return targets;
}

std::string lora_parameter_name(const std::string& module, char which) {
  return fmt::format("base_model.model.{}.lora_{}.weight", module, which);
}

LoraConfig read_lora_config(const std::filesystem::path& folder) {
  const std::filesystem::path path = folder / "adapter_config.json";
  const std::string where = path.string();
  const json config = parse_strict_json(read_text_file(path), where);
  if (!config.is_object()) throw InputError("{}: expected a JSON object", where);
  for (const Fixed& fixed : fixed_keys()) {
    const auto found = config.find(fixed.key);
    // null stands for a default everywhere but where a type has to be named.
    if (found == config.end() || found->is_null() || *found == fixed.value) continue;
    throw InputError("{}: {} is {}, only {} is supported", where, fixed.key, found->dump(),
                     fixed.value.dump());
  }
  if (!config.contains("peft_type")) throw InputError("{}: no peft_type in it, expected \"LORA\"", where);
  LoraConfig lora;
  const auto number = [&](const char* key) {
    const auto found = config.find(key);
    if (found == config.end() || !found->is_number())
      throw InputError("{}: {} is missing or not a number", where, key);
    return *found;
  };
  const json rank = number("r");
  if (!rank.is_number_integer() || rank.get<int64_t>() < 1 || rank.get<int64_t>() > 1'000'000) {
    throw InputError("{}: r is {}, expected a whole number from 1 to 1000000", where, rank.dump());
  }
  lora.r = rank.get<int64_t>();
  lora.lora_alpha = number("lora_alpha").get<double>();
  if (!(lora.lora_alpha > 0.0 && std::isfinite(lora.lora_alpha))) {
    throw InputError("{}: lora_alpha is {}, expected a positive number", where, lora.lora_alpha);
  }
  if (const auto rslora = config.find("use_rslora"); rslora != config.end() && !rslora->is_null()) {
    if (!rslora->is_boolean())
      throw InputError("{}: use_rslora is {}, expected true or false", where, rslora->dump());
    lora.use_rslora = rslora->get<bool>();
  }
  if (!config.contains("target_modules")) throw InputError("{}: no target_modules in it", where);
  lora.target_modules = read_targets(config["target_modules"], where);
  return lora;
}

void write_lora_config(const std::filesystem::path& folder, const LoraConfig& lora, const std::string& base) {
  const std::filesystem::path path = folder / "adapter_config.json";
  json config{{"base_model_name_or_path", base},
              {"bias", "none"},
              {"fan_in_fan_out", false},
              {"inference_mode", true},
              {"lora_alpha", lora.lora_alpha},
              {"lora_dropout", 0.0},
              {"peft_type", "LORA"},
              {"r", lora.r},
              {"target_modules", lora.target_modules == std::vector<std::string>{kAllLinear}
                                     ? json(kAllLinear)
                                     : json(lora.target_modules)},
              {"task_type", "CAUSAL_LM"},
              {"use_rslora", lora.use_rslora}};
  std::ofstream file(path);
  file << config.dump(2) << '\n';
  if (!file.flush()) throw InputError("{}: can't be written", path.string());
}

}  // namespace streambp
