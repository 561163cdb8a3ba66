// Adapter folders that were trained on a whole model (Gemma 3 and 4, Mistral 3, Qwen3.5 with their towers),
// of which the decoder is a part, read as the decoder's own.
#pragma once

#include <map>
#include <optional>
#include <string>

#include "streambp/model/config/config.h"
#include "streambp/model/files/safetensors.h"
#include "streambp/model/lora/lora.h"

namespace streambp {

inline constexpr const char* kAdapterFile = "adapter_model.safetensors";

/// What the tensors of an adapter_model.safetensors are called, and what they would be called with the
/// decoder alone. The whole model's decoder is model.language_model in transformers 5, and
/// language_model.model with language_model.lm_head in transformers 4.
class AdapterNames {
 public:
  AdapterNames(const std::map<std::string, SafetensorsEntry>& stored, const Config& config);

  bool of_whole() const { return !decoder_.empty(); }
  /// The name in the file of a tensor of the decoder alone.
  std::string stored(const std::string& name) const;
  /// The inverse: nothing for a tensor of a tower, which a pass over text never reaches.
  std::optional<std::string> of_decoder(const std::string& stored) const;
  /// What the whole model calls a module of the decoder.
  std::string whole(const std::string& module) const;

 private:
  std::string with_norm_of_class(const std::string& module) const;

  std::string decoder_, head_;  // of module names, in place of `model.` and `lm_head`
  std::string norm_;            // of the class, in place of `model.norm`
};

/// `lora` of a whole model for its decoder alone: the modules that have an adapter in the file by their
/// names, each with the rank and alpha that patterns over whole names give it.
LoraConfig lora_of_decoder(const Config& config, const LoraConfig& lora, const AdapterNames& names,
                           const std::map<std::string, SafetensorsEntry>& stored);

}  // namespace streambp
