// What PEFT trains of the base in addition to adapters: whole modules, rows of the embedding, biases. See
// lora.h.
#include <algorithm>
#include <set>

#include "streambp/error.h"
#include "streambp/model/files/stored_names.h"
#include "streambp/model/lora/lora.h"
#include "streambp/model/lora/module_pattern.h"

namespace streambp {
namespace {

constexpr const char* kEmbedding = "model.embed_tokens";
constexpr const char* kHead = "lm_head";

bool contains(const std::vector<std::string>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

/// Parameters of modules whose names end in one of modules_to_save: not only after a dot, as PEFT has it
/// (_set_trainable), so that "norm" stands for every norm.
std::vector<std::string> saved_parameters(const Config& config, const LoraConfig& lora,
                                          const std::vector<LoraTarget>& targets) {
  std::vector<ParameterShape> shapes = parameter_shapes(config);
  if (config.tie_word_embeddings && !config.value_model)
    shapes.push_back({"lm_head.weight", {}, ParameterRole::kHead});
  const std::string last_norm = last_norm_of_class(config);
  std::vector<std::string> saved;
  for (const ParameterShape& shape : shapes) {
    // The modules that hold the parameter, from the innermost to the outermost, that are saved.
    std::vector<std::string> holders;
    for (std::string module = module_of(shape.name);; module = module_of(module)) {
      const std::string of_class = module == "model.norm" ? last_norm : module;
      const auto fits = [&](const std::string& end) { return !end.empty() && of_class.ends_with(end); };
      if (std::any_of(lora.modules_to_save.begin(), lora.modules_to_save.end(), fits))
        holders.push_back(module);
      if (module.find('.') == std::string::npos) break;
    }
    if (holders.empty()) continue;
    if (holders.size() > 1)
      throw InputError("LoRA modules_to_save: {} lies within {}, expected one of them", holders[0],
                       holders[1]);
    if (shape.of_expert)
      throw InputError("LoRA modules_to_save: {} holds experts, which is not supported", holders.front());
    if (is_buffer(shape.name))
      throw InputError(
          "LoRA modules_to_save: {} holds what its choice is corrected by, which is not supported",
          holders.front());
    if (is_of_indexer(shape.name))
      throw InputError(
          "LoRA modules_to_save: {} is of an indexer, which no gradient reaches: expected to leave it out",
          holders.front());
    if (is_of_hyper_connection(shape.name))
      throw InputError("LoRA modules_to_save: {} is of a hyper-connection, which is not supported",
                       holders.front());
    if (is_of_shared_block(shape.name))
      throw InputError(
          "LoRA modules_to_save: {} is of a block that several layers share, of which PEFT would make "
          "copies, which is "
          "not supported",
          holders.front());
    for (const LoraTarget& target : targets) {
      if (has_part(target.module, holders.front()))
        throw InputError("LoRA modules_to_save: {} is also a target of the adapter", target.module);
    }
    saved.push_back(shape.name);
  }
  return saved;
}

/// By parameter, the rows of trainable_token_indices.
std::map<std::string, std::vector<int64_t>> trained_rows(const Config& config, const LoraConfig& lora) {
  std::map<std::string, std::vector<int64_t>> rows;
  for (const auto& [name, tokens] : lora.trainable_token_indices) {
    const auto is = [&name = name](const char* module) {  // clang before 16 does not capture it by itself
      return !name.empty() && std::string_view(module).ends_with(name);
    };
    const bool has_head = !config.value_model;
    if (!is(kEmbedding) && !(has_head && is(kHead)))
      throw InputError("LoRA trainable_token_indices: '{}', expected embed_tokens{}", name,
                       has_head ? " or lm_head" : "");
    const std::string module = is(kEmbedding) ? kEmbedding : kHead;
    if (config.plain_norms && is(kEmbedding))
      throw InputError(
          "LoRA trainable_token_indices: with rows of its own PEFT 0.21 leaves out the norm of a {} "
          "embedding; train it whole with modules_to_save",
          config.family);
    if (tokens.empty()) throw InputError("LoRA trainable_token_indices: no tokens of {}", module);
    std::set<int64_t> seen;
    for (const int64_t token : tokens) {
      if (token < 0 || token >= config.vocab_size)
        throw InputError("LoRA trainable_token_indices: token {}, expected 0 to {}", token,
                         config.vocab_size - 1);
      if (!seen.insert(token).second)
        throw InputError("LoRA trainable_token_indices: token {} of {} appears twice", token, module);
    }
    if (!rows.emplace(module + ".weight", tokens).second)
      throw InputError("LoRA trainable_token_indices: {} appears twice", module);
  }
  const std::string embedding = std::string(kEmbedding) + ".weight", head = std::string(kHead) + ".weight";
  if (!config.tie_word_embeddings || !rows.contains(head)) return rows;
  if (!rows.contains(embedding) || rows.at(embedding) != rows.at(head))
    throw InputError(
        "LoRA trainable_token_indices: lm_head is the embedding in this model, expected the same tokens of "
        "both");
  rows.erase(head);
  return rows;
}

}  // namespace

LoraExtras lora_extras(const Config& config, const LoraConfig& lora) {
  const std::vector<LoraTarget> targets = lora_targets(config, lora);
  const auto is_adapted = [&](const std::string& module) {
    return std::any_of(targets.begin(), targets.end(),
                       [&](const LoraTarget& target) { return target.module == module; });
  };
  LoraExtras extras{saved_parameters(config, lora, targets), trained_rows(config, lora), {}};
  const std::vector<std::string> both{std::string(kEmbedding) + ".weight", std::string(kHead) + ".weight"};
  if (lora.ensure_weight_tying && config.tie_word_embeddings) {
    for (const std::string& name : both) {
      if (is_adapted(module_of(name)))
        throw InputError(
            "LoRA: ensure_weight_tying of an adapter of {} is not supported, expected it among "
            "modules_to_save",
            module_of(name));
    }
    // Of either, PEFT makes one copy, the embedding's, which is the head as well.
    const auto is_one = [&](const std::string& name) { return contains(both, name); };
    if (std::erase_if(extras.saved, is_one) > 0) extras.saved.insert(extras.saved.begin(), both.front());
  }
  for (const auto& [parameter, tokens] : extras.rows) {
    for (const std::string& name : config.tie_word_embeddings ? both : std::vector<std::string>{parameter}) {
      if (contains(extras.saved, name) || is_adapted(module_of(name)))
        throw InputError("LoRA trainable_token_indices: {} is also trained otherwise", module_of(name));
    }
  }
  if (lora.bias == "none") return extras;
  for (const ParameterShape& shape : parameter_shapes(config)) {
    // PEFT goes by the name: the biases of experts in two tensors have another.
    if (shape.role != ParameterRole::kBias || !shape.name.ends_with(".bias")) continue;
    const std::string module = module_of(shape.name);
    if (contains(extras.saved, shape.name))
      throw InputError("LoRA: bias \"{}\" and modules_to_save both train {}", lora.bias, shape.name);
    if (is_adapted(module)) {
      extras.biases.emplace_back(shape.name, fmt::format("{}{}.base_layer.bias", kPeftPrefix, module));
    } else if (lora.bias == "all") {
      extras.biases.emplace_back(shape.name, kPeftPrefix + shape.name);
    }
  }
  return extras;
}

}  // namespace streambp
