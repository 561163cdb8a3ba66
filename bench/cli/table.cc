#include "bench/cli/table.h"

#include <algorithm>
#include <fmt/format.h>
#include <string_view>

#include "streambp/printable.h"

namespace streambp {

void Table::add(std::vector<std::string> row) {
  for (std::string& cell : row) cell = printable(cell, kPrintedCell);
  rows_.push_back(std::move(row));
}

std::string Table::text() const {
  const size_t columns = header_.size();
  std::vector<size_t> width(columns);
  std::vector<bool> right(columns, true);
  for (size_t c = 0; c < columns; ++c) {
    width[c] = header_[c].size();
    for (const auto& row : rows_) {
      width[c] = std::max(width[c], row[c].size());
      right[c] = right[c] && !row[c].empty() && !row[c].starts_with("--") &&
                 std::string_view("0123456789+-").find(row[c][0]) != std::string_view::npos;
    }
  }
  std::string text;
  const auto append = [&](const std::vector<std::string>& row) {
    std::string line;
    for (size_t c = 0; c < columns; ++c) {
      if (c > 0) line += "  ";
      line += right[c] ? fmt::format("{:>{}}", row[c], width[c]) : fmt::format("{:<{}}", row[c], width[c]);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + '\n';
  };
  append(header_);
  std::vector<std::string> rule;
  for (const size_t w : width) rule.emplace_back(w, '-');
  append(rule);
  for (const auto& row : rows_) append(row);
  return text;
}

}  // namespace streambp
