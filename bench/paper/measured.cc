#include "bench/paper/measured.h"

#include <algorithm>
#include <string>

#include "bench/cli/records.h"
#include "streambp/backprop/settings.h"
#include "streambp/error.h"

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
  const json settings = record.value("settings", json());
  if (!settings.is_object()) return false;
  const auto equal = [&](const std::string& member) {
    return settings.value(member, json()) == configuration.at("settings").value(member, json());
  };
  for (const SettingKind& kind : setting_kinds()) {
    if (!equal(kind.name)) return false;
  }
  for (const char* member : {"gradient_dtype", "head_dtype", "optimizer", "fused_optimizer", "lora",
                             "reference", "prompt", "micro_batches"}) {
    if (!equal(member)) return false;
  }
  return record.value("status", json()) == "ok" && record.value("peak_bytes", json()).is_number_integer() &&
         record.value("seq_len", json()).is_number_integer();
}

/// None of a file that can't be read: other people's folders may hold anything.
std::vector<json> records_in(const std::filesystem::path& path) {
  try {
    return read_records(path);
  } catch (const InputError&) {
    return {};
  }
}

}  // namespace

Measured::Measured(const std::filesystem::path& folder) {
  std::error_code error;
  std::vector<std::filesystem::path> files;
  using Iterator = std::filesystem::recursive_directory_iterator;
  const auto options = std::filesystem::directory_options::skip_permission_denied;
  for (Iterator entry(folder, options, error), end; !error && entry != end; entry.increment(error)) {
    if (entry->path().filename() == "results.jsonl") files.push_back(entry->path());
  }
  std::sort(files.begin(), files.end());
  for (const auto& path : files) {
    for (json& record : records_in(path)) {
      const json device = record.value("device", json());
      const bool on_gpu = device.is_string() && device.get<std::string>().starts_with("cuda");
      if (on_gpu && record.value("kind", json()) == "measured") records_.push_back(std::move(record));
    }
  }
}

std::optional<int64_t> Measured::longest(const json& configuration, int64_t budget) const {
  std::optional<int64_t> longest;
  for (const json& record : records_) {
    if (!same_run(record, configuration)) continue;
    const auto peak = record.at("peak_bytes").get<int64_t>();
    const bool fills = static_cast<double>(peak) >= kBudgetFilled * static_cast<double>(budget);
    if (peak > budget || !fills) continue;
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
