#include "streambp/model/files/pieces.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <fmt/format.h>
#include <optional>
#include <string_view>

#include "streambp/error.h"
#include "streambp/model/config/family.h"
#include "streambp/model/files/strict_json.h"

namespace streambp {
namespace {

// The rows [first, first + rows) of what `tensor` holds of one expert, [width, size] for each.
StoredTensor expert_rows(const StoredTensor& tensor, int64_t expert, int64_t first, int64_t rows) {
  const SafetensorsEntry& whole = tensor.entry();
  const uint64_t row = (whole.end - whole.begin) / static_cast<uint64_t>(whole.shape[0] * whole.shape[1]);
  SafetensorsEntry part = whole;
  part.shape = {rows, whole.shape[2]};
  part.begin += row * static_cast<uint64_t>(expert * whole.shape[1] + first);
  part.end = part.begin + row * static_cast<uint64_t>(rows);
  return {tensor.file, tensor.name, part};
}

// What files may hold of all experts of a layer in one tensor [experts, rows, columns]: its name in the
// layer, and the maps of an expert whose rows it has one after another.
struct ExpertsTensor {
  std::string name;
  int64_t rows = 0;
  std::vector<std::string> maps;  // of equally many rows
};

std::vector<ExpertsTensor> experts_tensors(const Config& config) {
  const int64_t width = config.mixture.moe_intermediate_size, hidden = config.hidden_size;
  const FamilyModules& modules = modules_of(config);
  const std::string experts = experts_module(config) + ".";
  std::vector<ExpertsTensor> tensors{{experts + "gate_up_proj", 2 * width, {modules.gate, modules.up}},
                                     {experts + "down_proj", hidden, {modules.down}}};
  if (!family_of(config).step) return tensors;
  tensors.push_back({"moe.gate_proj.weight", width, {modules.gate}});  // as Step 3.7 is published
  tensors.push_back({"moe.up_proj.weight", width, {modules.up}});
  tensors.push_back({"moe.down_proj.weight", hidden, {modules.down}});
  return tensors;
}

// The parameters of a layer's experts that `tensor` holds if it is one of experts_tensors, its names and what
// belongs to them. Empty: it is none, or of another shape.
std::vector<std::pair<std::string, StoredTensor>> of_experts(const std::string& name,
                                                             const StoredTensor& tensor,
                                                             const Config& config) {
  const MixtureSettings& mixture = config.mixture;
  if (mixture.num_experts == 0 || mixture.biased_interleaved || mixture.is_stacked()) return {};
  const auto all = experts_tensors(config);
  const auto whole = std::find_if(all.begin(), all.end(),
                                  [&](const ExpertsTensor& one) { return name.ends_with("." + one.name); });
  if (whole == all.end()) return {};
  const bool is_down = whole->maps.front() == modules_of(config).down;
  const std::vector<int64_t> shape{mixture.num_experts, whole->rows,
                                   is_down ? mixture.moe_intermediate_size : config.hidden_size};
  if (tensor.entry().shape != shape || !is_floating(tensor.entry().dtype)) return {};
  const std::string layer = name.substr(0, name.size() - whole->name.size());
  const int64_t rows = whole->rows / static_cast<int64_t>(whole->maps.size());
  std::vector<std::pair<std::string, StoredTensor>> parts;
  for (int64_t expert = 0; expert < mixture.num_experts; ++expert) {
    const std::string one = fmt::format("{}{}.{}.", layer, experts_module(config), expert);
    int64_t first = 0;
    for (const std::string& map : whole->maps) {
      parts.emplace_back(one + map + ".weight", expert_rows(tensor, expert, first, rows));
      first += rows;
    }
  }
  return parts;
}

// The parameters that `tensor` holds if it is Kimi Linear's convolution of queries, keys and values as
// transformers holds it, one under another. Empty: it is none, or of another shape.
std::vector<std::pair<std::string, StoredTensor>> of_convolutions(const std::string& name,
                                                                  const StoredTensor& tensor,
                                                                  const Config& config) {
  constexpr std::string_view kWhole = ".self_attn.conv1d.weight";
  const DeltaRuleSettings& rule = config.delta_rule;
  const std::vector<int64_t> shape{rule.channels(), 1, rule.conv_kernel};
  if (!rule.channel_gates || !name.ends_with(kWhole) || tensor.entry().shape != shape) return {};
  std::vector<std::pair<std::string, StoredTensor>> parts;
  const std::string layer = name.substr(0, name.size() - kWhole.size());
  const uint64_t row = (tensor.entry().end - tensor.entry().begin) / static_cast<uint64_t>(shape[0]);
  uint64_t begin = tensor.entry().begin;
  for (const auto& [part, rows] :
       {std::pair("q", rule.keys()), std::pair("k", rule.keys()), std::pair("v", rule.values())}) {
    SafetensorsEntry entry = tensor.entry();
    entry.shape[0] = rows;
    entry.begin = begin;
    entry.end = begin += row * static_cast<uint64_t>(rows);
    parts.emplace_back(fmt::format("{}.self_attn.{}_conv1d.weight", layer, part),
                       StoredTensor{tensor.file, tensor.name, entry});
  }
  return parts;
}

constexpr std::string_view kOfPublishedExperts = ".block_sparse_moe.experts.";

// Pieces of one row of experts, and of MLPs: what their tensors are called, and the parameter and which of
// its pieces they are.
struct PieceName {
  std::string_view in_file, parameter;
  int64_t index, count;
};
constexpr std::array<PieceName, 3> kOfExperts = {{{"w1.weight", "gate_up_proj", 0, 2},
                                                  {"w3.weight", "gate_up_proj", 1, 2},
                                                  {"w2.weight", "down_proj", 0, 1}}};
constexpr std::array<PieceName, 2> kOfMlps = {
    {{".gate_proj.weight", ".gate_up_proj.weight", 0, 2}, {".up_proj.weight", ".gate_up_proj.weight", 1, 2}}};

std::string replaced(std::string name, std::string_view from, std::string_view to) {
  if (const auto at = name.find(from); at != std::string::npos) name.replace(at, from.size(), to);
  return name;
}

}  // namespace

bool is_floating(const std::string& dtype) {
  static constexpr std::array<std::string_view, 4> kFloating = {"F64", "F32", "BF16", "F16"};
  return std::find(kFloating.begin(), kFloating.end(), dtype) != kFloating.end();
}

std::vector<std::pair<std::string, StoredTensor>> parameters_in(const std::string& name,
                                                                const StoredTensor& tensor,
                                                                const Config& config) {
  auto parts = of_experts(name, tensor, config);
  return parts.empty() ? of_convolutions(name, tensor, config) : parts;
}

namespace {

constexpr std::string_view kTable = ".ple_embedding.ngram_embedding", kPart = ".shard_", kWeight = ".weight";

/// Which part of a table of n-grams has this name; -1: it is none's.
int64_t part_of_table(const std::string& name) {
  const auto at = name.find(kTable);
  if (at == std::string::npos || !name.ends_with(kWeight)) return -1;
  std::string_view rest = std::string_view(name).substr(at + kTable.size());
  if (!rest.starts_with(kPart)) return -1;
  rest = rest.substr(kPart.size(), rest.size() - kPart.size() - kWeight.size());
  int64_t part = -1;
  const auto end = std::from_chars(rest.data(), rest.data() + rest.size(), part);
  return end.ec == std::errc() && end.ptr == rest.data() + rest.size() ? part : -1;
}

}  // namespace

bool Pieces::take(const std::string& name, const StoredTensor& tensor) {
  if (const int64_t part = config_.ngrams.modules.empty() ? -1 : part_of_table(name); part >= 0) {
    const std::string table = name.substr(0, name.find(kTable) + kTable.size());
    return pieces_[table + std::string(kWeight)].emplace(part, tensor).second;
  }
  if (!config_.clamps_all_mlps) return false;
  if (const auto at = name.find(kOfPublishedExperts); at != std::string::npos) {
    const std::string_view rest = std::string_view(name).substr(at + kOfPublishedExperts.size());
    int64_t expert = 0;
    const auto end = std::from_chars(rest.data(), rest.data() + rest.size(), expert);
    const std::string_view map = rest.substr(std::min<size_t>(end.ptr - rest.data() + 1, rest.size()));
    for (const PieceName& piece : kOfExperts) {
      if (end.ec != std::errc() || expert < 0 || map != piece.in_file) continue;
      const std::string parameter = fmt::format("{}.mlp.experts.{}", name.substr(0, at), piece.parameter);
      return pieces_[parameter].emplace(expert * piece.count + piece.index, tensor).second;
    }
    return false;
  }
  for (const PieceName& piece : kOfMlps) {
    if (!name.ends_with(piece.in_file)) continue;
    const std::string module = name.substr(0, name.size() - piece.in_file.size());
    const std::string parameter =
        replaced(module, ".block_sparse_moe.", ".mlp.") + std::string(piece.parameter);
    return pieces_[parameter].emplace(piece.index, tensor).second;
  }
  return false;
}

StoredTensor Pieces::table_of(const std::string& parameter,
                              const std::map<int64_t, StoredTensor>& pieces) const {
  const StoredTensor& first = pieces.begin()->second;
  StoredTensor whole{first.file, first.name, first.entry()};
  SafetensorsEntry& entry = *whole.part;
  entry.shape = {0, first.entry().shape.back()};
  entry.begin = entry.end = 0;
  for (int64_t i = 0; i < config_.ngrams.parts; ++i) {
    const auto piece = pieces.find(i);
    if (piece == pieces.end())
      throw InputError("{}: of parameter {} part {} of {} (split_ngram_parts) is missing",
                       first.file.path().string(), parameter, i, config_.ngrams.parts);
    const SafetensorsEntry& own = piece->second.entry();
    if (own.shape.size() != 2 || own.shape[1] != entry.shape[1] || own.dtype != entry.dtype)
      throw InputError("{}: tensor {} is {} {}, expected {} rows of {} as of {}",
                       piece->second.file.path().string(), shown(piece->second.name), own.dtype,
                       shown(own.shape), entry.dtype, entry.shape[1], shown(first.name));
    entry.shape[0] += own.shape[0];
    entry.end += own.end - own.begin;
    whole.pieces.push_back(piece->second);
  }
  if (const int64_t last = pieces.rbegin()->first; last >= config_.ngrams.parts)
    throw InputError("{}: tensor {}: expected {} parts of {} (split_ngram_parts)", first.file.path().string(),
                     shown(pieces.rbegin()->second.name), config_.ngrams.parts, parameter);
  return whole;
}

std::vector<std::pair<std::string, StoredTensor>> Pieces::joined() const {
  std::vector<std::pair<std::string, StoredTensor>> all;
  for (const auto& [parameter, pieces] : pieces_) {
    if (parameter.find(kTable) != std::string::npos) {
      all.emplace_back(parameter, table_of(parameter, pieces));
      continue;
    }
    const StoredTensor& first = pieces.begin()->second;
    const bool of_experts = parameter.find(".mlp.experts.") != std::string::npos;
    const int64_t in_one = parameter.find("gate_up_proj") != std::string::npos ? 2 : 1;
    const int64_t ones = of_experts ? config_.mixture.num_experts : 1;
    StoredTensor whole{first.file, first.name, first.entry()};
    SafetensorsEntry& entry = *whole.part;
    const uint64_t size = entry.end - entry.begin;
    for (int64_t i = 0; i < ones * in_one; ++i) {
      const auto piece = pieces.find(i);
      if (piece == pieces.end())
        throw InputError("{}: of parameter {} expert {}, map {} is missing", first.file.path().string(),
                         parameter, i / in_one, i % in_one);
      const SafetensorsEntry& own = piece->second.entry();
      if (own.shape.size() != 2 || own.shape != first.entry().shape || own.dtype != entry.dtype)
        throw InputError("{}: tensor {} is {} {}, expected {} {} as {} is",
                         piece->second.file.path().string(), shown(piece->second.name), own.dtype,
                         shown(own.shape), entry.dtype, shown(first.entry().shape), shown(first.name));
      whole.pieces.push_back(piece->second);
    }
    if (const int64_t last = pieces.rbegin()->first; last >= ones * in_one)
      throw InputError("{}: tensor {}: expected {} experts", first.file.path().string(),
                       shown(pieces.rbegin()->second.name), ones);
    const std::vector<int64_t> shape = entry.shape;
    entry.shape = {in_one * shape[0], shape[1]};
    if (of_experts) entry.shape.insert(entry.shape.begin(), ones);
    entry.begin = 0;
    entry.end = size * static_cast<uint64_t>(ones * in_one);
    all.emplace_back(parameter, std::move(whole));
  }
  return all;
}

}  // namespace streambp
