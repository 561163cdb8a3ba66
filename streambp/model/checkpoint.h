// A Hugging Face folder: config.json and its weights, in one safetensors file or sharded behind an index.
#pragma once

#include <filesystem>
#include <map>
#include <span>
#include <string>

#include "streambp/model/config.h"
#include "streambp/model/safetensors.h"

namespace streambp {

/// A model folder that has been checked against its own config: every parameter is there exactly once, with
/// the right shape and a floating dtype (F64, F32, BF16, F16), and nothing else is.
class Checkpoint {
 public:
  /// Reads config.json, then model.safetensors or the shards that model.safetensors.index.json names.
  /// `config_name` lets the golden cases read config.legacy.json.
  /// Throws InputError naming the file and the tensor: folder, config or shard missing; a shard name that
  /// leaves the folder; a tensor missing, surplus, listed in the index but absent from its shard (or the
  /// reverse), in two shards, of the wrong shape or of a dtype that is not floating. Tolerated as
  /// transformers does: `*.rotary_emb.inv_freq`, and `lm_head.weight` of a tied model where its bytes equal
  /// the embedding's.
  static Checkpoint open(const std::filesystem::path& folder, const std::string& config_name = "config.json");

  /// One weight file alone against a config (golden cases keep a reference model's weights so).
  static Checkpoint open_file(const std::filesystem::path& file, const Config& config);

  const Config& config() const { return config_; }
  /// The entry and the bytes of parameter `name`; std::out_of_range if the model has no such parameter.
  const SafetensorsEntry& entry(const std::string& name) const { return files_.at(name).entry(name); }
  std::span<const std::byte> bytes(const std::string& name) const { return files_.at(name).bytes(name); }

 private:
  Config config_;
  std::map<std::string, SafetensorsFile> files_;  // parameter name to the file that holds it
};

}  // namespace streambp
