#include "bench/paper/measured.h"

#include <algorithm>
#include <fstream>
#include <string>

#include "streambp/backprop/settings.h"

namespace streambp::bench {
namespace {

using nlohmann::json;

bool has_members(const json& record, const json& wanted) {
  for (const auto& [name, value] : wanted.items()) {
    if (!record.contains(name) || record.at(name) != value) return false;
  }
  return true;
}

/// The members that decide how much memory a pass takes, apart from its length.
bool same_run(const json& record, const json& configuration) {
  for (const char* member : {"model", "objective", "method", "batch", "dtype"}) {
    if (record.value(member, json()) != configuration.at(member)) return false;
  }
  const json settings = record.value("settings", json::object());
  const auto equal = [&](const std::string& member) {
    return settings.value(member, json()) == configuration.at("settings").value(member, json());
  };
  for (const SettingKind& kind : setting_kinds()) {
    if (!equal(kind.name)) return false;
  }
  for (const char* member :
       {"gradient_dtype", "optimizer", "fused_optimizer", "lora", "reference", "prompt", "micro_batches"}) {
    if (!equal(member)) return false;
  }
  return record.value("status", json()) == "ok" && record.contains("peak_bytes");
}

}  // namespace

Measured::Measured(const std::filesystem::path& folder) {
  std::error_code error;
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder, error)) {
    if (entry.path().filename() == "results.jsonl") files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  for (const auto& path : files) {
    std::ifstream file(path);
    for (std::string line; std::getline(file, line);) {
      const json record = json::parse(line, nullptr, /*allow_exceptions=*/false);
      if (!record.is_object() || record.value("kind", json()) != "measured") continue;
      const json device = record.value("device", json());
      if (device.is_string() && device.get<std::string>().starts_with("cuda")) records_.push_back(record);
    }
  }
}

std::optional<int64_t> Measured::longest(const json& configuration, int64_t budget) const {
  std::optional<int64_t> longest;
  for (const json& record : records_) {
    if (!same_run(record, configuration) || record.at("peak_bytes") > budget) continue;
    longest = std::max(longest.value_or(0), record.at("seq_len").get<int64_t>());
  }
  return longest;
}

std::optional<int64_t> Measured::peak(const json& configuration) const {
  for (const json& record : records_) {
    if (same_run(record, configuration) && record.at("seq_len") == configuration.at("seq_len"))
      return record.at("peak_bytes").get<int64_t>();
  }
  return std::nullopt;
}

std::optional<double> Measured::linear(const json& wanted, const char* member) const {
  for (const json& record : records_) {
    if (!has_members(record, wanted) || !record.contains(member) || !record.at(member).is_number()) continue;
    return record.at(member).get<double>();
  }
  return std::nullopt;
}

}  // namespace streambp::bench
