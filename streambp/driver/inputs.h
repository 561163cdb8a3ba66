// From what the command line names to models and batches.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "streambp/model/model.h"

namespace streambp {

/// The config of `--model DIR|PRESET`. Throws InputError that says what was looked for where neither fits.
Config open_config(const std::string& model);

/// The model of `--model DIR|PRESET`: a folder's weights, or a preset's random ones from `seed`.
Model open_model(const std::string& model, const Model::Placement& placement, uint64_t seed);

/// A batch from a safetensors file with input_ids [B, T] and, optionally, attention_mask, labels and
/// position_ids of the same shape
/// (`prefix` stands before each name: "in." in golden cases). Throws InputError naming the file and the
/// tensor.
Batch read_batch(const std::filesystem::path& file, int64_t vocab_size, const std::string& prefix = "");

}  // namespace streambp
