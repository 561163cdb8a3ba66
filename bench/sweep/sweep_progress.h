// How far a sweep is: what runs, how much is done, about how long the rest takes, and the peak so far.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "bench/sweep/progress.h"

namespace streambp::bench {

/// About how much longer one pass takes than that of one token: attention's share grows with the length.
double pass_weight(int64_t seq_len, int64_t batch);

class SweepProgress {
 public:
  /// `at_most` where fewer passes than expected may do. Nothing is shown where stderr is no terminal.
  SweepProgress(bool wanted, bool at_most) : line_(wanted), at_most_(at_most) {}

  /// What goes on now: "[2/9] length 512, ...".
  void show(const std::string& what);
  /// Before anything else is printed.
  void clear() { line_.clear(); }

  /// Passes of this weight are to be run.
  void expect(double weight) { total_ += weight; }
  /// A pass of this weight was run, from `begin` on.
  void ran(double weight, std::chrono::steady_clock::time_point begin, int64_t peak_bytes);
  /// Passes of this weight need not be run.
  void skip(double weight) { total_ -= weight; }

  /// "42 % done, 3 min left, peak 1.62 GB so far"; without what is not known yet.
  std::string summary() const;

 private:
  ProgressLine line_;
  bool at_most_;
  double total_ = 0.0;
  double done_ = 0.0, seconds_ = 0.0;  // of the passes that ran
  int64_t peak_bytes_ = 0;
};

}  // namespace streambp::bench
