// One line on stderr that is written over and over, for people: only on a terminal.
#pragma once

#include <cstdlib>
#include <fmt/format.h>
#include <string>
#include <string_view>
#include <unistd.h>

#include "streambp/printable.h"

namespace streambp::bench {

class ProgressLine {
 public:
  explicit ProgressLine(bool wanted) : on_(wanted && isatty(STDERR_FILENO) != 0 && !dumb()) {}
  ~ProgressLine() { clear(); }
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  void show(const std::string& text) {
    if (!on_) return;
    fmt::print(stderr, "\r\x1b[2K{}", printable(text, kPrintedCell));
    std::fflush(stderr);
  }
  /// Before anything else is printed.
  void clear() { show(""); }

 private:
  static bool dumb() {
    const char* const terminal = std::getenv("TERM");
    return terminal == nullptr || std::string_view(terminal) == "dumb";
  }

  bool on_;
};

}  // namespace streambp::bench
