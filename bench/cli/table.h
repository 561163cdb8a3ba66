// A plain-text table for people: columns as wide as they need to be, numbers to the right.
#pragma once

#include <string>
#include <vector>

namespace streambp {

class Table {
 public:
  explicit Table(std::vector<std::string> header) : header_(std::move(header)) {}

  /// One cell for each column of the header; they are made printable().
  void add(std::vector<std::string> row);

  /// Columns two spaces apart under an underlined header, ending in a newline. A column whose cells all begin
  /// with a digit, a sign or a dash is aligned to the right.
  std::string text() const;

 private:
  std::vector<std::string> header_;
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace streambp
