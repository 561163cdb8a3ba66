#include "verify/compare/names.h"

#include <algorithm>
#include <array>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>

#include "streambp/model/config/parameter_shapes.h"
#include "streambp/model/files/stored_names.h"
#include "streambp/model/files/strict_json.h"
#include "verify/compare/fused_maps.h"

namespace streambp::verify {
namespace {

constexpr const char* kEmbedding = "model.embed_tokens.weight";
constexpr const char* kHead = "lm_head.weight";
constexpr const char* kValueHead = "value_head.weight";

/// Parts of a name that are a wrapper's.
constexpr std::array<std::string_view, 9> kWrappers{"module",
                                                    "_orig_mod",
                                                    "_fsdp_wrapped_module",
                                                    "_checkpoint_wrapped_module",
                                                    "base_layer",
                                                    "pretrained_model",
                                                    "policy",
                                                    "language_model",
                                                    "_forward_module"};

std::vector<std::string> parts_of(const std::string& name) {
  std::vector<std::string> parts;
  for (size_t begin = 0; begin <= name.size();) {
    const size_t end = std::min(name.find('.', begin), name.size());
    parts.push_back(name.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

/// Whether PEFT holds such parameters by the name of their adapter: lora_A.default.weight.
bool has_adapter_names(const std::string& part) {
  return part.starts_with("lora_") || part == "trainable_tokens_delta";
}

/// Whether PEFT's adapters of several tensors of one module are told apart by these: base_layer.lora_A.weight
/// is the next to last one's.
bool is_of_adapter(const std::vector<std::string>& parts, size_t index) {
  while (index < parts.size() && parts[index] == "base_layer") ++index;
  return index < parts.size() && has_adapter_names(parts[index]);
}

/// The name without what wrappers put into it; what was taken goes to `taken`.
std::string bare(const std::string& name, std::set<std::string>& taken) {
  const std::vector<std::string> parts = parts_of(name);
  std::vector<std::string> kept;
  for (size_t i = 0; i < parts.size(); ++i) {
    const std::string& part = parts[i];
    const bool last = i + 1 == parts.size();
    const bool wraps = std::find(kWrappers.begin(), kWrappers.end(), part) != kWrappers.end();
    if ((wraps && !(part == "base_layer" && is_of_adapter(parts, i))) || (i == 0 && part == "grad")) {
      taken.insert(part + ".");
    } else if (part == "base_model" && !last && parts[i + 1] == "model") {
      taken.insert("base_model.model.");
      ++i;
    } else if (part == "modules_to_save") {
      taken.insert("modules_to_save.");
      if (i + 2 < parts.size()) ++i;  // an adapter's name
    } else if (i > 0 && part != "weight" && part != "bias" && has_adapter_names(parts[i - 1])) {
      taken.insert("." + shown(part));
    } else {
      kept.push_back(part);
    }
  }
  return fmt::format("{}", fmt::join(kept, "."));
}

/// Nemotron-H's class calls the embedding so, and a decoder alone without what stands before.
std::string embeddings_renamed(const std::string& name) {
  return name == "model.embeddings.weight" || name == "embeddings.weight" ? kEmbedding : name;
}

/// The truth's names by their bare forms.
class Names {
 public:
  Names(const Tensors& truth, const Config* config) : config_(config) {
    std::set<std::string> unused;
    for (const auto& [name, tensor] : truth) names_.emplace(bare(name, unused), name);
    if (config == nullptr) return;
    for (const auto& [name, tensor] : truth)
      names_.emplace(bare(stored_name(*config, bare(name, unused)), unused), name);
  }

  /// The truth's name of a bare one; empty if it has none.
  std::string find(const std::string& name) const {
    for (const std::string& spelling : {name, "model." + name, embeddings_renamed(name)}) {
      if (const auto found = names_.find(spelling); found != names_.end()) return found->second;
    }
    if (config_ != nullptr) {
      if (const auto found = names_.find(parameter_name(*config_, name)); found != names_.end())
        return found->second;
    }
    if (name == "v_head.summary.weight" || name == "v_head.weight" || name == "score.weight") {
      if (const auto found = names_.find(kValueHead); found != names_.end()) return found->second;
    }
    return {};
  }

 private:
  const Config* config_;
  std::map<std::string, std::string> names_;
};

/// What stands before every name without being anybody's wrapper, such as "student." of a module that holds
/// the model: with it no name is known, and without it every one is. Empty where there is none.
std::string prefix_of_all(const Tensors& gradients, const Names& names) {
  std::vector<std::vector<std::string>> all;
  std::set<std::string> unused;
  for (const auto& [name, gradient] : gradients) all.push_back(parts_of(bare(name, unused)));
  const auto is_known = [&](const std::vector<std::string>& parts, size_t from) {
    const std::string name =
        fmt::format("{}", fmt::join(parts.begin() + static_cast<ptrdiff_t>(from), parts.end(), "."));
    return name == kHead || !names.find(name).empty();
  };
  for (size_t taken = 0; !all.empty(); ++taken) {
    const size_t known = static_cast<size_t>(
        std::count_if(all.begin(), all.end(), [&](const auto& parts) { return is_known(parts, taken); }));
    const std::vector<std::string>& first = all.front();
    if (known == all.size() && taken > 0)
      return fmt::format("{}.", fmt::join(first.begin(), first.begin() + static_cast<ptrdiff_t>(taken), "."));
    const bool shared = std::all_of(all.begin(), all.end(), [&](const auto& parts) {
      return parts.size() > taken + 1 && parts[taken] == first[taken];
    });
    if (known > 0 || !shared) return {};
  }
  return {};
}

/// What transformers calls the tensor of all experts of a layer, and the maps of an expert that it holds, one
/// below the other: of most families, of LFM2's, and of experts without a gate.
struct FusedExperts {
  std::string_view name;
  std::vector<std::string> maps;
};

const std::array<FusedExperts, 5>& fused_experts() {
  static const std::array<FusedExperts, 5> all{{{".experts.gate_up_proj", {"gate_proj", "up_proj"}},
                                                {".experts.gate_up_proj", {"w1", "w3"}},
                                                {".experts.up_proj", {"up_proj"}},
                                                {".experts.down_proj", {"down_proj"}},
                                                {".experts.down_proj", {"w2"}}}};
  return all;
}

/// The matrices of each expert that a fused tensor holds, by their bare names, of which the truth has the
/// first; empty if `name` is no such tensor.
std::vector<std::pair<std::string, at::Tensor>> experts_of(const std::string& name, const at::Tensor& fused,
                                                           const Names& names) {
  std::vector<std::pair<std::string, at::Tensor>> result;
  if (fused.dim() != 3) return result;
  const std::string stem = name.substr(0, name.rfind('.'));
  for (const auto& [last, maps] : fused_experts()) {
    const auto count = static_cast<int64_t>(maps.size());
    const auto map_of = [&](int64_t expert, const std::string& map) {
      return fmt::format("{}.{}.{}.weight", stem, expert, map);
    };
    if (!name.ends_with(last) || fused.size(1) % count != 0 || names.find(map_of(0, maps[0])).empty())
      continue;
    for (int64_t expert = 0; expert < fused.size(0); ++expert) {
      const std::vector<at::Tensor> parts = fused[expert].chunk(count);
      for (size_t i = 0; i < maps.size(); ++i) result.emplace_back(map_of(expert, maps[i]), parts[i]);
    }
    break;
  }
  return result;
}

/// A tied head next to its embedding or instead of it.
void settle_tied_head(const Tensors& truth, NamedGradients& named) {
  const auto head = named.gradients.find(kHead);
  if (head == named.gradients.end() || truth.contains(kHead) || !truth.contains(kEmbedding)) return;
  const auto embedding = named.gradients.find(kEmbedding);
  if (embedding == named.gradients.end()) {
    named.gradients.emplace(kEmbedding, head->second);
    named.notes.push_back("lm_head.weight stands for model.embed_tokens.weight, to which it is tied");
  } else if (bit_equal(head->second, embedding->second)) {
    named.notes.push_back("lm_head.weight is model.embed_tokens.weight, to which it is tied, once more");
  } else {
    named.notes.push_back(
        "lm_head.weight is tied to model.embed_tokens.weight, and their gradients are not the same tensor");
    return;
  }
  named.gradients.erase(kHead);
}

/// Puts maps of which the truth has one tensor together; `unknown`: their own names by their bare ones.
size_t join_maps(const Tensors& truth, const std::map<std::string, std::string>& unknown,
                 NamedGradients& named) {
  size_t joined = 0;
  for (const auto& [name, tensor] : truth) {
    if (named.gradients.contains(name)) continue;
    std::set<std::string> unused;
    std::vector<std::string> own;
    std::vector<at::Tensor> parts;
    for (const std::string& map : maps_of(bare(name, unused))) {
      auto found = unknown.find(map);
      if (found == unknown.end() && map.starts_with("model.")) found = unknown.find(map.substr(6));
      if (found == unknown.end()) break;
      own.push_back(found->second);
      parts.push_back(named.gradients.at(found->second));
    }
    const auto alike = [&](const at::Tensor& part) {
      return part.dim() == tensor.dim() && part.sizes().slice(1) == tensor.sizes().slice(1) &&
             part.scalar_type() == parts.front().scalar_type();
    };
    if (parts.empty() || parts.size() != maps_of(name).size() ||
        !std::all_of(parts.begin(), parts.end(), alike))
      continue;
    const at::Tensor whole = at::cat(parts);
    if (whole.sizes() != tensor.sizes()) continue;
    for (const std::string& part : own) named.gradients.erase(part);
    named.gradients.emplace(name, whole);
    ++joined;
  }
  return joined;
}

}  // namespace

NamedGradients named_as(const Tensors& truth, Tensors gradients, const Config* config) {
  const Names names(truth, config);
  NamedGradients named;
  std::set<std::string> taken;
  size_t fused = 0, cut = 0;
  std::map<std::string, std::string> unknown;
  const std::string prefix = prefix_of_all(gradients, names);
  if (!prefix.empty()) taken.insert(shown(prefix));
  const auto add = [&](const std::string& own, const std::string& name, const at::Tensor& gradient) {
    if (name.empty() || !named.gradients.emplace(name, gradient).second)
      named.gradients.emplace(own, gradient);
  };
  const auto rows_of = [&](const std::string& name) {
    const std::string found = names.find(name);
    return found.empty() ? 0 : truth.at(found).size(0);
  };
  for (auto& [own, gradient] : gradients) {
    if (truth.contains(own)) {
      add(own, own, gradient);
      continue;
    }
    std::set<std::string> of_this;
    const std::string name = bare(own, of_this).substr(prefix.size());
    if (const auto experts = experts_of(name, gradient, names); !experts.empty()) {
      ++fused;
      for (const auto& [expert, weight] : experts) add(expert, names.find(expert), weight);
    } else if (const std::string found = names.find(name); !found.empty() || name == kHead) {
      add(own, found.empty() ? name : found, gradient);
    } else if (const auto parts = cut_rows(gradient, maps_of(name), rows_of); !parts.empty()) {
      ++cut;
      const std::vector<std::string> maps = maps_of(name);
      for (size_t i = 0; i < maps.size(); ++i) add(own, names.find(maps[i]), parts[i]);
    } else {
      named.gradients.emplace(own, gradient);
      unknown.emplace(name, own);
      continue;
    }
    taken.merge(of_this);
  }
  if (!taken.empty()) named.notes.push_back(fmt::format("taken out of names: {}", fmt::join(taken, ", ")));
  if (fused > 0) named.notes.push_back(fmt::format("{} tensors hold all experts of a layer: split", fused));
  if (cut > 0)
    named.notes.push_back(
        fmt::format("{} tensors hold several maps' rows (qkv_proj, gate_up_proj, conv1d): cut", cut));
  if (const size_t joined = join_maps(truth, unknown, named); joined > 0)
    named.notes.push_back(
        fmt::format("{} tensors of several maps (qkv_proj, gate_up_proj, conv1d) put together", joined));
  settle_tied_head(truth, named);
  return named;
}

void drop_untrained(const Tensors& truth, const Config& config, NamedGradients& named) {
  std::set<std::string> known, unused;
  for (const ParameterShape& shape : parameter_shapes(config)) known.insert(shape.name);
  std::vector<std::string> dropped;
  for (const auto& [own, gradient] : named.gradients) {
    const std::string name = bare(own, unused);
    const bool is_known = known.contains(name) || known.contains(parameter_name(config, name));
    if (!truth.contains(own) && is_known && is_zero(gradient)) dropped.push_back(own);
  }
  for (const std::string& name : dropped) named.gradients.erase(name);
  if (!dropped.empty())
    named.notes.push_back(fmt::format("{} gradients are 0 of what is not trained, {} for one", dropped.size(),
                                      shown(dropped.front())));
}

void fill_left_out(const Tensors& truth, NamedGradients& named) {
  std::vector<std::string> filled;
  for (const auto& [name, tensor] : truth) {
    if (!named.gradients.contains(name) && is_zero(tensor)) {
      named.gradients.emplace(name, at::zeros_like(tensor));
      filled.push_back(name);
    }
  }
  if (filled.empty()) return;
  named.notes.push_back(fmt::format("{} gradients are left out where the truth is 0, {} for one",
                                    filled.size(), filled.front()));
}

}  // namespace streambp::verify
