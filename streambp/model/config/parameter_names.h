// What the name of a parameter says of it.
#pragma once

#include <string>
#include <string_view>

namespace streambp {

/// What the logarithms of factors of rotary frequencies are called (Mistral Large 4).
inline constexpr const char* kTrainedFrequencies = "model.rotary_emb.alpha";

/// Whether a parameter of this name has the role ParameterRole::kCorrection.
inline bool is_correction(const std::string& name) {
  return name.ends_with(".e_score_correction_bias") || name.ends_with(".expert_bias");
}

/// Whether a parameter of this name has the role ParameterRole::kHash.
inline bool is_hash_table(const std::string& name) {
  return name.ends_with(".tid2eid");
}

/// Whether a parameter of this name is a buffer in transformers, which no optimizer sees.
inline bool is_buffer(const std::string& name) {
  return is_correction(name) || is_hash_table(name) || name.ends_with(".layer_scalar");
}

/// Whether a parameter of this name, an adapter's included, belongs to an indexer: it is a parameter in
/// transformers too, and no gradient ever reaches it.
inline bool is_of_indexer(const std::string& name) {
  return name.find(".indexer.") != std::string::npos;
}

/// Whether a parameter of this name has the role ParameterRole::kHyper: of Muse Spark's residual gates too.
inline bool is_of_hyper_connection(const std::string& name) {
  return name.find(".attn_hc.") != std::string::npos || name.find(".ffn_hc.") != std::string::npos ||
         name.find(".hc_head.") != std::string::npos || name.ends_with("_residual_gate.gate");
}

/// Whether a parameter of this name never has a gradient.
inline bool is_never_trained(const std::string& name) {
  return is_buffer(name) || is_of_indexer(name);
}

/// Whether a parameter of this name is float32 or wider in every model.
inline bool is_always_wide(const std::string& name) {
  return is_correction(name) || is_hash_table(name) || name.ends_with(".indexer.weights_proj.weight") ||
         name.ends_with(".indexer.scorer.weights_proj.weight") || is_of_hyper_connection(name) ||
         name == kTrainedFrequencies;
}

/// Whether a parameter of this name may be float32 in a model of 16 bits that is lent, as transformers loads
/// routers of corrected mixtures, biases of Kimi Linear's decays and Hunyuan 4's sinks.
inline bool may_be_wide(const std::string& name) {
  return name.ends_with(".gate.weight") || name.ends_with(".dt_bias") || name.ends_with(".sinks");
}

/// In names of a shared block's modules (Zamba 2).
inline constexpr std::string_view kSharedBlock = ".shared_transformer.";

/// Whether a parameter of this name is a shared block's (Zamba 2), which several layers run; adapters that
/// LoRA adds are each layer's own.
inline bool is_of_shared_block(std::string_view name) {
  return name.starts_with("model.layers.") && name.find(kSharedBlock) != std::string_view::npos;
}

/// "model.norm" of "model.norm.weight".
inline std::string module_of(const std::string& parameter) {
  return parameter.substr(0, parameter.rfind('.'));
}

}  // namespace streambp
