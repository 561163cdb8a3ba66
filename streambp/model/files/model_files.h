// Which files a model or an adapter is read from, and what stands for their contents.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace streambp {

inline constexpr const char* kConfigFile = "config.json";
inline constexpr const char* kWeightFile = "model.safetensors";
inline constexpr const char* kWeightIndex = "model.safetensors.index.json";

/// config.json and, unless `config_only`, model.safetensors or else its index and the shards that the index
/// names. Throws InputError for an index that is not JSON; what is missing is left to those who open it.
std::vector<std::filesystem::path> model_files(const std::filesystem::path& folder, bool config_only = false);

/// adapter_config.json and adapter_model.safetensors, as far as they are there.
std::vector<std::filesystem::path> adapter_files(const std::filesystem::path& folder);

/// Larger files are not read as a whole by content_key().
inline constexpr uint64_t kWhollyHashedBytes = uint64_t{64} << 20;

/// 16 hexadecimal digits that stand for the names of `files` and what is in them. Of a file beyond `whole`
/// bytes: its size, its time of modification, its first MiB and 256 pages spread over the rest. Throws
/// InputError for a file that can't be read or is no regular one.
std::string content_key(const std::vector<std::filesystem::path>& files, uint64_t whole = kWhollyHashedBytes);

}  // namespace streambp
