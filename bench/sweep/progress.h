// One line on stderr that is written over and over, for people; in a log a new line now and then, so that a
// long search is no silence.
#pragma once

#include <algorithm>
#include <chrono>
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
  explicit ProgressLine(bool wanted) : wanted_(wanted), on_terminal_(isatty(STDERR_FILENO) != 0 && !dumb()) {}
  ~ProgressLine() { clear(); }
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  void show(const std::string& text) {
    text_ = text;
    print(text);
  }
  /// What is shown goes on: "sft, batch 1: trying configurations, 120 passes predicted".
  void go_on(const std::string& how_far) { print(text_ + ", " + how_far); }
  /// Before anything else is printed.
  void clear() {
    if (wanted_ && on_terminal_) write_over("");
  }

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::seconds kBetweenLines{20};  // of a log

  void print(const std::string& text) {
    if (!wanted_) return;
    if (on_terminal_) return write_over(text);
    if (Clock::now() - printed_ < kBetweenLines) return;
    printed_ = Clock::now();
    fmt::print(stderr, "{}\n", printable(text, kPrintedCell));
  }

  static void write_over(const std::string& text) {
    fmt::print(stderr, "\r\x1b[2K{}", printable(text, std::min(kPrintedCell, columns() - 1)));
    std::fflush(stderr);
  }

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

  bool wanted_, on_terminal_;
  std::string text_;
  Clock::time_point printed_ = Clock::now();
};

}  // namespace streambp::bench
