#include "streambp/model/lora/whole_adapters.h"

#include <algorithm>
#include <array>

#include "streambp/model/files/stored_names.h"
#include "streambp/model/lora/module_pattern.h"

namespace streambp {
namespace {

constexpr std::string_view kDecoder = "model.";
constexpr std::string_view kLastNorm = "model.norm";

struct Naming {
  const char* decoder;
  const char* head;
};
constexpr std::array<Naming, 2> kWhole{
    {{"model.language_model.", "lm_head"}, {"language_model.model.", "language_model.lm_head"}}};

/// `name` with `to` in place of `from` at its beginning; nothing where it begins otherwise.
std::optional<std::string> replaced(const std::string& name, std::string_view from, std::string_view to) {
  if (!name.starts_with(from)) return std::nullopt;
  return std::string(to) + name.substr(from.size());
}

/// A regular expression for `module` alone.
std::string exactly(const std::string& module) {
  std::string pattern;
  for (const char c : module) {
    if (c == '.') pattern += '\\';
    pattern += c;
  }
  return pattern;
}

/// Of each module its number, by the first of `given` whose pattern fits its whole name.
template <typename Number>
std::vector<std::pair<std::string, Number>> by_module(
    const std::vector<std::pair<std::string, Number>>& given, const std::vector<std::string>& modules,
    const AdapterNames& names, const char* key) {
  std::vector<std::pair<std::string, Number>> numbers;
  for (const std::string& module : modules) {
    for (const auto& [pattern, number] : given) {
      const std::string where = std::string("LoRA ") + key;
      const ModulePattern alone(pattern, where);  // what breaks out of the parentheses is refused
      if (!ModulePattern("(?:.*\\.)?(?:" + pattern + ")", where).matches(names.whole(module))) continue;
      numbers.emplace_back(exactly(module), number);
      break;
    }
  }
  return numbers;
}

}  // namespace

AdapterNames::AdapterNames(const std::map<std::string, SafetensorsEntry>& stored, const Config& config)
    : norm_(last_norm_of_class(config)) {
  for (const Naming& naming : kWhole) {
    const std::string begin = std::string(kPeftPrefix) + naming.decoder;
    const auto first = stored.lower_bound(begin);
    if (first == stored.end() || !first->first.starts_with(begin)) continue;
    decoder_ = naming.decoder;
    head_ = naming.head;
    return;
  }
}

std::string AdapterNames::with_norm_of_class(const std::string& module) const {
  const bool is_norm = module == kLastNorm || module.starts_with(std::string(kLastNorm) + '.');
  return is_norm ? *replaced(module, kLastNorm, norm_) : module;
}

std::string AdapterNames::whole(const std::string& module) const {
  const std::string of_class = with_norm_of_class(module);
  if (!of_whole()) return of_class;
  if (const auto name = replaced(of_class, kDecoder, decoder_)) return *name;
  return replaced(of_class, kHeadModule, head_).value_or(of_class);
}

std::string AdapterNames::stored(const std::string& name) const {
  const std::string prefix = kPeftPrefix;
  return name.starts_with(prefix) ? prefix + whole(name.substr(prefix.size())) : name;
}

std::optional<std::string> AdapterNames::of_decoder(const std::string& stored) const {
  const std::string prefix = kPeftPrefix;
  if (!stored.starts_with(prefix)) return stored;
  const std::string name = stored.substr(prefix.size());
  if (!of_whole()) {
    const auto norm = replaced(name, norm_ + '.', std::string(kLastNorm) + '.');
    return norm ? prefix + *norm : stored;
  }
  for (const auto& [from, to] :
       {std::pair<std::string_view, std::string_view>{decoder_, kDecoder}, {head_, kHeadModule}}) {
    if (const auto of_part = replaced(name, from, to)) return prefix + *of_part;
  }
  return std::nullopt;
}

LoraConfig lora_of_decoder(const Config& config, const LoraConfig& lora, const AdapterNames& names,
                           const std::map<std::string, SafetensorsEntry>& stored) {
  LoraConfig own = lora;
  own.target_modules.clear();
  own.target_pattern.clear();
  own.exclude_modules.clear();
  own.exclude_pattern.clear();
  own.layers_to_transform.clear();
  own.layers_pattern.clear();
  std::vector<std::string> modules;
  std::vector<std::string> candidates;
  for (const ParameterShape& parameter : parameter_shapes(config))
    if (parameter.name.ends_with(".weight")) candidates.push_back(module_of(parameter.name));
  if (config.tie_word_embeddings && !config.value_model) candidates.emplace_back(kHeadModule);
  for (const std::string& module : candidates) {
    const std::string name = names.stored(kPeftPrefix + module);
    const bool is_adapted =
        stored.contains(name + ".lora_A.weight") || stored.contains(name + ".lora_embedding_A");
    if (!is_adapted) continue;
    modules.push_back(module);
    const auto& parameters = lora.target_parameters;
    const bool is_parameter =
        std::any_of(parameters.begin(), parameters.end(),
                    [&](const std::string& target) { return is_named(module + ".weight", target); });
    if (!is_parameter) own.target_modules.push_back(module);
  }
  std::sort(own.target_modules.begin(), own.target_modules.end());
  own.rank_pattern = by_module(lora.rank_pattern, modules, names, "rank_pattern");
  own.alpha_pattern = by_module(lora.alpha_pattern, modules, names, "alpha_pattern");
  return own;
}

}  // namespace streambp
