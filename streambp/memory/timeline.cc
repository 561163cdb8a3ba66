#include "streambp/memory/timeline.h"

#include <algorithm>
#include <fmt/format.h>
#include <iterator>

namespace streambp {
namespace {

/// A field of a CSV line.
std::string field(const std::string& text) {
  if (text.find_first_of(",\"\n\r") == std::string::npos) return text;
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"') quoted += c;
    quoted += c;
  }
  return quoted + '"';
}

std::string one_line(std::string text) {
  std::replace_if(
      text.begin(), text.end(), [](char c) { return c == '\n' || c == '\r'; }, ' ');
  return text;
}

}  // namespace

Replay::Replay(const Recording& recording) : recording_(recording), by_scope_(recording.scopes.size()) {
  for (const Recording::Block& block : recording.at_start) {
    count(block.bytes, static_cast<size_t>(block.scope));
  }
}

bool Replay::next() {
  if (index_ == recording_.entries.size()) return false;
  const Recording::Entry& entry = recording_.entries[index_++];
  switch (entry.kind) {
    case Recording::Kind::kAllocated:
      count(entry.bytes, entry.name);
      break;
    case Recording::Kind::kFreed:
      count(-entry.bytes, entry.name);
      break;
    case Recording::Kind::kRefused:
      break;
    case Recording::Kind::kSpanBegin:
      spans_.push_back(recording_.span_text(entry));
      break;
    case Recording::Kind::kSpanEnd:
      spans_.pop_back();
      break;
    case Recording::Kind::kOtherSpanBegin:
    case Recording::Kind::kOtherSpanEnd:
      break;
  }
  return true;
}

int64_t peak_bytes(const Recording& recording) {
  Replay replay(recording);
  int64_t peak = replay.live();
  while (replay.next()) peak = std::max(peak, replay.live());
  return peak;
}

std::vector<size_t> sampled_indices(const Recording& recording, size_t most) {
  const size_t indices = recording.entries.size() + 1;
  const size_t runs = std::max<size_t>(most / 2, 1);
  const size_t length = std::max<size_t>((indices + runs - 1) / runs, 2);
  std::vector<size_t> sampled;
  Replay replay(recording);
  struct Extreme {
    size_t index;
    int64_t live;
  };
  Extreme lowest{0, replay.live()}, highest = lowest;
  const auto close_run = [&] {
    sampled.push_back(std::min(lowest.index, highest.index));
    if (lowest.index != highest.index) sampled.push_back(std::max(lowest.index, highest.index));
  };
  while (replay.next()) {
    const Extreme here{replay.index(), replay.live()};
    if (here.index % length == 0) {
      close_run();
      lowest = highest = here;
    } else if (here.live < lowest.live) {
      lowest = here;
    } else if (here.live >= highest.live) {
      highest = here;
    }
  }
  close_run();
  return sampled;
}

std::vector<size_t> scopes_in_use(const Recording& recording) {
  std::vector<bool> used(recording.scopes.size());
  for (const Recording::Block& block : recording.at_start) used[static_cast<size_t>(block.scope)] = true;
  for (const Recording::Entry& entry : recording.entries) {
    if (entry.kind == Recording::Kind::kAllocated) used[entry.name] = true;
  }
  std::vector<size_t> scopes;
  for (size_t scope = 0; scope < used.size(); ++scope) {
    if (used[scope]) scopes.push_back(scope);
  }
  return scopes;
}

void write_timeline(std::ostream& out, const Recording& recording, const RunDescription& about, size_t most) {
  for (const auto& [name, value] : about) out << "# " << one_line(name) << ": " << one_line(value) << '\n';
  const std::vector<size_t> scopes = scopes_in_use(recording);
  std::string line = "event,seconds,spans";
  for (const size_t scope : scopes) line += ',' + field(recording.scopes[scope]);
  out << line << '\n';
  Replay replay(recording);
  for (const size_t index : sampled_indices(recording, most)) {
    while (replay.index() < index) replay.next();
    line.clear();
    fmt::format_to(std::back_inserter(line), "{},", index);
    if (recording.timed) fmt::format_to(std::back_inserter(line), "{:.9f}", 1e-6 * replay.trace_time());
    line += ',';
    line += field(fmt::format("{}", fmt::join(replay.spans(), "/")));
    for (const size_t scope : scopes)
      fmt::format_to(std::back_inserter(line), ",{}", replay.by_scope()[scope]);
    out << line << '\n';
  }
}

}  // namespace streambp
