#include "verify/streaming_table.h"

#include <algorithm>
#include <cstdio>
#include <fmt/format.h>

#include "streambp/printable.h"

namespace streambp::verify {

void StreamingTable::add(const std::vector<std::string>& row) {
  std::string text;
  if (!has_header_) {
    std::vector<std::string> titles, underlines;
    for (const Column& column : columns_) {
      titles.push_back(column.title);
      underlines.emplace_back(std::max(column.width, column.title.size()), '-');
    }
    text = line(titles) + line(underlines);
    has_header_ = true;
  }
  text += line(row);
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
}

std::string StreamingTable::line(const std::vector<std::string>& cells) const {
  std::string text;
  for (size_t i = 0; i < columns_.size(); ++i) {
    const size_t width = std::max(columns_[i].width, columns_[i].title.size());
    const std::string gap = i == 0 ? "" : "  ";
    const std::string cell = printable(cells[i], kPrintedCell);
    text += columns_[i].align == Align::kRight ? fmt::format("{}{:>{}}", gap, cell, width)
                                               : fmt::format("{}{:<{}}", gap, cell, width);
  }
  text.erase(text.find_last_not_of(' ') + 1);
  return text + "\n";
}

}  // namespace streambp::verify
