#include "bench/ranks/ranks_overlap.h"

#include <algorithm>
#include <string>
#include <vector>

namespace streambp::bench {
namespace {

struct Seconds {
  double all = 0.0, last = 0.0;
};

/// Of the spans between `begin` and `end` whose name starts with one of `names`, all of them and the last
/// one; of nested ones, the outer's.
Seconds seconds_in(const Recording& recording, Recording::Kind begin, Recording::Kind end,
                   const std::vector<std::string>& names) {
  Seconds seconds;
  double since = 0.0;
  std::vector<bool> open;  // whether each open span is counted
  int counted = 0;
  for (const Recording::Entry& entry : recording.entries) {
    if (entry.kind == begin) {
      const std::string text = recording.span_text(entry);
      open.push_back(std::any_of(names.begin(), names.end(),
                                 [&](const std::string& name) { return text.rfind(name, 0) == 0; }));
      if (open.back() && counted++ == 0) since = recording.trace_time(entry);
    } else if (entry.kind == end && !open.empty()) {
      if (open.back() && --counted == 0) {
        seconds.last = 1e-6 * (recording.trace_time(entry) - since);
        seconds.all += seconds.last;
      }
      open.pop_back();
    }
  }
  return seconds;
}

std::optional<double> share_hidden(double seconds, double waited) {
  if (!(seconds > 0.0)) return std::nullopt;
  return std::clamp(1.0 - waited / seconds, 0.0, 1.0);
}

}  // namespace

std::optional<double> Communication::hidden() const {
  return share_hidden(seconds, waited);
}

std::optional<double> Communication::hidden_before_last() const {
  return share_hidden(seconds - last, waited - last);
}

Communication communication_in(const Recording& recording) {
  using Kind = Recording::Kind;
  const std::vector<std::string> messages{"sums over ranks", "weights of layer"};
  // Messages that the pass's thread makes are waited for.
  const double own = seconds_in(recording, Kind::kSpanBegin, Kind::kSpanEnd, messages).all;
  const auto of_thread = [&](const std::vector<std::string>& names) {
    return seconds_in(recording, Kind::kOtherSpanBegin, Kind::kOtherSpanEnd, names);
  };
  const Seconds waited = seconds_in(recording, Kind::kSpanBegin, Kind::kSpanEnd,
                                    {"waiting for sums over ranks", "waiting for the weights of layer"});
  return {.seconds = own + of_thread(messages).all,
          .waited = own + waited.all,
          .last = of_thread({"sums over ranks"}).last};
}

}  // namespace streambp::bench
