#include "bench/report_pages/csv.h"

#include <algorithm>

namespace streambp::bench {

std::vector<std::vector<std::string>> csv_rows(std::string_view text) {
  std::vector<std::vector<std::string>> rows;
  std::vector<std::string> row;
  std::string cell;
  bool quoted = false;
  const auto end_row = [&] {
    row.push_back(std::move(cell));
    cell.clear();
    if (row.size() > 1 || !row[0].empty()) rows.push_back(std::move(row));
    row.clear();
  };
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    const bool begins_line = row.empty() && cell.empty() && !quoted;
    if (begins_line && c == '#') {  // a comment has no cells, whatever its commas
      i = std::min(text.find('\n', i), text.size());
    } else if (quoted) {
      if (c == '"' && i + 1 < text.size() && text[i + 1] == '"')
        cell += text[++i];
      else if (c == '"')
        quoted = false;
      else
        cell += c;
    } else if (c == '"') {
      quoted = true;
    } else if (c == ',') {
      row.push_back(std::move(cell));
      cell.clear();
    } else if (c == '\n') {
      end_row();
    } else if (c != '\r') {
      cell += c;
    }
  }
  if (!row.empty() || !cell.empty()) end_row();
  return rows;
}

}  // namespace streambp::bench
