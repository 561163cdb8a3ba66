#include "bench/records/report.h"

#include <algorithm>
#include <cmath>
#include <fmt/ranges.h>
#include <map>
#include <optional>
#include <set>
#include <string_view>

#include "bench/cli/command_line.h"
#include "bench/cli/print.h"
#include "bench/cli/table.h"
#include "bench/report_pages/report_cell.h"
#include "bench/sweep/run_settings.h"
#include "bench/sweep/setting_members.h"

namespace streambp::bench {
namespace {

using nlohmann::json;

constexpr const char* kMemory = "peak_beyond_resident_bytes";
constexpr const char* kWall = "seconds_median";
constexpr const char* kCpu = "cpu_seconds_median";
constexpr const char* kNothing = "-";

std::string text(const json& record, const char* member) {
  const auto found = record.find(member);
  if (found == record.end() || found->is_null()) return kNothing;
  return found->is_string() ? found->get<std::string>() : json_text(*found);
}

std::string formatted(std::optional<double> value, const char* format) {
  return value ? fmt::format(fmt::runtime(format), *value) : kNothing;
}

/// Names of the members of run_settings() in which `records` differ.
std::set<std::string> differing(const std::vector<nlohmann::json>& records) {
  std::map<std::string, std::set<std::string>> values;
  for (const json& record : records) {
    const json run = run_settings(record);
    for (const auto& [name, value] : run.items()) values[name].insert(json_text(value));
  }
  std::set<std::string> names;
  for (const auto& [name, distinct] : values) {
    if (distinct.size() > 1) names.insert(name);
  }
  return names;
}

/// The method's settings that are not the default, and what differs from run to run.
std::string settings_of(const json& record, const std::set<std::string>& differing_names) {
  std::vector<std::string> parts;
  if (const auto settings = record.find("settings"); settings != record.end() && settings->is_object()) {
    if (const std::string own = own_settings_text(text(record, "method"), *settings); !own.empty())
      parts.push_back(own);
  }
  const json run = run_settings(record);
  for (const std::string& name : differing_names) {
    if (const std::string words = in_words(name, run.value(name, json())); !words.empty())
      parts.push_back(words);
  }
  return fmt::format("{}", fmt::join(parts, ", "));
}

/// What ratios are to, checkpoint, or where no record has it standard.
const char* basis_of(const std::vector<nlohmann::json>& records) {
  const bool any = std::any_of(records.begin(), records.end(),
                               [](const json& record) { return text(record, "method") == "checkpoint"; });
  return any ? "checkpoint" : "standard";
}

const json* base_of(const json& record, const char* basis, const std::vector<nlohmann::json>& records) {
  const json run = run_settings(record);
  for (const json& other : records) {
    if (text(other, "method") != basis || text(other, "status") != "ok") continue;
    bool same = run_settings(other) == run;
    for (const char* member : {"seq_len", "batch", "objective"})
      same = same && text(other, member) == text(record, member);
    if (same) return &other;
  }
  return nullptr;
}

std::string ratio(const json& record, const json* other, const char* member) {
  const auto value = number_of(record, member);
  const auto base = other == nullptr ? std::nullopt : number_of(*other, member);
  if (!value || !base || !(*base > 0.0)) return kNothing;
  return fmt::format("{:.3f}", *value / *base);
}

/// "0.902 to 0.931 (9)": of the ratio of times, and of how many rounds.
std::string interval(const json& record) {
  const json ratio = record.value("relative_time", json());
  if (!ratio.is_object()) return kNothing;
  const auto low = number_of(ratio, "low"), high = number_of(ratio, "high"),
             rounds = number_of(ratio, "rounds");
  if (!low || !high || !rounds) return kNothing;
  return fmt::format("{:.3f} to {:.3f} ({:.0f})", *low, *high, *rounds);
}

/// As run, with a note where `auto` chose it; "auto" where the run ended before it was known.
std::string chunk(const json& record) {
  const std::string as_run = text(record, "chunk");
  if (!record.contains("settings") || text(record.at("settings"), "chunk") != "auto") return as_run;
  return as_run == kNothing ? "auto" : as_run + " auto";
}

/// With a note where `auto` chose it.
std::string method(const json& record) {
  return text(record, "method") + (record.contains("choice") ? " auto" : "");
}

}  // namespace

std::string sweep_table(const std::vector<nlohmann::json>& records) {
  const char* const basis = basis_of(records);
  const std::string ratio_name = basis == std::string_view("checkpoint") ? "x ckpt" : "x standard";
  const std::set<std::string> names = differing(records);
  std::vector<std::string> settings;
  for (const json& record : records) settings.push_back(settings_of(record, names));
  const bool show_settings =
      std::any_of(settings.begin(), settings.end(), [](const std::string& words) { return !words.empty(); });

  std::vector<std::string> header{"seq_len",  "batch",    "objective", "method",   "chunk",
                                  "memory",   ratio_name, "wall s",    ratio_name, "cpu s",
                                  ratio_name, "tokens/s", "% GEMM",    "loss",     "status"};
  constexpr ptrdiff_t kAfterChunk = 5;
  // Of --repeats auto: the interval of the ratio of times, and of how many rounds.
  const bool show_intervals = std::any_of(
      records.begin(), records.end(), [](const json& record) { return record.contains("relative_time"); });
  constexpr ptrdiff_t kAfterWall = 9;
  if (show_intervals) header.insert(header.begin() + kAfterWall, "interval");
  if (show_settings) header.insert(header.begin() + kAfterChunk, "settings");
  Table table(header);
  for (size_t i = 0; i < records.size(); ++i) {
    const json& record = records[i];
    const json* const base = base_of(record, basis, records);
    const auto memory = number_of(record, kMemory);
    std::vector<std::string> row{text(record, "seq_len"),
                                 text(record, "batch"),
                                 text(record, "objective"),
                                 method(record),
                                 chunk(record),
                                 memory ? format_bytes(std::llround(*memory)) : kNothing,
                                 ratio(record, base, kMemory),
                                 formatted(number_of(record, kWall), "{:.3f}"),
                                 ratio(record, base, kWall),
                                 formatted(number_of(record, kCpu), "{:.3f}"),
                                 ratio(record, base, kCpu),
                                 formatted(number_of(record, "tokens_per_second"), "{:.0f}"),
                                 formatted(number_of(record, "percent_of_gemm"), "{:.1f}"),
                                 formatted(number_of(record, "loss"), "{:.6f}"),
                                 record.contains("status") ? status_text(record) : kNothing};
    if (show_intervals) row.insert(row.begin() + kAfterWall, interval(record));
    if (show_settings) row.insert(row.begin() + kAfterChunk, settings[i]);
    table.add(row);
  }
  return table.text();
}

int exit_code_of(const std::vector<nlohmann::json>& records) {
  const auto any = [&](const char* status) {
    return std::any_of(records.begin(), records.end(),
                       [&](const nlohmann::json& record) { return record.at("status") == status; });
  };
  return any("error") ? kExitCheckFailed : any("oom") ? kExitOutOfMemory : kExitGood;
}

}  // namespace streambp::bench
