// LoRA adapters as PEFT keeps them: adapter_config.json and adapter_model.safetensors in a folder.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "streambp/model/config.h"

namespace streambp {

/// PEFT's word for every linear map of a decoder layer. A mixture's router is none of them.
inline constexpr const char* kAllLinear = "all-linear";

/// The settings of an adapter, under PEFT's names (LoraConfig).
struct LoraConfig {
  int64_t r = 8;
  double lora_alpha = 8.0;
  bool use_rslora =
      false;  // scale by alpha / sqrt(r) (Kalajdzievski, 2023, arXiv 2312.03732), else alpha / r
  /// Last part of the module names: q_proj, down_proj, ...; or kAllLinear alone.
  std::vector<std::string> target_modules;

  double scale() const;
};

/// The linear maps of `config` that `lora` adapts, by Hugging Face's module name, in the order of the model,
/// with their sizes. Throws InputError naming a target that no module has, a rank below 1, or an alpha that
/// is not positive.
struct LoraTarget {
  std::string module;
  int64_t out = 0;
  int64_t in = 0;
};
std::vector<LoraTarget> lora_targets(const Config& config, const LoraConfig& lora);

/// The name of an adapter's tensor in adapter_model.safetensors; `which` is A or B.
std::string lora_parameter_name(const std::string& module, char which);

/// Reads adapter_config.json. Throws InputError naming the file and the key for whatever changes the
/// mathematics and is not supported here (DoRA, biases, saved modules, patterns, ...): a setting is
/// honoured or refused.
LoraConfig read_lora_config(const std::filesystem::path& folder);

/// Writes adapter_config.json so that PEFT reads it back; `base` names the model.
void write_lora_config(const std::filesystem::path& folder, const LoraConfig& lora, const std::string& base);

}  // namespace streambp
