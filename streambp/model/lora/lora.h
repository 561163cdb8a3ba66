// LoRA adapters as PEFT keeps them: adapter_config.json and adapter_model.safetensors in a folder.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "streambp/model/config/config.h"

namespace streambp {

/// PEFT's word for every linear map of a decoder layer. On a mixture it has the meaning of PEFT 0.21 on
/// transformers 5, where experts are two parameters a layer and not linear maps: the projections of
/// attention, the router, and every expert's fused gate_up_proj and its down_proj, but no dense MLP.
inline constexpr const char* kAllLinear = "all-linear";

/// The head, also where it has no matrix of its own (tied to the embedding).
inline constexpr const char* kHeadModule = "lm_head";

/// The settings of an adapter, under PEFT's names (LoraConfig).
struct LoraConfig {
  int64_t r = 8;
  double lora_alpha = 8.0;
  bool use_rslora =
      false;  // scale by alpha / sqrt(r) (Kalajdzievski, 2023, arXiv 2312.03732), else alpha / r
  /// Names of modules, or the last parts of them: q_proj, layers.0.mlp.down_proj, lm_head, ...; or kAllLinear
  /// alone.
  std::vector<std::string> target_modules = {};
  std::string target_pattern = {};  // instead of target_modules: a regular expression for whole names
  /// Not these after all, likewise by names or a pattern.
  std::vector<std::string> exclude_modules = {};
  std::string exclude_pattern = {};
  /// The only layers whose modules are targets; empty: all. layers_pattern names their list ("layers").
  std::vector<int64_t> layers_to_transform = {};
  std::vector<std::string> layers_pattern = {};
  /// Parameters under transformers 5's names: mlp.experts.gate_up_proj, mlp.experts.down_proj, or a linear
  /// map's weight.
  std::vector<std::string> target_parameters = {};
  /// Ranks and alphas of modules whose names end in what a regular expression matches; the first that fits.
  std::vector<std::pair<std::string, int64_t>> rank_pattern = {};
  std::vector<std::pair<std::string, double>> alpha_pattern = {};
  /// Modules whose names end so are trained whole, in a copy of their own.
  std::vector<std::string> modules_to_save = {};
  /// Rows that are trained of embed_tokens and lm_head.
  std::map<std::string, std::vector<int64_t>> trainable_token_indices = {};
  bool lora_bias = false;            // B has a bias: scale (B A x + b)
  bool ensure_weight_tying = false;  // of adapters of a head that is the embedding: refused
  std::string bias = "none";         // the base's own biases: none, all, or lora_only are trained
  /// Whether a target that no module has is passed over, as PEFT does with the folders it reads.
  bool may_miss_targets = false;
};

/// What an adapter is added to.
enum class LoraTargetKind {
  kLinear,
  kEmbedding,      // h += scale B A[:, token]
  kGateUpExperts,  // the fused gate_up_proj of all experts of a layer
  kDownExperts,    // their down_proj
};

/// A module with an adapter A [rank, in], B [out, rank]. Those of experts e hold one for each: rows [e rank,
/// (e + 1) rank) of A [experts rank, in], columns e, e + experts, ... of B [out, rank experts].
struct LoraTarget {
  std::string module;  // Hugging Face's name; of experts "model.layers.0.mlp.experts"
  int64_t out = 0;
  int64_t in = 0;
  int64_t rank = 0;
  double scale = 1.0;
  LoraTargetKind kind = LoraTargetKind::kLinear;
  int64_t experts = 1;
  std::string a, b;  // names of its tensors in adapter_model.safetensors
};

/// The modules of `config` that `lora` adapts, in the order of the model. Throws InputError naming a target
/// that no module has or that can't be adapted, a rank below 1, or an alpha that is not positive.
std::vector<LoraTarget> lora_targets(const Config& config, const LoraConfig& lora);

/// What is trained of the base in addition to adapters.
struct LoraExtras {
  std::vector<std::string> saved;  // parameters trained whole, under Hugging Face's names; "lm_head.weight"
                                   // is also there where the head is the embedding
  /// Rows that are trained, by parameter. Where the head is the embedding, of both.
  std::map<std::string, std::vector<int64_t>> rows;
  std::vector<std::pair<std::string, std::string>>
      biases;  // parameters, and their names in the adapter's file
};

/// Throws InputError for modules that are trained twice over, and for what is not supported (parts of
/// experts).
LoraExtras lora_extras(const Config& config, const LoraConfig& lora);

/// PEFT's prefix of every tensor's name.
inline constexpr const char* kPeftPrefix = "base_model.model.";

/// The name of an adapter's tensor in adapter_model.safetensors; `which` is A or B.
std::string lora_parameter_name(const std::string& module, char which);

/// The name of the rows that are trained of `module` in adapter_model.safetensors.
std::string trained_rows_name(const std::string& module);

/// Reads adapter_config.json. Throws InputError naming the file and the key for whatever changes the
/// mathematics and is not supported here (DoRA, an initialisation that changes base weights, ...), and for
/// keys that PEFT 0.21 doesn't have: a setting is honoured or refused.
LoraConfig read_lora_config(const std::filesystem::path& folder);

/// The same from text; `where` names the source in errors.
LoraConfig parse_lora_config(const std::string& text, const std::string& where);

/// The same, for a model: throws InputError, naming the file, as lora_extras does where it does not fit.
LoraConfig read_lora_config(const std::filesystem::path& folder, const Config& config);

/// The keys of adapter_config.json that are honoured or may only have one value, and those that say nothing
/// of the mathematics.
std::vector<std::string> known_lora_keys();

/// Writes adapter_config.json so that PEFT reads it back; `base` names the model.
void write_lora_config(const std::filesystem::path& folder, const LoraConfig& lora, const std::string& base);

}  // namespace streambp
