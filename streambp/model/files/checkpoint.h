// A Hugging Face folder: config.json and its weights, in one safetensors file or sharded with an index.
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "streambp/model/config/config.h"
#include "streambp/model/config/pad_token.h"
#include "streambp/model/files/safetensors.h"
#include "streambp/model/files/stored_names.h"
#include "streambp/model/quantized/packed.h"

namespace streambp {

/// A tensor's name to the file that holds it.
using ShardedFiles = std::map<std::string, SafetensorsFile>;

/// The tensors that `index_file` names, in shards of its own folder. Throws InputError where index and shards
/// don't agree.
ShardedFiles sharded_files(const std::filesystem::path& index_file);

/// A model folder that has been checked against its own config: every parameter is there exactly once, with
/// the right shape and a floating dtype (F64, F32, BF16, F16) or in what stores a quantised one, and nothing
/// else is.
class Checkpoint {
 public:
  /// Reads config.json, then model.safetensors or the shards that model.safetensors.index.json names.
  /// `config_name` lets the golden cases read config.legacy.json.
  /// Throws InputError naming the file and the tensor: folder, config or shard missing; a shard name that
  /// leaves the folder; a tensor missing, surplus, listed in the index but absent from its shard (or the
  /// reverse), in two shards, of the wrong shape or of a dtype that is not floating. Tolerated as
  /// transformers does: `*.rotary_emb.inv_freq`, and `lm_head.weight` of a tied model where its bytes equal
  /// the embedding's. Of a multimodal Gemma 3, Mistral 3 or Qwen3.5 the text part is read, under the names it
  /// would have alone: the prefixes `language_model.` and `model.language_model.` go, the tensors of the
  /// vision part are left out. A layer's experts may be stored in two tensors, `mlp.experts.gate_up_proj` and
  /// `mlp.experts.down_proj`, as transformers 5 holds them.
  static Checkpoint open(const std::filesystem::path& folder, const std::string& config_name = "config.json");

  /// One weight file alone against a config (golden cases keep a reference model's weights so).
  static Checkpoint open_file(const std::filesystem::path& file, const Config& config);

  const Config& config() const { return config_; }
  void set_pad_token(const GivenPadToken& given) { streambp::set_pad_token(config_, given); }
  /// Where parameter `name` is stored; std::out_of_range if the model has no such parameter.
  const StoredTensor& stored(const std::string& name) const { return tensors_.at(name); }
  const SafetensorsEntry& entry(const std::string& name) const { return stored(name).entry(); }
  std::vector<std::byte> bytes(const std::string& name) const;
  /// How parameter `name` is packed; nothing where it is stored as a number of its dtype.
  std::optional<Packing> packing(const std::string& name) const;

 private:
  Config config_;
  std::optional<Packing> packing_;
  std::map<std::string, StoredTensor> tensors_;  // by the names of the parameters
};

}  // namespace streambp
