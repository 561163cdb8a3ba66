// Memory over time: every allocation and every free between two moments, and what the program was doing.
//
// Off unless somebody asks: a Span then costs one relaxed load, an allocation the comparison of a pointer. An
// entry takes 24 bytes; they are the process's own and no meter counts them.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include <c10/core/Device.h>

namespace streambp {

/// What a Recorder has seen.
struct Recording {
  /// kOther...: spans of another thread than the one that has made the recorder (communication, for one).
  enum class Kind : uint8_t {
    kAllocated,
    kFreed,
    kRefused,
    kSpanBegin,
    kSpanEnd,
    kOtherSpanBegin,
    kOtherSpanEnd
  };

  static bool is_span(Kind kind) { return kind >= Kind::kSpanBegin; }

  struct Entry {
    uint64_t address;    // of the block; of a refusal: the bytes that were left
    int64_t bytes;       // of the block; of a span: its number, below 0 for none
    uint64_t time : 48;  // nanoseconds since the start, or this entry's number, from 1
    uint64_t name : 8;   // the scope's number, or the span's
    Kind kind : 8;
  };

  struct Block {
    uint64_t address;
    int64_t bytes;
    int scope;
  };

  c10::DeviceType device = c10::DeviceType::CPU;
  bool timed = true;                // on the meta device nothing takes time: times are numbers of entries
  std::vector<std::string> scopes;  // names by number
  std::vector<std::string> spans;   // names by number, {} where a span's own number goes
  std::vector<Block> at_start;      // alive before the first entry, oldest first
  std::deque<Entry> entries;        // a span's end follows the ends of all spans of its thread inside it

  /// The name of a span, such as "layer 12 backward".
  std::string span_text(const Entry& entry) const;
  /// Microseconds since the start, or the entry's number where nothing is timed: the time of traces.
  double trace_time(const Entry& entry) const {
    return (timed ? 1e-3 : 1.0) * static_cast<double>(entry.time);
  }
};
static_assert(sizeof(Recording::Entry) == 24);

/// Records the blocks of the CPU, a GPU or the meta device, and spans, from its construction to stop().
///
/// Addresses are the recording's own, first fit from kFirstAddress on: blocks alive together never overlap,
/// and the same run gives the same recording.
class Recorder {
 public:
  static constexpr uint64_t kFirstAddress = uint64_t{1} << 28;

  /// Throws InputError for another device, std::logic_error while another recorder is at work.
  explicit Recorder(c10::DeviceType device);
  ~Recorder();
  Recorder(const Recorder&) = delete;
  Recorder& operator=(const Recorder&) = delete;

  /// Ends the recording and hands it over. Spans that are still open end here.
  Recording stop();

  class Work;  // what listens, in recorder.cc

 private:
  void detach();

  std::unique_ptr<Work> work_;
};

/// Names what the program does while it lives; spans are nested. Opened by the thread that has made the
/// recorder, and by one other at a time.
class Span {
 public:
  /// `name` may hold one {}, where `number` goes: Span("layer {} backward", 12).
  explicit Span(const char* name, int64_t number = -1);
  ~Span();
  Span(const Span&) = delete;
  Span& operator=(const Span&) = delete;

 private:
  uint64_t recording_;  // the recorder's serial number, 0 for none
};

}  // namespace streambp
