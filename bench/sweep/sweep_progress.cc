#include "bench/sweep/sweep_progress.h"

#include <algorithm>
#include <cmath>
#include <fmt/ranges.h>
#include <vector>

#include "streambp/runtime/bytes.h"

namespace streambp::bench {
namespace {

std::string duration_text(double seconds) {
  if (seconds < 90.0) return fmt::format("{:.0f} s", std::max(1.0, seconds));
  if (seconds < 90.0 * 60.0) return fmt::format("{:.0f} min", seconds / 60.0);
  return fmt::format("{:.1f} h", seconds / 3600.0);
}

}  // namespace

double pass_weight(int64_t seq_len, int64_t batch) {
  constexpr double kAttentionIsHalf = 16384.0;  // tokens at which attention takes about what the rest does
  const auto length = static_cast<double>(seq_len);
  return static_cast<double>(batch) * length * (1.0 + length / kAttentionIsHalf);
}

void SweepProgress::show(const std::string& what) {
  const std::string rest = summary();
  line_.show(rest.empty() ? what : what + " | " + rest);
}

void SweepProgress::ran(double weight, std::chrono::steady_clock::time_point begin, int64_t peak_bytes) {
  done_ += weight;
  seconds_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  peak_bytes_ = std::max(peak_bytes_, peak_bytes);
}

std::string SweepProgress::summary() const {
  std::vector<std::string> parts;
  if (done_ > 0.0 && total_ > 0.0) {
    const double left = std::max(0.0, total_ - done_);
    parts.push_back(fmt::format("{:.0f} % done", std::floor(100.0 * std::min(1.0, done_ / total_))));
    parts.push_back(
        fmt::format("{}{} left", at_most_ ? "at most " : "", duration_text(left * seconds_ / done_)));
  }
  if (peak_bytes_ > 0) parts.push_back(fmt::format("peak {} so far", format_bytes(peak_bytes_)));
  return fmt::format("{}", fmt::join(parts, ", "));
}

}  // namespace streambp::bench
