#include "bench/report_pages/report_cell.h"

#include <algorithm>
#include <filesystem>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <set>

#include "bench/cli/print.h"
#include "bench/report_pages/statistics.h"
#include "streambp/printable.h"

namespace streambp::bench {
namespace {

using nlohmann::json;

/// Lengths and batches beyond it are no lengths and batches.
constexpr double kMostShown = 0x1p52;

std::vector<double> numbers_of(const json& record, const char* member) {
  std::vector<double> numbers;
  const json value = record.value(member, json());
  if (value.is_number()) return {value.get<double>()};
  if (!value.is_array()) return numbers;
  for (const json& one : value) {
    if (one.is_number()) numbers.push_back(one.get<double>());
  }
  return numbers;
}

json object_of(const json& record, const char* member) {
  const json value = record.value(member, json());
  return value.is_object() ? value : json::object();
}

/// The machine, where it decides a figure.
std::string machine_of(const json& record) {
  if (text_of(record, "kind") != "measured") return "";
  const json environment = object_of(record, "environment");
  const std::string gpu = text_of(environment, "gpu");
  return gpu.empty() ? text_of(environment, "cpu") : gpu;
}

/// What is the same for every cell of a chart: the run, and what else a chart holds one of.
json shared_of(const ReportRecord& from, const std::string& machine) {
  json shared = from.run;
  for (const char* member : {"objective", "batch", "kind", "threads", "paper_table"}) {
    if (from.record.contains(member)) shared[member] = from.record.at(member);
  }
  if (!machine.empty()) shared["machine"] = machine;
  return shared;
}

/// The machine of the measured records of each file that are all of one: those of other programs name none.
std::map<std::string, std::string> machines_of_files(const ReportLines& lines) {
  std::map<std::string, std::set<std::string>> machines;
  for (const ReportRecord& from : lines.records) {
    if (const std::string machine = machine_of(from.record); !machine.empty())
      machines[from.file].insert(machine);
  }
  std::map<std::string, std::string> only;
  for (const auto& [file, names] : machines) {
    if (names.size() == 1) only[file] = *names.begin();
  }
  return only;
}

/// What has to be equal for two cells of two folders to be compared. How often something is measured, on
/// which machine and with what limit does not change what is measured.
json identity_of(const ReportRecord& from) {
  json identity = json::object();
  for (const char* member : {"model", "objective", "dtype", "device", "kind", "method", "seq_len", "batch",
                             "threads", "way", "paper_table", "folder", "seq_lens"}) {
    if (from.record.contains(member)) identity[member] = from.record.at(member);
  }
  json settings = object_of(from.record, "settings");
  for (const char* name : {"repeats", "memory_limit", "tokens_file"}) settings.erase(name);
  identity["settings"] = settings;
  return identity;
}

std::string label_of(const ReportRecord& from) {
  std::vector<std::string> words{text_of(from.record, "method")};
  if (from.record.contains("choice")) words.front() += " auto";
  if (!from.own.empty()) words.push_back(from.own);
  const json settings = object_of(from.record, "settings");
  if (const auto chunk = number_of(settings, "chunk")) words.push_back(fmt::format("chunk {}", *chunk));
  // What bytes-per-token and paper write there is a label already: method, settings.
  std::string plan = text_of(from.record, "way");
  if (plan.starts_with(words.front() + ", ")) plan.erase(0, words.front().size() + 2);
  if (!plan.empty() && std::find(words.begin(), words.end(), plan) == words.end()) words.push_back(plan);
  for (const char* name : {"ranks", "zero", "exchange"}) {
    if (settings.contains(name)) words.push_back(in_words(name, settings.at(name)));
  }
  std::erase(words, "");  // zero: none
  return fmt::format("{}", fmt::join(words, ", "));
}

ReportCell cell_of(const ReportRecord& from, const std::string& machine) {
  const json& record = from.record;
  ReportCell cell;
  cell.records = {&from};
  cell.model = text_of(record, "model");
  cell.objective = text_of(record, "objective");
  cell.dtype = text_of(record, "dtype");
  cell.device = text_of(record, "device");
  cell.kind = text_of(record, "kind");
  cell.method = text_of(record, "method");
  cell.label = label_of(from);
  cell.status = record.contains("status") ? text_of(record, "status") : "ok";
  cell.status_words = cell.good() ? cell.status : status_text(record);
  cell.error = text_of(record, "error");
  cell.seq_len = static_cast<int64_t>(number_of(record, "seq_len").value_or(0));
  cell.batch = static_cast<int64_t>(number_of(record, "batch").value_or(1));
  cell.peak = number_of(record, "peak_bytes");
  cell.resident = number_of(record, "resident_bytes");
  cell.memory = number_of(record, "peak_beyond_resident_bytes");
  cell.seconds = numbers_of(record, "seconds");
  cell.loss = number_of(record, "loss");
  cell.tokens_per_second = number_of(record, "tokens_per_second");
  cell.percent_of_gemm = number_of(record, "percent_of_gemm");
  cell.gradient_error = number_of(record, "gradient_error");
  cell.worst_parameter = text_of(record, "worst_parameter");
  const json by_purpose = object_of(record, "breakdown_at_peak");
  for (const auto& [purpose, bytes] : by_purpose.items()) {
    if (bytes.is_number()) cell.by_purpose[purpose] = bytes.get<double>();
  }
  cell.identity = identity_of(from);
  cell.run = json_text(shared_of(from, machine));
  return cell;
}

/// One repeat more of a cell.
void add_repeat(ReportCell& cell, const ReportCell& repeat) {
  cell.records.push_back(repeat.records.front());
  cell.seconds.insert(cell.seconds.end(), repeat.seconds.begin(), repeat.seconds.end());
  if (repeat.memory && (!cell.memory || *repeat.memory > *cell.memory)) {
    cell.memory = repeat.memory;
    cell.peak = repeat.peak;
    cell.resident = repeat.resident;
  }
  if (repeat.gradient_error && (!cell.gradient_error || !(*repeat.gradient_error <= *cell.gradient_error))) {
    cell.gradient_error = repeat.gradient_error;
    cell.worst_parameter = repeat.worst_parameter;
  }
  if (cell.good() && !repeat.good()) {
    cell.status = repeat.status;
    cell.status_words = repeat.status_words;
    cell.error = repeat.error;
  }
}

/// A later record of the same configuration takes over.
void supersede(ReportCell& cell, ReportCell later) {
  later.superseded = cell.superseded + 1;
  later.records.insert(later.records.begin(), cell.records.begin(), cell.records.end());
  cell = std::move(later);
}

std::string shell_word(const std::string& word) {
  const bool plain = !word.empty() && std::all_of(word.begin(), word.end(), [](unsigned char c) {
    return std::isalnum(c) != 0 ||
           std::string_view("-_./:,=+@%").find(static_cast<char>(c)) != std::string_view::npos;
  });
  if (plain) return word;
  std::string text = "'";
  for (const char c : word) text += c == '\'' ? "'\\''" : std::string(1, c);
  return text + "'";
}

}  // namespace

std::optional<double> number_of(const json& record, const char* member) {
  const auto found = record.find(member);
  if (found == record.end() || !found->is_number()) return std::nullopt;
  return found->get<double>();
}

std::string text_of(const json& record, const char* member) {
  const auto found = record.find(member);
  return found != record.end() && found->is_string() ? found->get<std::string>() : "";
}

std::string status_text(const json& record) {
  const std::string status = text_of(record, "status");
  const auto needed = number_of(object_of(record, "out_of_memory"), "needed_bytes");
  if (status != "oom" || !needed || !(*needed > 0.0)) return status;
  return fmt::format("oom, needs at least {}", bytes_text(needed));
}

std::string in_words(const std::string& name, const json& value) {
  const bool off = value.is_null() || value.empty() || value == false || value == "none";
  if (off) return "";
  if (value == true) return name;
  if (value.is_string()) return name + " " + printable(value.get<std::string>(), kPrintedCell);
  std::string text = json_text(value);
  std::erase_if(text, [](char c) { return c == '"' || c == '{' || c == '}'; });
  return name + " " + text;
}

namespace {

/// The member of bytes or seconds that is below 0; empty: none.
std::string negative_member(const json& record) {
  for (const char* member : {"peak_bytes", "resident_bytes", "peak_beyond_resident_bytes", "seconds",
                             "cpu_seconds", "gpu_seconds", "tokens_per_second"}) {
    for (const double number : numbers_of(record, member)) {
      if (number < 0.0) return member;
    }
  }
  return {};
}

}  // namespace

ReportCells report_cells(const ReportLines& lines) {
  ReportCells found;
  found.bad = lines.bad;
  found.files = lines.files;
  found.paper = lines.paper;
  const std::map<std::string, std::string> machines = machines_of_files(lines);
  std::map<std::string, size_t> known;  // by file and identity
  for (const ReportRecord& from : lines.records) {
    const json& record = from.record;
    const std::optional<double> length = number_of(record, "seq_len");
    if (text_of(record, "method").empty() || !length) {
      (text_of(record, "verdict").empty() ? found.others : found.verdicts).push_back(&from);
      continue;
    }
    const double batch = number_of(record, "batch").value_or(1.0);
    if (!(*length >= 1.0 && *length <= kMostShown && batch >= 0.0 && batch <= kMostShown)) {
      found.bad.push_back(
          {from.file, from.line,
           fmt::format("seq_len {}, batch {}: expected numbers from 1 to {}", *length, batch, kMostShown)});
      continue;
    }
    if (const std::string negative = negative_member(record); !negative.empty()) {
      found.bad.push_back({from.file, from.line, fmt::format("{}: expected nothing below 0", negative)});
      continue;
    }
    std::string machine = machine_of(record);
    if (machine.empty() && text_of(record, "kind") == "measured" && machines.contains(from.file))
      machine = machines.at(from.file);
    ReportCell cell = cell_of(from, machine);
    const auto [at, is_new] =
        known.emplace(from.file + '\n' + json_text(cell.identity) + cell.run, found.cells.size());
    if (is_new) {
      found.cells.push_back(std::move(cell));
    } else if (record.contains("repeat")) {
      add_repeat(found.cells[at->second], cell);
    } else {
      supersede(found.cells[at->second], std::move(cell));
    }
  }
  for (size_t i = 0; i < found.cells.size(); ++i) {
    ReportCell& cell = found.cells[i];
    cell.id = fmt::format("cell-{}", i + 1);
    if (!cell.seconds.empty()) cell.seconds_median = median(cell.seconds);
  }
  return found;
}

std::string cell_command(const ReportCell& cell) {
  const json& record = cell.records.back()->record;
  const json environment = object_of(record, "environment");
  const json argv = environment.value("argv", json());
  if (!argv.is_array()) return "";
  std::vector<std::string> words;
  for (const json& word : argv) {
    if (word.is_string()) words.push_back(word.get<std::string>());
  }
  if (words.size() < 2 || words[1] != "sweep") {
    for (std::string& word : words) word = shell_word(word);
    return fmt::format("{}", fmt::join(words, " "));
  }
  const bool chosen = record.contains("choice");
  const bool with_tokens = !text_of(object_of(record, "settings"), "tokens_file").empty();
  std::set<std::string> dropped{"--objective", "--out", "--resume", "--quiet", "--json"};
  if (!with_tokens) dropped.insert({"--seq-len", "--batch"});
  if (!chosen) dropped.insert({"--method", "--chunk"});
  const std::set<std::string> alone{"--resume", "--quiet", "--json"};
  std::vector<std::string> kept{std::filesystem::path(words[0]).filename().string()};
  for (size_t i = 1; i < words.size(); ++i) {
    const std::string flag = words[i].substr(0, words[i].find('='));
    if (!dropped.contains(flag)) {
      kept.push_back(shell_word(words[i]));
    } else if (!alone.contains(flag) && words[i].find('=') == std::string::npos) {
      ++i;  // and its value
    }
  }
  const auto add = [&](const char* flag, const std::string& value) {
    kept.push_back(flag);
    kept.push_back(shell_word(value));
  };
  if (!cell.objective.empty() && cell.objective != "sft") add("--objective", cell.objective);
  if (!chosen) {
    add("--method", cell.method);
    const json chunk = object_of(record, "settings").value("chunk", json());
    if (chunk.is_number()) add("--chunk", chunk.dump());
  }
  if (!with_tokens) {
    add("--seq-len", fmt::format("{}", cell.seq_len));
    if (cell.batch != 1) add("--batch", fmt::format("{}", cell.batch));
  }
  return fmt::format("{}", fmt::join(kept, " "));
}

FileLink record_link(const ReportRecord& record) {
  return {record.file, fmt::format("{}/{}:{}", folder_name(record.file),
                                   std::filesystem::path(record.file).filename().string(), record.line)};
}

std::string folder_name(const std::string& file) {
  return std::filesystem::path(file).parent_path().filename().string();
}

}  // namespace streambp::bench
