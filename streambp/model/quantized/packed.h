// Weights as they are published in MXFP4 (gpt-oss) and FP8 (DeepSeek V3, Qwen3; DeepSeek V4 with experts in
// FP4): what config.json says of them, and which tensors store one. Knows bytes, not tensors: model/unpack.h
// has the numbers.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>

#include "streambp/model/config/config.h"
#include "streambp/model/files/safetensors.h"

namespace streambp {

class ConfigReader;

enum class PackedFormat { kMxfp4, kFp8 };

/// How a checkpoint is packed. What it is dequantised to can be trained.
struct Packing {
  PackedFormat format = PackedFormat::kMxfp4;
  /// Of FP8: rows and columns of the blocks that have a scale each; nothing: a matrix has one scale.
  std::optional<std::array<int64_t, 2>> block;
};

/// Values of MXFP4 that share a scale; neighbours along the inputs of a matrix.
inline constexpr int64_t kMxfp4Block = 32;

/// What holds two values of FP4 a byte, of a matrix of a checkpoint in FP8: a scale for each kMxfp4Block of
/// them.
inline constexpr const char* kPairsDtype = "I8";

/// Whether a checkpoint of `settings` is published in MXFP4 or FP8 (quant_method mxfp4 or fp8), of which
/// config.json says enough for a prediction: trained is what it is dequantised to, bfloat16 where the config
/// names no dtype.
bool stored_packed(const ConfigReader& settings);

/// The same of a config.json.
bool is_packed(const std::filesystem::path& config_json);

/// `quantization_config` of a config.json that is_packed; nothing for another. Throws InputError naming the
/// file and the key for blocks that are no two sizes.
std::optional<Packing> read_packing(const std::filesystem::path& config_json);

/// What a reader of the model should know, for stderr; `dtype` is the config's.
std::string packing_note(const Packing& packing, const std::string& dtype);

/// The tensor that has the scales of the packed parameter `name`.
std::string scales_name(const Packing& packing, const std::string& name);

/// What stores the packed `parameter`: the packed values by its own name and by theirs, the scales, and of
/// FP8 the activations' scale, which has no part. Empty for a parameter that is stored as it is, or not at
/// all. Throws InputError naming file and tensor, what was expected and what to do, for scales that are
/// missing, and for dtypes and shapes that the parameter's shape does not imply.
std::map<std::string, StoredTensor> packed_entries(const ParameterShape& parameter, const Packing& packing,
                                                   const std::map<std::string, StoredTensor>& tensors);

}  // namespace streambp
