#include "streambp/model/files/checkpoint.h"

#include <algorithm>
#include <array>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <span>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "streambp/error.h"
#include "streambp/model/config/family.h"
#include "streambp/model/files/model_files.h"
#include "streambp/model/files/pieces.h"
#include "streambp/model/files/strict_json.h"
#include "streambp/model/quantized/quantization.h"

namespace streambp {
namespace {

using nlohmann::json;
using Files = ShardedFiles;
using Tensors = std::map<std::string, StoredTensor>;  // by the names of parameters

constexpr const char* kEmbeddingWeight = "model.embed_tokens.weight";
constexpr const char* kHeadWeight = "lm_head.weight";

// A link that leads nowhere, or in a circle, is there as well: opening it says what is the matter.
bool is_there(const std::filesystem::path& path) {
  std::error_code error;
  return std::filesystem::exists(std::filesystem::symlink_status(path, error));
}

// A table that files saved by old versions of transformers hold; here it is computed.
bool is_rope_table(const std::string& name) {
  return name.ends_with(".rotary_emb.inv_freq");
}

Files single_file(const std::filesystem::path& path) {
  const SafetensorsFile file = SafetensorsFile::open(path);
  Files files;
  for (const auto& [name, entry] : file.entries()) files.emplace(name, file);
  return files;
}

// A shard is a file of the folder itself: an index may not point elsewhere.
void check_shard_name(const std::string& shard, const std::string& where) {
  const bool inside = !shard.empty() && shard.find('/') == std::string::npos &&
                      shard.find('\\') == std::string::npos && shard.find("..") == std::string::npos &&
                      shard.find('\0') == std::string::npos;
  if (!inside)
    throw InputError("{}: shard name {}, expected a file name in the same folder", where, shown(shard));
}

// `where` names the index.
SafetensorsFile open_shard(const std::filesystem::path& path, const std::string& shard,
                           const std::string& where) {
  if (!is_there(path)) {
    throw InputError(
        "{}: its shard {} is missing, expected it in the same folder: download it, or another index", where,
        shown(shard));
  }
  try {
    return SafetensorsFile::open(path);
  } catch (const InputError& error) {
    throw InputError("{}: its shard: {}", where, error.what());
  }
}

bool is_integer(const std::string& dtype) {
  return dtype == "I64" || dtype == "I32";
}

// The name a parameter has in a Gemma 3 or 4, Ministral 3 or Qwen3.5 that is only text, given its name in
// any: in the whole model the text part's names begin with language_model (transformers 4) or
// model.language_model (5). Nothing for a tensor of the vision or audio part, and of Qwen3.5's layers that
// predict more than the next token.
std::optional<std::string> text_name(const std::string& name) {
  static constexpr auto kVision = std::to_array<std::string_view>({"vision_model.",
                                                                   "vision_encoder.",
                                                                   "pre_mm_projector_norm.",
                                                                   "patch_merger.",
                                                                   "vision_language_adapter.",
                                                                   "mtp_dspark.",
                                                                   "vit_large_projector.",
                                                                   "model.vision_model.",
                                                                   "vision_tower.",
                                                                   "multi_modal_projector.",
                                                                   "patch_merge_mlp.",
                                                                   "model.vision_tower.",
                                                                   "model.multi_modal_projector.",
                                                                   "model.visual.",
                                                                   "mtp.",
                                                                   "model.audio_tower.",
                                                                   "model.embed_vision.",
                                                                   "model.vision_adapter.",
                                                                   "model.vision_projection.",
                                                                   "model.embed_audio."});
  static constexpr std::array<std::pair<std::string_view, std::string_view>, 3> kText = {
      {{"language_model.model.", "model."},
       {"model.language_model.", "model."},
       {"language_model.lm_head.", "lm_head."}}};
  const auto begins = [&](std::string_view prefix) { return name.starts_with(prefix); };
  if (std::any_of(kVision.begin(), kVision.end(), begins)) return {};
  for (const auto& [prefix, ours] : kText) {
    if (begins(prefix)) return std::string(ours) + name.substr(prefix.size());
  }
  return name;
}

// Whether a tensor belongs to the layer after the last one, which predicts the token after the next, or in
// Step 3.7 one of the three (num_nextn_predict_layers; ERNIE 4.5's mtp_block and its like): transformers
// leaves them out too.
bool is_of_next_token_layer(const std::string& name, const Config& config) {
  const int64_t further = family_of(config).step ? 3 : 1;
  for (int64_t layer = 0; layer < further; ++layer) {
    if (config.mixture.corrected &&
        name.starts_with(fmt::format("model.layers.{}.", config.num_hidden_layers + layer)))
      return true;
  }
  return config.mixture.corrected &&
         (name.starts_with("model.mtp_") || name.starts_with("model.mtp.") || name.starts_with("mtp."));
}

// The tensors of `files` by the names of parameters.
Tensors named_as_parameters(const Files& files, const Config& config) {
  const Family& family = family_of(config);
  const bool may_be_part = family.whole.model_type != nullptr || family.recurrent;
  Tensors tensors;
  Pieces pieces(config);
  const auto add = [&](const std::string& name, const StoredTensor& tensor) {
    const auto [at, is_new] = tensors.try_emplace(name, tensor);
    if (!is_new) {
      throw InputError("{}: tensors {} and {} are the same parameter", tensor.file.path().string(),
                       shown(at->second.name), shown(tensor.name));
    }
  };
  for (const auto& [stored_name, file] : files) {
    const std::optional<std::string> name = may_be_part ? text_name(stored_name) : stored_name;
    if (!name || is_of_next_token_layer(*name, config)) continue;
    const StoredTensor tensor{file, stored_name};
    if (pieces.take(*name, tensor)) continue;
    const auto parts = parameters_in(*name, tensor, config);
    for (const auto& [parameter, part] : parts) add(parameter, part);
    if (parts.empty()) add(parameter_name(config, *name), tensor);
  }
  for (const auto& [parameter, tensor] : pieces.joined()) add(parameter, tensor);
  return tensors;
}

// Of tensors of one size.
bool same_bytes(const StoredTensor& a, const StoredTensor& b) {
  constexpr uint64_t kAtOnce = uint64_t{1} << 20;
  const uint64_t size = a.entry().end - a.entry().begin;
  std::vector<std::byte> of_a(std::min(kAtOnce, size)), of_b(of_a.size());
  for (uint64_t begin = 0; begin < size; begin += kAtOnce) {
    const uint64_t count = std::min(kAtOnce, size - begin);
    a.read(begin, std::span(of_a).first(count));
    b.read(begin, std::span(of_b).first(count));
    if (!std::equal(of_a.begin(), of_a.begin() + static_cast<std::ptrdiff_t>(count), of_b.begin()))
      return false;
  }
  return true;
}

// Published files of Gemma 4 hold what makes keys and values in layers that read another's; nobody uses it.
bool is_of_shared_keys_values(const std::string& name, const Config& config) {
  const int64_t layers = config.num_hidden_layers;
  for (int64_t layer = layers - config.gemma4.num_kv_shared_layers; layer < layers; ++layer) {
    for (const char* part : {"k_proj", "v_proj", "k_norm", "v_norm"}) {
      if (name == fmt::format("model.layers.{}.self_attn.{}.weight", layer, part)) return true;
    }
  }
  return false;
}

// How transformers hashes n-grams is in its files too, as integers; here it is computed, and has to be the
// same.
bool is_of_ngram_hash(const std::string& name, const StoredTensor& tensor, const Config& config) {
  for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    if (!config.ngrams.are_in(layer)) continue;
    const std::string in = fmt::format("model.layers.{}.ple.ple_embedding.", layer);
    if (!name.starts_with(in)) continue;
    const int64_t module = config.ngrams.modules[static_cast<size_t>(layer)];
    const std::string part = name.substr(in.size());
    std::vector<int64_t> numbers = ngram_head_rows(config.ngrams, module);
    if (part == "layer_multipliers") {
      numbers = ngram_multipliers(config.ngrams, module, config.vocab_size);
    } else if (part == "ngram_heads_offsets") {
      std::exclusive_scan(numbers.begin(), numbers.end(), numbers.begin(), int64_t{0});
    } else if (part != "ngram_heads_vocab_sizes") {
      return false;
    }
    std::vector<int64_t> stored(numbers.size());
    const SafetensorsEntry& entry = tensor.entry();
    if (entry.dtype == "I64" && entry.end - entry.begin == stored.size() * sizeof(int64_t))
      tensor.read(0, std::as_writable_bytes(std::span(stored)));
    if (stored != numbers)
      throw InputError("{}: tensor {} is not what config.json says of n-grams, expected [{}] in I64",
                       tensor.file.path().string(), shown(tensor.name), fmt::join(numbers, ", "));
    return true;
  }
  return false;
}

// Some files of tied models hold the embedding twice.
bool is_tolerated(const std::string& name, const StoredTensor& tensor, const Tensors& tensors,
                  const Config& config) {
  if (is_rope_table(name) || is_of_shared_keys_values(name, config) || is_of_ngram_hash(name, tensor, config))
    return true;
  const auto embedding = tensors.find(kEmbeddingWeight);
  if (name != kHeadWeight || !config.tie_word_embeddings || embedding == tensors.end()) return false;
  const SafetensorsEntry& tied = embedding->second.entry();
  if (tensor.entry().dtype != tied.dtype || tensor.entry().shape != tied.shape ||
      !same_bytes(tensor, embedding->second)) {
    throw InputError("{}: {} differs from {}, but config.json says tie_word_embeddings: true",
                     tensor.file.path().string(), tensor.name, embedding->second.name);
  }
  return true;
}

// Drops what is tolerated and checks that exactly the parameters of `config` remain, quantised and packed
// ones with what belongs to them; `where` names the source.
Tensors checked(const Files& files, const Config& config, const std::string& where,
                const std::optional<Quantization>& quantization = {},
                const std::optional<Packing>& packing = {}) {
  const Tensors tensors = named_as_parameters(files, config);
  Tensors parameters;
  for (const ParameterShape& parameter : parameter_shapes(config)) {
    if (packing) {
      auto packed = packed_entries(parameter, *packing, tensors);
      parameters.merge(packed);
      if (parameters.contains(parameter.name)) continue;
    }
    const auto at = tensors.find(parameter.name);
    if (at == tensors.end()) {
      throw InputError("{}: tensor {} is missing, expected shape {}", where, parameter.name,
                       shown(parameter.shape));
    }
    if (quantization) {
      auto quantized = quantized_entries(parameter, *quantization, tensors);
      parameters.merge(quantized);
      if (parameters.contains(parameter.name)) continue;
    }
    const StoredTensor& tensor = at->second;
    const SafetensorsEntry& entry = tensor.entry();
    if (entry.shape != parameter.shape) {
      throw InputError("{}: tensor {} has shape {}, expected {}", tensor.file.path().string(), tensor.name,
                       shown(entry.shape), shown(parameter.shape));
    }
    if (parameter.role == ParameterRole::kHash ? !is_integer(entry.dtype) : !is_floating(entry.dtype)) {
      throw InputError("{}: tensor {} has dtype {}, expected {}", tensor.file.path().string(), tensor.name,
                       entry.dtype,
                       parameter.role == ParameterRole::kHash ? "I64 or I32" : "F64, F32, BF16 or F16");
    }
    parameters.emplace(parameter.name, tensor);
  }
  for (const auto& [name, tensor] : tensors) {
    if (!parameters.contains(name) && !is_tolerated(name, tensor, tensors, config)) {
      throw InputError("{}: tensor {} is not a parameter of this {} model", tensor.file.path().string(),
                       shown(tensor.name), config.family);
    }
  }
  return parameters;
}

}  // namespace

std::vector<std::byte> Checkpoint::bytes(const std::string& name) const {
  const StoredTensor& tensor = stored(name);
  std::vector<std::byte> all(tensor.entry().end - tensor.entry().begin);
  tensor.read(0, all);
  return all;
}

std::optional<Packing> Checkpoint::packing(const std::string& name) const {
  return is_floating(entry(name).dtype) || is_hash_table(name) ? std::nullopt : packing_;
}

namespace {

/// Whether the weights are there as torch.save writes them.
bool has_pickles(const std::filesystem::path& folder) {
  return is_there(folder / "pytorch_model.bin") || is_there(folder / "pytorch_model.bin.index.json");
}

}  // namespace

ShardedFiles sharded_files(const std::filesystem::path& index_file) {
  const std::string where = index_file.string();
  const json index = parse_strict_json(read_text_file(index_file), where);
  const auto weight_map = index.is_object() ? index.find("weight_map") : index.end();
  if (weight_map == index.end() || !weight_map->is_object()) {
    throw InputError("{}: no weight_map object in it", where);
  }
  std::map<std::string, SafetensorsFile> shards;
  ShardedFiles files;
  for (const auto& [name, value] : weight_map->items()) {
    if (!value.is_string())
      throw InputError("{}: tensor {} is in {}, expected a string", where, shown(name), shown(value));
    const auto shard_name = value.get<std::string>();
    check_shard_name(shard_name, where);
    auto shard = shards.find(shard_name);
    if (shard == shards.end())
      shard = shards.emplace(shard_name, open_shard(index_file.parent_path() / shard_name, shard_name, where))
                  .first;
    if (!shard->second.entries().contains(name)) {
      throw InputError("{}: tensor {} is not in {}, where the index has it", where, shown(name),
                       shown(shard_name));
    }
    files.emplace(name, shard->second);
  }
  for (const auto& [shard_name, shard] : shards) {
    for (const auto& [name, entry] : shard.entries()) {
      const auto listed = weight_map->find(name);
      if (listed == weight_map->end()) {
        if (is_rope_table(name)) continue;
        throw InputError("{}: tensor {} is in {} but not in the index", where, shown(name),
                         shown(shard_name));
      }
      if (listed->get<std::string>() != shard_name) {
        throw InputError("{}: tensor {} is in two shards, {} and {}", where, shown(name), shown(*listed),
                         shown(shard_name));
      }
    }
  }
  return files;
}

Checkpoint Checkpoint::open(const std::filesystem::path& folder, const std::string& config_name) {
  std::error_code error;
  if (!std::filesystem::is_directory(folder, error)) throw InputError("{}: no such folder", folder.string());
  Checkpoint checkpoint;
  checkpoint.config_ = read_config(folder / config_name);
  const bool single = is_there(folder / kWeightFile);
  if (!single && !is_there(folder / kWeightIndex))
    throw InputError(
        "{}: no weights, expected {} or {}{}", folder.string(), kWeightFile, kWeightIndex,
        has_pickles(folder) ? ": pytorch_model.bin is not read; save_pretrained() writes them" : "");
  checkpoint.packing_ = read_packing(folder / config_name);
  const std::filesystem::path path = folder / (single ? kWeightFile : kWeightIndex);
  checkpoint.tensors_ = checked(single ? single_file(path) : sharded_files(path), checkpoint.config_,
                                path.string(), read_quantization(folder / config_name), checkpoint.packing_);
  return checkpoint;
}

Checkpoint Checkpoint::open_file(const std::filesystem::path& file, const Config& config) {
  Checkpoint checkpoint;
  checkpoint.config_ = config;
  checkpoint.tensors_ = checked(single_file(file), config, file.string());
  return checkpoint;
}

}  // namespace streambp
