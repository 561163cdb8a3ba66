// How much of what ranks say to each other goes on behind their layers' work.
#pragma once

#include <optional>

#include "streambp/memory/recorder.h"

namespace streambp::bench {

/// Of a pass's sums over ranks and gathered weights. What is said takes its time from when a thread begins
/// with it, other ranks' lateness included.
struct Communication {
  double seconds = 0.0;  // of all messages
  double waited = 0.0;   // in which the pass's own thread did nothing else
  double last = 0.0;     // of the last sums, behind which a pass has nothing left to do

  /// The share that went on behind the pass's work; nothing where nothing was said.
  std::optional<double> hidden() const;

  /// The same of all messages but the last sums.
  std::optional<double> hidden_before_last() const;
};

/// What a rank has recorded (the spans of ReducedGradients and ShardedWeights).
Communication communication_in(const Recording& recording);

}  // namespace streambp::bench
