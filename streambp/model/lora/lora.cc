#include "streambp/model/lora/lora.h"

#include <algorithm>
#include <cmath>
#include <fmt/ranges.h>
#include <optional>
#include <set>

#include "streambp/error.h"
#include "streambp/model/config/family.h"
#include "streambp/model/lora/all_linear.h"
#include "streambp/model/lora/module_pattern.h"

namespace streambp {
namespace {

constexpr const char* kExperts = ".experts.";

/// A module that can have an adapter.
struct Adaptable {
  std::string name;
  int64_t out = 0;
  int64_t in = 0;
  bool is_embedding = false;
  bool is_parameter = false;  // only a target parameter: its module is no linear map
};

/// Whether the maps of experts are no modules to PEFT: transformers 5 holds them in two parameters, for which
/// PEFT 0.21.2 takes their old names in the mixtures that it converts.
bool hides_experts(const Config& config) {
  const MixtureSettings& mixture = config.mixture;
  return (mixture.shared_expert_intermediate_size > 0 && !mixture.shared_expert_ungated) ||
         mixture.biased_interleaved || mixture.next_to_mlp || !config.has_gate() ||
         family_of(config).experts.parameters_in_peft;
}

/// Whether a parameter is the matrix of a linear map or the embedding's. PEFT adapts convolutions otherwise,
/// where they are named; kAllLinear leaves them out.
bool is_map(const ParameterShape& parameter) {
  const ParameterRole role = parameter.role;
  return role == ParameterRole::kEmbedding || role == ParameterRole::kWeight ||
         role == ParameterRole::kHead || (role == ParameterRole::kIndexer && parameter.shape.size() == 2);
}

/// The names that modules have for a parameter: of a block that several layers share each of these has
/// modules of its own, over the same weights.
std::vector<std::string> names_of(const Config& config, const ParameterShape& parameter) {
  if (!is_of_shared_block(parameter.name)) return {parameter.name};
  std::vector<std::string> names;
  const size_t at = parameter.name.find(kSharedBlock);
  for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    if (!config.runs_block(layer)) continue;
    const std::string owner = fmt::format("model.layers.{}.", config.block_owner(layer));
    if (parameter.name.starts_with(owner))
      names.push_back(fmt::format("model.layers.{}{}", layer, parameter.name.substr(at)));
  }
  return names;
}

std::vector<Adaptable> adaptable_modules(const Config& config) {
  std::vector<Adaptable> modules;
  for (const ParameterShape& parameter : parameter_shapes(config)) {
    if (!is_map(parameter) || (parameter.of_expert && hides_experts(config))) continue;
    const bool is_parameter = parameter.name.ends_with(".mlp.router.weight") ||
                              parameter.name.ends_with(".router.layer.weight") ||
                              parameter.name.ends_with(".o_a_proj.weight") ||
                              ((config.mixture.sigmoid_scores || config.mixture.corrected) &&
                               parameter.name.ends_with(".gate.weight"));
    for (const std::string& name : names_of(config, parameter))
      modules.push_back({module_of(name), parameter.shape[0], parameter.shape[1],
                         parameter.role == ParameterRole::kEmbedding, is_parameter});
  }
  if (config.tie_word_embeddings && !config.value_model)
    modules.push_back({kHeadModule, config.vocab_size, config.hidden_size});
  for (Adaptable& module : modules) {
    if (module.is_embedding) std::swap(module.out, module.in);  // from tokens to hidden states
  }
  return modules;
}

/// Every module that holds a parameter, at any depth.
std::set<std::string> all_modules(const Config& config) {
  std::set<std::string> modules;
  for (const ParameterShape& parameter : parameter_shapes(config)) {
    for (const std::string& name : names_of(config, parameter)) {
      for (size_t dot = name.rfind('.'); dot != std::string::npos && dot > 0; dot = name.rfind('.', dot - 1))
        modules.insert(name.substr(0, dot));
    }
  }
  if (!config.value_model) modules.insert(kHeadModule);
  return modules;
}

/// `lora` without kAllLinear. On a mixture PEFT takes the router and the experts' parameters instead of the
/// linear maps of transformers 4 that had their names, dense MLPs of other layers included; the fused
/// gate_up_proj gets the ranks and alphas of both (PEFT 0.21.2, _convert_peft_config_moe).
LoraConfig without_all_linear(const Config& config, LoraConfig lora) {
  if (lora.target_modules != std::vector<std::string>{kAllLinear}) return lora;
  lora.target_modules = all_linear_names(config);
  // The maps of the model's own adapters, of all that a block has in each layer that runs it.
  if (config.has_shared_blocks()) lora.target_modules.insert(lora.target_modules.end(), {"0", "1"});
  // Where every layer has experts that are no modules, there may be no MLP.
  const std::vector<Adaptable> modules = adaptable_modules(config);
  std::erase_if(lora.target_modules, [&](const std::string& name) {
    return std::none_of(modules.begin(), modules.end(),
                        [&](const Adaptable& module) { return is_named(module.name, name); });
  });
  if (config.mixture.shared_expert_intermediate_size > 0 && !config.mixture.shared_expert_ungated)
    lora.target_modules.emplace_back("shared_expert_gate");
  if (config.mixture.num_experts == 0 || hides_experts(config)) return lora;
  lora.target_modules = attention_names(config);
  lora.target_parameters.insert(lora.target_parameters.end(), {"gate.weight", "gate_up_proj", "down_proj"});
  lora.rank_pattern.emplace_back(R"(.*\.gate_up_proj)", 2 * lora.r);
  lora.alpha_pattern.emplace_back(R"(.*\.gate_up_proj)", 2.0 * lora.lora_alpha);
  return lora;
}

bool is_any(const std::string& name, const std::vector<std::string>& ends) {
  return std::any_of(ends.begin(), ends.end(), [&](const std::string& end) { return is_named(name, end); });
}

std::optional<ModulePattern> pattern_of(const std::string& pattern, const char* key) {
  if (pattern.empty()) return std::nullopt;
  return ModulePattern(pattern, fmt::format("LoRA {}", key));
}

template <typename Number>
std::vector<std::pair<ModulePattern, Number>> patterns_of(
    const std::vector<std::pair<std::string, Number>>& given, const char* key) {
  std::vector<std::pair<ModulePattern, Number>> patterns;
  for (const auto& [pattern, number] : given) {
    const std::string where = fmt::format("LoRA {}", key);
    const ModulePattern alone(pattern, where);  // what breaks out of the parentheses is refused
    patterns.emplace_back(ModulePattern(fmt::format("(?:.*\\.)?(?:{})", pattern), where), number);
  }
  return patterns;
}

void require_rank(int64_t rank, const std::string& what) {
  if (rank < 1) throw InputError("LoRA rank {}{}: expected 1 or more", rank, what);
}

void require_alpha(double alpha, const std::string& what) {
  if (!(alpha > 0.0 && std::isfinite(alpha)))
    throw InputError("LoRA alpha {}{}: expected a positive number", alpha, what);
}

/// Which modules have an adapter, by PEFT's rules (check_target_module_exists), and of which size.
class Targets {
 public:
  Targets(const Config& config, const LoraConfig& given)
      : config_(config),
        lora_(without_all_linear(config, given)),
        target_(pattern_of(lora_.target_pattern, "target_modules")),
        exclude_(pattern_of(lora_.exclude_pattern, "exclude_modules")),
        ranks_(patterns_of(lora_.rank_pattern, "rank_pattern")),
        alphas_(patterns_of(lora_.alpha_pattern, "alpha_pattern")) {
    require_rank(lora_.r, "");
    require_alpha(lora_.lora_alpha, "");
    for (const auto& [pattern, rank] : lora_.rank_pattern) require_rank(rank, " of '" + pattern + "'");
    for (const auto& [pattern, alpha] : lora_.alpha_pattern) require_alpha(alpha, " of '" + pattern + "'");
    if (target_ && (!lora_.layers_to_transform.empty() || !lora_.layers_pattern.empty()))
      throw InputError("LoRA: layers_to_transform needs target_modules by their names, not a pattern");
  }

  std::vector<LoraTarget> take() {
    const std::vector<Adaptable> modules = adaptable_modules(config_);
    require_names(modules);
    for (const Adaptable& module : modules) {
      if (!module.is_parameter && is_target(module.name)) add(module);
    }
    for (const std::string& parameter : lora_.target_parameters) add_parameters(parameter, modules);
    if (found_.empty()) throw InputError("LoRA: no target modules");
    return std::move(found_);
  }

 private:
  bool is_excluded(const std::string& module) const {
    if (exclude_ && exclude_->matches(module)) return true;
    if (is_any(module, lora_.exclude_modules)) return true;
    return std::any_of(lora_.modules_to_save.begin(), lora_.modules_to_save.end(),
                       [&](const std::string& saved) { return has_part(module, saved); });
  }

  bool is_target(const std::string& module) const {
    if (is_excluded(module)) return false;
    if (target_) return target_->matches(module);
    // A whole name counts in every layer.
    const auto& names = lora_.target_modules;
    if (std::find(names.begin(), names.end(), module) != names.end()) return true;
    if (!is_any(module, names)) return false;
    const auto& layers = lora_.layers_to_transform;
    if (layers.empty()) return true;
    const int64_t layer = layer_of_module(module, lora_.layers_pattern);
    return layer >= 0 && std::find(layers.begin(), layers.end(), layer) != layers.end();
  }

  /// Throws for a target that is there and can't be adapted, and for one that is not there.
  void require_names(const std::vector<Adaptable>& modules) const {
    const std::set<std::string> all = all_modules(config_);
    const auto can_adapt = [&](const std::string& name) {
      return std::any_of(modules.begin(), modules.end(),
                         [&](const Adaptable& m) { return !m.is_parameter && m.name == name; });
    };
    for (const std::string& module : all) {
      if (target_ && is_target(module) && !can_adapt(module))
        throw InputError("LoRA target_modules '{}': fits {}, which is no linear map", lora_.target_pattern,
                         module);
    }
    for (const std::string& target : lora_.target_modules) {
      const auto fits = [&](const std::string& name) { return is_named(name, target); };
      const auto can_adapt_it = [&](const Adaptable& m) { return !m.is_parameter && fits(m.name); };
      if (std::any_of(modules.begin(), modules.end(), can_adapt_it)) continue;
      if (lora_.may_miss_targets && std::none_of(all.begin(), all.end(), fits)) continue;
      throw InputError(
          "LoRA target '{}': no such linear map in a {} model; expected some of {}, embed_tokens, lm_head",
          target, config_.family, fmt::join(all_linear_names(config_), ", "));
    }
  }

  void add(const Adaptable& module) {
    LoraTarget target = sized(module.name, module.name, module.out, module.in);
    target.a = lora_parameter_name(module.name, 'A');
    target.b = lora_parameter_name(module.name, 'B');
    if (module.is_embedding) {
      target.kind = LoraTargetKind::kEmbedding;
      target.a = fmt::format("{}{}.lora_embedding_A", kPeftPrefix, module.name);
      target.b = fmt::format("{}{}.lora_embedding_B", kPeftPrefix, module.name);
      if (lora_.lora_bias) throw InputError("LoRA: lora_bias is not for {}", module.name);
    }
    put(std::move(target));
  }

  /// What target_parameters name, by PEFT's rules (_inject_parameters).
  void add_parameters(const std::string& name, const std::vector<Adaptable>& modules) {
    bool is_there = false;
    for (int64_t layer = 0; layer < config_.num_hidden_layers; ++layer) {
      if (!config_.is_sparse(layer)) continue;
      const std::string experts = fmt::format("model.layers.{}.{}", layer, experts_module(config_));
      for (const char* part : {"gate_up_proj", "down_proj"}) {
        if (!is_named(fmt::format("{}.{}", experts, part), name)) continue;
        is_there = true;
        add_experts(experts, part);
      }
    }
    for (const Adaptable& module : modules) {
      if (!is_named(module.name + ".weight", name) || module.name.find(kExperts) != std::string::npos)
        continue;
      is_there = true;
      if (module.is_embedding)
        throw InputError("LoRA target_parameters '{}': an embedding is only supported in target_modules",
                         name);
      if (is_found(module.name))
        throw InputError("LoRA target_parameters '{}': also in target_modules", name);
      LoraTarget target = sized(module.name, module.name + ".weight", module.out, module.in);
      target.a = lora_parameter_name(module.name, 'A');
      target.b = lora_parameter_name(module.name, 'B');
      put(std::move(target));
    }
    if (is_there && lora_.lora_bias) throw InputError("LoRA: lora_bias is not for target_parameters");
    if (!is_there && !lora_.may_miss_targets)
      throw InputError("LoRA target_parameters '{}': no such parameter in a {} model", name, config_.family);
  }

  void add_experts(const std::string& experts, const std::string& part) {
    const bool is_down = part == "down_proj";
    const int64_t hidden = config_.expert_size();
    const int64_t width = config_.mixture.moe_intermediate_size;
    LoraTarget target = sized(experts, fmt::format("{}.{}", experts, part), is_down ? hidden : 2 * width,
                              is_down ? width : hidden);
    target.kind = is_down ? LoraTargetKind::kDownExperts : LoraTargetKind::kGateUpExperts;
    target.experts = config_.mixture.num_experts;
    // Where both are adapted, gate_up_proj's wrapper is inside that of down_proj.
    const std::vector<std::string>& names = lora_.target_parameters;
    const bool is_inner = !is_down && std::any_of(names.begin(), names.end(), [&](const std::string& name) {
      return is_named(experts + ".down_proj", name);
    });
    const std::string holder = is_inner ? experts + ".base_layer" : experts;
    target.a = lora_parameter_name(holder, 'A');
    target.b = lora_parameter_name(holder, 'B');
    put(std::move(target));
  }

  LoraTarget sized(const std::string& module, const std::string& key, int64_t out, int64_t in) const {
    LoraTarget target;
    target.module = module;
    target.out = out;
    target.in = in;
    target.rank = lora_.r;
    double alpha = lora_.lora_alpha;
    for (const auto& [pattern, rank] : ranks_) {
      if (!pattern.matches(key)) continue;
      target.rank = rank;
      break;
    }
    for (const auto& [pattern, of_module] : alphas_) {
      if (!pattern.matches(key)) continue;
      alpha = of_module;
      break;
    }
    const auto rank = static_cast<double>(target.rank);
    target.scale = alpha / (lora_.use_rslora ? std::sqrt(rank) : rank);
    return target;
  }

  bool is_found(const std::string& module) const {
    return std::any_of(found_.begin(), found_.end(),
                       [&](const LoraTarget& target) { return target.module == module; });
  }

  void put(LoraTarget target) {
    const bool twice = std::any_of(found_.begin(), found_.end(),
                                   [&](const LoraTarget& other) { return other.a == target.a; });
    if (!twice) found_.push_back(std::move(target));
  }

  const Config& config_;
  LoraConfig lora_;
  std::optional<ModulePattern> target_, exclude_;
  std::vector<std::pair<ModulePattern, int64_t>> ranks_;
  std::vector<std::pair<ModulePattern, double>> alphas_;
  std::vector<LoraTarget> found_;
};

}  // namespace

std::vector<LoraTarget> lora_targets(const Config& config, const LoraConfig& lora) {
  return Targets(config, lora).take();
}

std::string lora_parameter_name(const std::string& module, char which) {
  return fmt::format("{}{}.lora_{}.weight", kPeftPrefix, module, which);
}

std::string trained_rows_name(const std::string& module) {
  return fmt::format("{}{}.token_adapter.trainable_tokens_delta", kPeftPrefix, module);
}

}  // namespace streambp
