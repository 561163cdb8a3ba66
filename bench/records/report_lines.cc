#include "bench/records/report_lines.h"

#include <algorithm>
#include <filesystem>
#include <set>

#include "bench/records/known_records.h"
#include "bench/report_pages/csv.h"
#include "bench/sweep/run_settings.h"
#include "bench/sweep/setting_members.h"
#include "streambp/error.h"
#include "streambp/model/files/strict_json.h"

namespace streambp::bench {
namespace {

namespace fs = std::filesystem;

std::vector<fs::path> files_of(const fs::path& given) {
  if (!fs::is_directory(given)) return {given};
  if (fs::exists(given / "results.jsonl")) return {given / "results.jsonl"};
  std::vector<fs::path> files;
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(given)) {
    if (entry.is_regular_file() && entry.path().filename() == "results.jsonl") files.push_back(entry.path());
  }
  if (files.empty())
    throw InputError("{}: no results.jsonl in it or below it; expected a folder that sweep --out has written",
                     given.string());
  std::sort(files.begin(), files.end());
  return files;
}

/// `message` without the file and line that it begins with.
std::string without(const std::string& where, const std::string& message) {
  return message.starts_with(where + ": ") ? message.substr(where.size() + 2) : message;
}

void read_line(std::string_view text, const std::string& file, size_t number, ReportLines& lines) {
  const std::string where = "line";
  try {
    nlohmann::json record = parse_strict_json(text, where);
    if (!record.is_object()) throw InputError("{}: expected a JSON object", where);
    if (record.empty()) throw InputError("{}: no member of a record", where);
    check_record(record, where);
    const nlohmann::json settings = record.value("settings", nlohmann::json());
    const nlohmann::json method = record.value("method", nlohmann::json());
    const std::string own =
        settings.is_object() && method.is_string() ? own_settings_text(method, settings) : "";
    nlohmann::json run = run_settings(record);
    lines.records.push_back({file, number, std::move(record), own, std::move(run)});
  } catch (const InputError& error) {
    lines.bad.push_back({file, number, without(where, error.what())});
  }
}

/// The table of the paper's cells in a folder of records, where there is one.
void read_paper(const fs::path& folder, ReportLines& lines) {
  const fs::path path = folder / "cells.csv";
  if (!fs::is_regular_file(path)) return;
  const std::string file = fs::absolute(path).lexically_normal().string();
  const std::vector<std::vector<std::string>> rows = csv_rows(read_text_file(path));
  const auto is_header = [](const std::vector<std::string>& row) {
    return std::find(row.begin(), row.end(), "verdict") != row.end();
  };
  if (rows.empty() || !is_header(rows.front())) return;  // somebody else's cells
  for (size_t i = 1; i < rows.size(); ++i) {
    if (rows[i].size() != rows.front().size()) {
      lines.bad.push_back({file, i + 1, fmt::format("expected {} columns", rows.front().size())});
      continue;
    }
    PaperRow row{file, {}};
    for (size_t k = 0; k < rows[i].size(); ++k) row.columns[rows.front()[k]] = rows[i][k];
    lines.paper.push_back(std::move(row));
  }
}

}  // namespace

ReportLines read_report_lines(const std::vector<std::string>& folders) {
  ReportLines lines;
  std::set<std::string> seen;
  for (const std::string& folder : folders) {
    for (const fs::path& path : files_of(folder)) {
      const std::string file = fs::absolute(path).lexically_normal().string();
      if (!seen.insert(file).second) continue;
      const std::string text = read_text_file(path);
      lines.files.push_back(file);
      size_t number = 0;
      for (size_t begin = 0, end; begin < text.size(); begin = end + 1) {
        end = std::min(text.find('\n', begin), text.size());
        read_line(std::string_view(text).substr(begin, end - begin), file, ++number, lines);
      }
      read_paper(path.parent_path(), lines);
    }
  }
  return lines;
}

std::vector<Timeline> read_timelines(const std::string& folder) {
  std::vector<Timeline> timelines;
  if (!fs::is_directory(folder)) return timelines;
  std::set<fs::path> paths;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    if (entry.is_regular_file() && entry.path().extension() == ".csv") paths.insert(entry.path());
  }
  for (const fs::path& path : paths) {
    const std::string file = fs::absolute(path).lexically_normal().string();
    if (std::optional<Timeline> timeline = read_timeline(read_text_file(path), file))
      timelines.push_back(std::move(*timeline));
  }
  return timelines;
}

}  // namespace streambp::bench
