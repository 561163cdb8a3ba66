// Memory over time (sweep --timeline) of two runs, for a report of what differs.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace streambp::bench {

/// A file of write_timeline (streambp/memory/timeline.h).
struct Timeline {
  std::string file;                          // absolute
  std::map<std::string, std::string> about;  // model, method, seq_len, ...
  std::vector<double> time, total;           // from 0 to 1 of the pass; bytes alive
  std::string phase_at_peak;                 // the spans that are open then: "layer 3 backward/chunk 1"
  std::map<std::string, double> at_peak;     // bytes by purpose

  /// What two runs have to have in common to be laid over one another.
  std::string key() const;
};

/// Of a CSV's text, thinned to the lowest and highest total of at most `most` stretches; nothing where it is
/// no timeline.
std::optional<Timeline> read_timeline(std::string_view text, const std::string& file, size_t most = 300);

}  // namespace streambp::bench
