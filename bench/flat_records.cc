#include "bench/flat_records.h"

#include <algorithm>
#include <fmt/ranges.h>
#include <map>
#include <set>

#include "streambp/cli/print.h"

namespace streambp::bench {
namespace {

using nlohmann::json;

std::string cell_text(const json& value) {
  if (value.is_null()) return "";
  if (value.is_string()) return value.get<std::string>();
  const bool numbers = value.is_array() && std::all_of(value.begin(), value.end(),
                                                       [](const json& one) { return one.is_number(); });
  if (!numbers) return json_text(value);
  std::vector<std::string> words;
  for (const json& one : value) words.push_back(one.dump());
  return fmt::format("{}", fmt::join(words, ";"));
}

std::string in_quotes(const std::string& text) {
  if (text.find_first_of(",\"\r\n") == std::string::npos) return text;
  std::string in = "\"";
  for (const char c : text) in += c == '"' ? "\"\"" : std::string(1, c);
  return in + '"';
}

/// Every member that is no object, by its path.
void flatten(const json& object, const std::string& path, std::map<std::string, std::string>& cells) {
  for (const auto& [name, value] : object.items()) {
    const std::string member = path.empty() ? name : path + "." + name;
    if (value.is_object() && !value.empty()) {
      flatten(value, member, cells);
    } else {
      cells[member] = value.is_object() ? "" : cell_text(value);
    }
  }
}

}  // namespace

std::string flat_csv(const std::vector<FiledRecord>& records) {
  std::vector<std::map<std::string, std::string>> rows;
  std::set<std::string> columns;
  for (const FiledRecord& filed : records) {
    flatten(filed.record, "", rows.emplace_back());
    for (const auto& [name, text] : rows.back()) columns.insert(name);
  }
  std::string csv = "file";
  for (const std::string& name : columns) csv += "," + in_quotes(name);
  csv += '\n';
  for (size_t i = 0; i < rows.size(); ++i) {
    csv += in_quotes(records[i].file);
    for (const std::string& name : columns) {
      const auto cell = rows[i].find(name);
      csv += "," + (cell == rows[i].end() ? "" : in_quotes(cell->second));
    }
    csv += '\n';
  }
  return csv;
}

}  // namespace streambp::bench
