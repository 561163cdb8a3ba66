// A recording played back: live bytes by scope after every entry, and the table of them that pictures are
// drawn from.
#pragma once

#include <cstddef>
#include <cstdint>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "streambp/memory/recorder.h"

namespace streambp {

/// What a file says about the run: names and values, in the order given.
using RunDescription = std::vector<std::pair<std::string, std::string>>;

/// Walks through a recording, which must outlive it:
///     Replay replay(recording);
///     do { ... replay.live() ... } while (replay.next());
class Replay {
 public:
  /// Before the first entry.
  explicit Replay(const Recording& recording);

  /// Takes in one entry more; false where there is none.
  bool next();

  /// How many entries have been taken in.
  size_t index() const { return index_; }
  /// The last one taken in; there must be one.
  const Recording::Entry& entry() const { return recording_.entries[index_ - 1]; }
  /// The entry's trace_time; 0 before the first.
  double trace_time() const { return index_ == 0 ? 0.0 : recording_.trace_time(entry()); }

  int64_t live() const { return live_; }
  /// Bytes by the scope's number, summing to live().
  const std::vector<int64_t>& by_scope() const { return by_scope_; }
  /// Spans that are open, the outermost first.
  const std::vector<std::string>& spans() const { return spans_; }

 private:
  void count(int64_t bytes, size_t scope) {
    live_ += bytes;
    by_scope_[scope] += bytes;
  }

  const Recording& recording_;
  size_t index_ = 0;
  int64_t live_ = 0;
  std::vector<int64_t> by_scope_;
  std::vector<std::string> spans_;
};

/// The most bytes that were alive at once.
int64_t peak_bytes(const Recording& recording);

/// At most `most` events of a recording (2 or more), ascending, that draw the same picture as all of them: of
/// equally long runs of entries the lowest and the highest total. The peak is always among them.
std::vector<size_t> sampled_indices(const Recording& recording, size_t most);

/// The scopes under which any byte was ever alive, by number.
std::vector<size_t> scopes_in_use(const Recording& recording);

/// CSV for scripts/plot.py: lines "# name: value" with `about`, a header, and a row for each of
/// sampled_indices(recording, most): event (index), seconds (empty where nothing is timed), spans ("layer 3
/// backward/chunk 1"), then bytes by scope.
void write_timeline(std::ostream& out, const Recording& recording, const RunDescription& about,
                    size_t most = 20000);

}  // namespace streambp
