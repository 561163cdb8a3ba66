#include "verify/equality/report.h"

#include <algorithm>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "bench/cli/print.h"
#include "verify/equality/equality.h"

namespace streambp::verify {
namespace {

constexpr size_t kShownFailures = 10;

/// "dpo loss_type=ipo".
std::string objective_text(const RowName& name) {
  return name.settings.empty() ? name.objective : name.objective + " " + settings_text(name.settings);
}

/// The flags of settings that are not the default, but for those that a sweep has lists of.
std::string settings_flags(const Settings& settings) {
  std::string flags;
  for (const SettingKind& kind : setting_kinds()) {
    if (kind.name == "chunk" || kind.name == "head_chunk") continue;
    if (!applies(kind, settings) || is_default(kind, settings)) continue;
    flags += " " + kind.flag;
    if (kind.type != SettingType::kSwitch) flags += " " + kind.text(settings);
  }
  return flags;
}

std::string rows_text(const std::vector<RowLengths>& rows) {
  std::vector<std::string> words;
  for (const RowLengths& row : rows) words.push_back(fmt::format("{}+{}", row.prompt, row.completion));
  return fmt::format("{}", fmt::join(words, ","));
}

/// "models 2,301 of 2,438": of all pairs of a setting and a value of `of`, those that ran.
template <class Of>
std::string pairs_text(const std::vector<EqualityRow>& rows, const char* what, const Of& of) {
  std::set<std::string> settings, values;
  std::set<std::pair<std::string, std::string>> pairs;
  for (const EqualityRow& row : rows) {
    values.insert(of(row.name));
    for (const std::string& setting : row.settings) {
      settings.insert(setting);
      pairs.emplace(setting, of(row.name));
    }
  }
  return fmt::format("{} of {} pairs with {} {}", pairs.size(), settings.size() * values.size(),
                     values.size(), what);
}

}  // namespace

std::string settings_text(const std::map<std::string, std::string>& settings) {
  std::vector<std::string> words;
  for (const auto& [option, value] : settings) words.push_back(option + "=" + value);
  return fmt::format("{}", fmt::join(words, ","));
}

std::string repeat_command(const RowName& name, uint64_t seed, const Settings& settings, bool alone,
                           int64_t micro_batches) {
  std::string command = "streambp-verify sweep --model " + name.model;
  if (!name.config.empty()) command += fmt::format(" --config '{}'", name.config);
  command += fmt::format(" --objective {} --tuning {} --batch {}", name.objective, name.tuning, name.batch);
  command +=
      name.rows.empty() ? fmt::format(" --seq-len {}", name.length) : " --rows " + rows_text(name.rows);
  command += fmt::format(" --seed {} --method {}", seed, method_name(settings.method));
  if (!name.settings.empty()) command += " --set " + settings_text(name.settings);
  if (settings.chunk > 0) command += fmt::format(" --chunk {}", settings.chunk);
  if (settings.head_chunk > 0) command += fmt::format(" --head-chunk {}", settings.head_chunk);
  if (!alone) return command;
  command += " --alone" + settings_flags(settings);
  if (micro_batches > 1) command += fmt::format(" --micro-batches {}", micro_batches);
  return command;
}

void print_json(const EqualityRow& row) {
  nlohmann::json failures = nlohmann::json::array();
  for (const EqualityFailure& failure : row.failures) {
    failures.push_back({{"what", failure.what}, {"error", failure.error}, {"repeat", failure.repeat}});
  }
  const nlohmann::json line{{"kind", "equality"},
                            {"model", row.name.model},
                            {"objective", row.name.objective},
                            {"settings", row.name.settings},
                            {"tuning", row.name.tuning},
                            {"batch", row.name.batch},
                            {"lengths", row.lengths},
                            {"comparisons", row.comparisons},
                            {"failed", row.failed},
                            {"standard_error", row.standard_error},
                            {"standard_limit", kStandardLimit},
                            {"reference_error", row.reference_error},
                            {"reference_limit", kReferenceLimit},
                            {"worst_parameter", row.worst.name},
                            {"worst_error", row.worst.error},
                            {"verdict", row.verdict()},
                            {"failures", failures}};
  fmt::print("{}\n", json_text(line));
  std::fflush(stdout);
}

StreamingTable equality_table(const std::vector<RowName>& names) {
  size_t model_width = 0, objective_width = 0;
  for (const RowName& name : names) {
    model_width = std::max(model_width, printable(name.model, kPrintedCell).size());
    objective_width = std::max(objective_width, objective_text(name).size());
  }
  using enum StreamingTable::Align;
  return StreamingTable({{"model", model_width, kLeft},
                         {"objective", objective_width, kLeft},
                         {"tuning", 0, kLeft},
                         {"batch", 9, kLeft},
                         {"lengths", 11, kLeft},
                         {"comparisons", 0, kRight},
                         {"vs standard", 0, kRight},
                         {"vs reference", 0, kRight},
                         {"verdict", 0, kLeft},
                         {"worst parameter", 0, kLeft}});
}

std::vector<std::string> table_row(const EqualityRow& row) {
  return {row.name.model,
          objective_text(row.name),
          row.name.tuning,
          row.name.batch,
          fmt::format("{}", fmt::join(row.lengths, "+")),
          fmt::to_string(row.comparisons),
          error_text(row.standard_error),
          error_text(row.reference_error),
          row.verdict(),
          row.worst.name};
}

void print_summary(const std::vector<EqualityRow>& rows) {
  int64_t comparisons = 0;
  int64_t failed = 0;
  for (const EqualityRow& row : rows) {
    comparisons += row.comparisons;
    failed += row.failed;
  }
  for (const EqualityRow& row : rows) {
    if (row.failures.empty()) continue;
    fmt::print("\n");
    print_line(stdout, "{}, {}, {}, {}: {} of {} comparisons failed", row.name.model,
               objective_text(row.name), row.name.tuning, row.name.batch, row.failed, row.comparisons);
    for (size_t i = 0; i < std::min(row.failures.size(), kShownFailures); ++i) {
      const EqualityFailure& failure = row.failures[i];
      print_line(stdout, "  {}: {}", failure.what, failure.error);
      print_line(stdout, "    {}", failure.repeat);
    }
    if (row.failures.size() > kShownFailures)
      fmt::print("  and {} more\n", row.failures.size() - kShownFailures);
  }
  std::set<std::string> settings;
  for (const EqualityRow& row : rows) settings.insert(row.settings.begin(), row.settings.end());
  fmt::print("\n{} settings ran: {}, {}, {}\n", settings.size(),
             pairs_text(rows, "models", [](const RowName& name) { return name.model; }),
             pairs_text(rows, "objectives", [](const RowName& name) { return name.objective; }),
             pairs_text(rows, "batches", [](const RowName& name) { return name.batch; }));
  fmt::print("\n{} comparisons, {} failed; limits {} to standard, {} to the reference\n", comparisons, failed,
             error_text(kStandardLimit), error_text(kReferenceLimit));
}

}  // namespace streambp::verify
