#include "bench/ranks_overlap.h"

#include <algorithm>
#include <string>
#include <vector>

namespace streambp::bench {
namespace {

/// The seconds of spans between `begin` and `end` whose name starts with one of `names`; of nested ones, the
/// outer's.
double seconds_in(const Recording& recording, Recording::Kind begin, Recording::Kind end,
                  const std::vector<std::string>& names) {
  double microseconds = 0.0, since = 0.0;
  std::vector<bool> open;  // whether each open span is counted
  int counted = 0;
  for (const Recording::Entry& entry : recording.entries) {
    if (entry.kind == begin) {
      const std::string text = recording.span_text(entry);
      open.push_back(std::any_of(names.begin(), names.end(),
                                 [&](const std::string& name) { return text.rfind(name, 0) == 0; }));
      if (open.back() && counted++ == 0) since = recording.trace_time(entry);
    } else if (entry.kind == end && !open.empty()) {
      if (open.back() && --counted == 0) microseconds += recording.trace_time(entry) - since;
      open.pop_back();
    }
  }
  return 1e-6 * microseconds;
}

}  // namespace

std::optional<double> Communication::hidden() const {
  if (!(seconds > 0.0)) return std::nullopt;
  return std::max(0.0, 1.0 - waited / seconds);
}

Communication communication_in(const Recording& recording) {
  using Kind = Recording::Kind;
  const std::vector<std::string> messages{"sums over ranks", "weights of layer"};
  // Messages that the pass's thread makes are waited for.
  const double own = seconds_in(recording, Kind::kSpanBegin, Kind::kSpanEnd, messages);
  return {.seconds = own + seconds_in(recording, Kind::kOtherSpanBegin, Kind::kOtherSpanEnd, messages),
          .waited = own + seconds_in(recording, Kind::kSpanBegin, Kind::kSpanEnd,
                                     {"waiting for sums over ranks", "waiting for the weights of layer"})};
}

}  // namespace streambp::bench
