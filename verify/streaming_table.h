// A plain-text table whose rows are printed as they come: runs of minutes show how far they are, in a pipe
// too.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace streambp::verify {

/// Column widths are given beforehand; a cell that is wider shifts the rest of its row.
class StreamingTable {
 public:
  enum class Align { kLeft, kRight };

  struct Column {
    std::string title;
    size_t width = 0;  // at least the title's
    Align align = Align::kLeft;
  };

  explicit StreamingTable(std::vector<Column> columns) : columns_(std::move(columns)) {}

  /// Prints a row, each cell printable(), to stdout and flushes it; before the first one, the underlined
  /// header. One cell a column.
  void add(const std::vector<std::string>& row);

 private:
  std::string line(const std::vector<std::string>& cells) const;

  std::vector<Column> columns_;
  bool has_header_ = false;
};

}  // namespace streambp::verify
