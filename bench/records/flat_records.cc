#include "bench/records/flat_records.h"

#include <algorithm>
#include <fmt/ranges.h>
#include <limits>
#include <map>
#include <set>

#include "bench/cli/print.h"
#include "streambp/printable.h"

namespace streambp::bench {
namespace {

using nlohmann::json;

/// Lines stay lines; what else a terminal would obey is escaped, as a CSV goes to stdout.
std::string lines_in_print(const std::string& text) {
  std::vector<std::string> lines;
  for (size_t begin = 0, end = 0; end != text.npos; begin = end + 1) {
    end = text.find('\n', begin);
    lines.push_back(printable(std::string_view(text).substr(begin, end - begin), text.npos));
  }
  return fmt::format("{}", fmt::join(lines, "\n"));
}

std::string cell_text(const json& value) {
  if (value.is_null()) return "";
  if (value.is_string()) return lines_in_print(value.get<std::string>());
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

constexpr const char* kFile = "file";

/// Every member that is no object, by its path; where another has that name, with underscores behind it.
void flatten(const json& object, const std::string& path, std::map<std::string, json>& cells) {
  for (const auto& [name, value] : object.items()) {
    std::string member = lines_in_print(path.empty() ? name : path + "." + name);
    if (value.is_object() && !value.empty()) {
      flatten(value, member, cells);
    } else {
      while (member == kFile || cells.contains(member)) member += '_';
      cells[member] = value.is_object() ? json() : value;
    }
  }
}

/// Whether a column of `values` is of texts: what they have in common is no truth value and no number.
bool is_text(const json& values) {
  const auto all = [&](const auto& fits) {
    return std::all_of(values.begin(), values.end(),
                       [&](const json& one) { return one.is_null() || fits(one); });
  };
  // A column of Parquet has no whole numbers beyond these.
  const auto fits_int64 = [](const json& one) {
    return one.is_number_integer() && (!one.is_number_unsigned() ||
                                       one.get<uint64_t>() <= uint64_t{std::numeric_limits<int64_t>::max()});
  };
  return !all([](const json& one) { return one.is_boolean(); }) &&
         !all([&](const json& one) { return fits_int64(one) || one.is_number_float(); });
}

/// A row for each record, and the columns that some of them has.
struct FlatTable {
  explicit FlatTable(const std::vector<FiledRecord>& records) {
    for (const FiledRecord& filed : records) {
      flatten(filed.record, "", rows.emplace_back());
      for (const auto& [name, value] : rows.back()) columns.insert(name);
    }
  }

  std::vector<std::map<std::string, json>> rows;
  std::set<std::string> columns;
};

}  // namespace

std::string flat_csv(const std::vector<FiledRecord>& records) {
  const FlatTable table(records);
  std::string csv = kFile;
  for (const std::string& name : table.columns) csv += "," + in_quotes(name);
  csv += '\n';
  for (size_t i = 0; i < table.rows.size(); ++i) {
    csv += in_quotes(lines_in_print(records[i].file));
    for (const std::string& name : table.columns) {
      const auto cell = table.rows[i].find(name);
      csv += "," + (cell == table.rows[i].end() ? "" : in_quotes(cell_text(cell->second)));
    }
    csv += '\n';
  }
  return csv;
}

json flat_columns(const std::vector<FiledRecord>& records) {
  const FlatTable table(records);
  json files = json::array(), columns = json::array();
  for (const FiledRecord& filed : records) files.push_back(lines_in_print(filed.file));
  columns.push_back({{"name", kFile}, {"values", files}});
  for (const std::string& name : table.columns) {
    json values = json::array();
    for (const auto& row : table.rows) {
      const auto cell = row.find(name);
      values.push_back(cell == row.end() ? json() : cell->second);
    }
    if (is_text(values)) {
      for (json& value : values) {
        if (!value.is_null()) value = cell_text(value);
      }
    }
    columns.push_back({{"name", name}, {"values", values}});
  }
  return columns;
}

}  // namespace streambp::bench
