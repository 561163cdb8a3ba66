#include "streambp/memory/trace.h"

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>

#include "streambp/error.h"

namespace streambp {
namespace {

using Kind = Recording::Kind;

std::string quoted(const std::string& text) {
  return nlohmann::json(text).dump(-1, ' ', /*ensure_ascii=*/false, nlohmann::json::error_handler_t::replace);
}

constexpr int kPassThread = 1, kOtherThread = 2;

/// Writes the events one by one; all belong to one process.
class Events {
 public:
  Events(std::ostream& out, const Recording& recording)
      : out_(out), recording_(recording), scopes_(scopes_in_use(recording)) {
    for (const std::string& scope : recording.scopes) scope_keys_.push_back(quoted(scope));
  }

  /// `rest` follows the members that every event has.
  void add(char phase, double time, const std::string& name, const std::string& rest = {},
           int thread = kPassThread) {
    out_ << separator_
         << fmt::format(R"({{"ph":"{}","ts":{:.3f},"pid":1,"tid":{},"name":{}{}}})", phase, time, thread,
                        quoted(name), rest);
    separator_ = ",\n";
  }

  void counters(double time, const Replay& replay) {
    add('C', time, "memory", fmt::format(R"(,"args":{{"bytes":{}}})", replay.live()));
    std::string args;
    for (const size_t scope : scopes_) {
      fmt::format_to(std::back_inserter(args), "{}{}:{}", args.empty() ? "" : ",", scope_keys_[scope],
                     replay.by_scope()[scope]);
    }
    add('C', time, "memory by scope", fmt::format(R"(,"args":{{{}}})", args));
  }

  void instant(double time, const std::string& name, int64_t bytes) {
    add('i', time, name, fmt::format(R"(,"s":"p","args":{{"bytes":{}}})", bytes));
  }

  /// What happened at the entry that the replay has just taken in.
  void happened(double time, const Replay& replay) {
    const Recording::Entry& entry = replay.entry();
    if (entry.kind == Kind::kSpanBegin) add('B', time, recording_.span_text(entry));
    if (entry.kind == Kind::kSpanEnd) add('E', time, recording_.span_text(entry));
    if (entry.kind == Kind::kOtherSpanBegin) add('B', time, recording_.span_text(entry), {}, kOtherThread);
    if (entry.kind == Kind::kOtherSpanEnd) add('E', time, recording_.span_text(entry), {}, kOtherThread);
    if (entry.kind == Kind::kRefused) instant(time, "out of memory", entry.bytes);
  }

 private:
  std::ostream& out_;
  const Recording& recording_;
  std::vector<size_t> scopes_;
  std::vector<std::string> scope_keys_;  // quoted
  const char* separator_ = "";
};

}  // namespace

void write_trace(std::ostream& out, const Recording& recording, const RunDescription& about, size_t most) {
  out << "{\"displayTimeUnit\":\"ms\",\n\"otherData\":{\"clock\":"
      << quoted(recording.timed ? "microseconds since the start" : "number of the event: nothing is timed");
  for (const auto& [name, value] : about) out << ',' << quoted(name) << ':' << quoted(value);
  out << "},\n\"traceEvents\":[\n";
  Events events(out, recording);
  const auto name_it = [&events](const char* what, const char* name, int thread = kPassThread) {
    events.add('M', 0.0, what, fmt::format(R"(,"args":{{"name":"{}"}})", name), thread);
  };
  name_it("process_name", recording.timed ? "streambp, measured" : "streambp, predicted");
  name_it("thread_name", "pass");
  const bool has_others = std::any_of(recording.entries.begin(), recording.entries.end(),
                                      [](const auto& entry) { return entry.kind == Kind::kOtherSpanBegin; });
  if (has_others) name_it("thread_name", "communication", kOtherThread);

  const std::vector<size_t> indices = sampled_indices(recording, most);
  auto sampled = indices.begin();
  const int64_t peak = peak_bytes(recording);
  bool peak_seen = false;
  Replay replay(recording);
  do {
    const double time = replay.trace_time();
    if (replay.index() > 0) events.happened(time, replay);
    if (sampled != indices.end() && *sampled == replay.index()) {
      events.counters(time, replay);
      ++sampled;
    }
    if (!peak_seen && replay.live() == peak) {
      events.instant(time, "peak", peak);
      peak_seen = true;
    }
  } while (replay.next());
  out << "\n]}\n";
}

}  // namespace streambp
