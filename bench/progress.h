// One line on stderr that is written over and over, for people: only on a terminal.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <fmt/format.h>
#include <string>
#include <string_view>
#include <sys/ioctl.h>
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
    fmt::print(stderr, "\r\x1b[2K{}", printable(text, std::min(kPrintedCell, columns() - 1)));
    std::fflush(stderr);
  }
  /// Before anything else is printed.
  void clear() { show(""); }

 private:
  static bool dumb() {
    const char* const terminal = std::getenv("TERM");
    return terminal == nullptr || std::string_view(terminal) == "dumb";
  }

  /// Of the terminal: what is longer would stay on the line above.
  static size_t columns() {
    constexpr size_t kUsual = 80, kFewest = 20;
    winsize size{};
    if (ioctl(STDERR_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return kUsual;
    return std::max<size_t>(size.ws_col, kFewest);
  }

  bool on_;
};

}  // namespace streambp::bench
