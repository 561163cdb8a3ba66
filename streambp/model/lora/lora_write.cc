// Writing adapter_config.json. See lora.h.
#include <nlohmann/json.hpp>

#include "streambp/model/lora/lora.h"
#include "streambp/runtime/output_file.h"

namespace streambp {
namespace {

using nlohmann::json;

json pairs_json(const auto& pairs) {
  json object = json::object();
  for (const auto& [name, value] : pairs) object[name] = value;
  return object;
}

json names_or_pattern(const std::vector<std::string>& names, const std::string& pattern) {
  if (!pattern.empty()) return pattern;
  return names.empty() ? json() : json(names);
}

json list_or_null(const auto& list) {
  return list.empty() ? json() : json(list);
}

}  // namespace

void write_lora_config(const std::filesystem::path& folder, const LoraConfig& lora, const std::string& base) {
  const bool all_linear = lora.target_modules == std::vector<std::string>{kAllLinear};
  json targets = names_or_pattern(lora.target_modules, lora.target_pattern);
  if (all_linear) targets = kAllLinear;
  const json config{{"alpha_pattern", pairs_json(lora.alpha_pattern)},
                    {"base_model_name_or_path", base},
                    {"bias", lora.bias},
                    {"ensure_weight_tying", lora.ensure_weight_tying},
                    {"exclude_modules", names_or_pattern(lora.exclude_modules, lora.exclude_pattern)},
                    {"fan_in_fan_out", false},
                    {"inference_mode", true},
                    {"layers_pattern", list_or_null(lora.layers_pattern)},
                    {"layers_to_transform", list_or_null(lora.layers_to_transform)},
                    {"lora_alpha", lora.lora_alpha},
                    {"lora_bias", lora.lora_bias},
                    {"lora_dropout", 0.0},
                    {"modules_to_save", list_or_null(lora.modules_to_save)},
                    {"peft_type", "LORA"},
                    {"r", lora.r},
                    {"rank_pattern", pairs_json(lora.rank_pattern)},
                    {"target_modules", targets},
                    {"target_parameters", list_or_null(lora.target_parameters)},
                    {"task_type", "CAUSAL_LM"},
                    {"trainable_token_indices", list_or_null(lora.trainable_token_indices)},
                    {"use_rslora", lora.use_rslora}};
  write_file(folder / "adapter_config.json", config.dump(2) + '\n');
}

}  // namespace streambp
