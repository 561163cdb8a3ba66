#include "bench/report.h"

#include <cmath>
#include <fmt/format.h>
#include <optional>

#include "streambp/cli/command_line.h"
#include "streambp/cli/table.h"

namespace streambp::bench {
namespace {

using nlohmann::json;

constexpr const char* kMemory = "peak_beyond_resident_bytes";
constexpr const char* kWall = "seconds_median";
constexpr const char* kCpu = "cpu_seconds_median";
constexpr const char* kNothing = "-";

std::optional<double> number(const json& record, const char* member) {
  const auto found = record.find(member);
  if (found == record.end() || !found->is_number()) return std::nullopt;
  return found->get<double>();
}

std::string text(const json& record, const char* member) {
  const auto found = record.find(member);
  if (found == record.end() || found->is_null()) return kNothing;
  return found->is_string() ? found->get<std::string>() : found->dump();
}

std::string formatted(std::optional<double> value, const char* format) {
  return value ? fmt::format(fmt::runtime(format), *value) : kNothing;
}

const json* checkpoint_of(const json& record, const std::vector<json>& records) {
  for (const json& other : records) {
    if (text(other, "method") != "checkpoint" || text(other, "status") != "ok") continue;
    bool same = true;
    for (const char* member : {"seq_len", "batch", "objective"})
      same = same && text(other, member) == text(record, member);
    if (same) return &other;
  }
  return nullptr;
}

std::string ratio(const json& record, const json* other, const char* member) {
  const auto value = number(record, member);
  const auto base = other == nullptr ? std::nullopt : number(*other, member);
  if (!value || !base || !(*base > 0.0)) return kNothing;
  return fmt::format("{:.3f}", *value / *base);
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

std::string sweep_table(const std::vector<json>& records) {
  Table table({"seq_len", "batch", "objective", "method", "chunk", "memory", "x ckpt", "wall s", "x ckpt",
               "cpu s", "x ckpt", "tokens/s", "% GEMM", "loss", "status"});
  for (const json& record : records) {
    const json* const base = checkpoint_of(record, records);
    const auto memory = number(record, kMemory);
    table.add({text(record, "seq_len"), text(record, "batch"), text(record, "objective"), method(record),
               chunk(record), memory ? format_bytes(std::llround(*memory)) : kNothing,
               ratio(record, base, kMemory), formatted(number(record, kWall), "{:.3f}"),
               ratio(record, base, kWall), formatted(number(record, kCpu), "{:.3f}"),
               ratio(record, base, kCpu), formatted(number(record, "tokens_per_second"), "{:.0f}"),
               formatted(number(record, "percent_of_gemm"), "{:.1f}"),
               formatted(number(record, "loss"), "{:.6f}"), text(record, "status")});
  }
  return table.text();
}

}  // namespace streambp::bench
