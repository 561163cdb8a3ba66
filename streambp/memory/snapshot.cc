#include "streambp/memory/snapshot.h"

#include <algorithm>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "streambp/memory/timeline.h"

namespace streambp {
namespace {

using Kind = Recording::Kind;

const std::string kAlreadyAlive = "alive before the recording";

/// A number under which the pickle's reader keeps a value.
using Memo = uint32_t;

/// Writes a pickle of protocol 4 (Python's pickletools.py lists its opcodes).
class Pickle {
 public:
  explicit Pickle(std::ostream& out) : out_(out) { bytes_ = "\x80\x04"; }

  void begin_dict() { bytes_ += "}("; }
  void end_dict() { bytes_ += 'u'; }
  void empty_dict() { bytes_ += '}'; }
  void empty_list() { bytes_ += ']'; }
  /// Puts the value just written into the list written before it.
  void append() {
    bytes_ += 'a';
    if (bytes_.size() > kBuffer) flush();
  }
  void boolean(bool value) { bytes_ += (value ? '\x88' : '\x89'); }
  void stop() {
    bytes_ += '.';
    flush();
  }

  void integer(int64_t value) {
    if (value >= 0 && value < 1 << 8) {
      number('K', value, 1);
    } else if (value >= 0 && value < 1 << 16) {
      number('M', value, 2);
    } else if (value >= std::numeric_limits<int32_t>::min() && value <= std::numeric_limits<int32_t>::max()) {
      number('J', value, 4);
    } else {
      bytes_ += '\x8a';  // a long, whose length comes first
      number('\x08', value, 8);
    }
  }

  /// Equal texts are written once.
  void text(std::string_view value) {
    if (const auto known = texts_.find(value); known != texts_.end()) {
      get(known->second);
      return;
    }
    number('X', static_cast<int64_t>(value.size()), 4);
    bytes_ += value;
    texts_.emplace(value, keep());
  }

  /// Makes the reader keep the value just written.
  Memo keep() {
    bytes_ += '\x94';
    return kept_++;
  }

  void get(Memo memo) {
    if (memo < 1 << 8) {
      number('h', memo, 1);
    } else {
      number('j', memo, 4);
    }
  }

  void member(std::string_view name, std::string_view value) {
    text(name);
    text(value);
  }
  void member(std::string_view name, int64_t value) {
    text(name);
    integer(value);
  }

 private:
  void number(char opcode, int64_t value, int bytes) {
    bytes_ += opcode;
    for (int i = 0; i < bytes; ++i) bytes_ += static_cast<char>(value >> (8 * i) & 0xff);
  }

  void flush() {
    out_ << bytes_;
    bytes_.clear();
  }

  static constexpr size_t kBuffer = size_t{1} << 16;
  std::ostream& out_;
  std::string bytes_;  // not yet in `out_`
  std::map<std::string, Memo, std::less<>> texts_;
  Memo kept_ = 0;
};

class SnapshotWriter {
 public:
  SnapshotWriter(std::ostream& out, const Recording& recording)
      : pickle_(out), recording_(recording), frames_(recording.scopes.size()) {}

  void write() {
    pickle_.begin_dict();
    pickle_.text("device_traces");
    pickle_.empty_list();
    pickle_.empty_list();
    write_events();
    pickle_.append();
    pickle_.text("segments");
    pickle_.empty_list();
    if (end_ > Recorder::kFirstAddress) {
      write_segment();
      pickle_.append();
    }
    pickle_.text("allocator_settings");
    pickle_.empty_dict();
    pickle_.text("external_annotations");
    pickle_.empty_list();
    pickle_.end_dict();
    pickle_.stop();
  }

 private:
  struct Live {
    int64_t bytes;
    Memo frames;
  };

  void write_events() {
    spans_.push_back(kAlreadyAlive);
    for (const Recording::Block& block : recording_.at_start) {
      write_block_event("alloc", block.address, block.bytes, static_cast<size_t>(block.scope));
      note_alive(block.address, block.bytes, static_cast<size_t>(block.scope));
    }
    spans_.clear();
    forget_frames();
    for (const Recording::Entry& entry : recording_.entries) {
      time_ = static_cast<int64_t>(recording_.trace_time(entry));
      write_entry(entry);
    }
    open_event("snapshot", 0, 0, "unknown");
    pickle_.text("frames");
    pickle_.empty_list();
    close_item();
  }

  void write_entry(const Recording::Entry& entry) {
    switch (entry.kind) {
      case Kind::kSpanBegin:
        spans_.push_back(recording_.span_text(entry));
        forget_frames();
        break;
      case Kind::kSpanEnd:
        spans_.pop_back();
        forget_frames();
        break;
      case Kind::kOtherSpanBegin:
      case Kind::kOtherSpanEnd:
        break;
      case Kind::kAllocated:
        write_block_event("alloc", entry.address, entry.bytes, entry.name);
        note_alive(entry.address, entry.bytes, entry.name);
        break;
      case Kind::kFreed:
        write_block_event("free_requested", entry.address, entry.bytes, entry.name);
        write_block_event("free_completed", entry.address, entry.bytes, entry.name);
        alive_.erase(entry.address);
        break;
      case Kind::kRefused:
        open_event("oom", 0, entry.bytes, recording_.scopes[entry.name]);
        pickle_.member("device_free", static_cast<int64_t>(entry.address));
        close_event(entry.name);
        break;
    }
  }

  void write_block_event(std::string_view action, uint64_t address, int64_t bytes, size_t scope) {
    open_event(action, address, bytes, recording_.scopes[scope]);
    close_event(scope);
  }

  void open_event(std::string_view action, uint64_t address, int64_t bytes, std::string_view category) {
    pickle_.begin_dict();
    pickle_.member("action", action);
    pickle_.member("addr", static_cast<int64_t>(address));
    pickle_.member("size", bytes);
    pickle_.member("stream", 0);
    pickle_.member("time_us", time_);
    pickle_.member("category", category);
  }

  void close_event(size_t scope) {
    pickle_.text("frames");
    write_frames(scope);
    close_item();
  }

  void close_item() {
    pickle_.end_dict();
    pickle_.append();
  }

  /// The scope and the spans around it. Lists are shared by all events of a scope between two spans.
  void write_frames(size_t scope) {
    if (frames_[scope]) return pickle_.get(*frames_[scope]);
    pickle_.empty_list();
    const Memo list = pickle_.keep();
    write_frame(recording_.scopes[scope]);
    for (auto span = spans_.rbegin(); span != spans_.rend(); ++span) write_frame(*span);
    frames_[scope] = list;
  }

  void write_frame(const std::string& name) {
    const auto [known, is_new] = frame_of_.emplace(name, 0);
    if (is_new) {
      pickle_.begin_dict();
      pickle_.member("name", name);
      pickle_.member("filename", "streambp");
      pickle_.member("line", 0);
      pickle_.end_dict();
      known->second = pickle_.keep();
    } else {
      pickle_.get(known->second);
    }
    pickle_.append();
  }

  void forget_frames() { std::fill(frames_.begin(), frames_.end(), std::nullopt); }

  void note_alive(uint64_t address, int64_t bytes, size_t scope) {
    alive_[address] = {bytes, *frames_[scope]};
    end_ = std::max(end_, address + static_cast<uint64_t>(bytes));
  }

  /// The page counts a block's address from the sizes before it: gaps are blocks too.
  void write_segment() {
    int64_t live = 0;
    for (const auto& [address, block] : alive_) live += block.bytes;
    const auto size = static_cast<int64_t>(end_ - Recorder::kFirstAddress);
    pickle_.begin_dict();
    pickle_.member("device", 0);
    pickle_.member("address", static_cast<int64_t>(Recorder::kFirstAddress));
    pickle_.member("total_size", size);
    for (const char* name : {"allocated_size", "active_size", "requested_size"}) pickle_.member(name, live);
    pickle_.member("stream", 0);
    pickle_.member("segment_type", "large");
    pickle_.text("is_expandable");
    pickle_.boolean(false);
    pickle_.text("frames");
    pickle_.empty_list();
    pickle_.text("blocks");
    pickle_.empty_list();
    uint64_t at = Recorder::kFirstAddress;
    for (const auto& [address, block] : alive_) {
      if (address > at) write_gap(at, address);
      write_block(address, block.bytes, "active_allocated");
      pickle_.text("frames");
      pickle_.get(block.frames);
      close_item();
      at = address + static_cast<uint64_t>(block.bytes);
    }
    if (end_ > at) write_gap(at, end_);
    pickle_.end_dict();
  }

  void write_gap(uint64_t begin, uint64_t end) {
    write_block(begin, static_cast<int64_t>(end - begin), "inactive");
    pickle_.text("frames");
    pickle_.empty_list();
    close_item();
  }

  void write_block(uint64_t address, int64_t bytes, std::string_view state) {
    pickle_.begin_dict();
    pickle_.member("address", static_cast<int64_t>(address));
    pickle_.member("size", bytes);
    pickle_.member("requested_size", bytes);
    pickle_.member("state", state);
  }

  Pickle pickle_;
  const Recording& recording_;
  std::vector<std::string> spans_;           // open ones
  std::vector<std::optional<Memo>> frames_;  // by scope, between these spans
  std::map<std::string, Memo> frame_of_;
  std::map<uint64_t, Live> alive_;
  uint64_t end_ = Recorder::kFirstAddress;
  int64_t time_ = 0;
};

}  // namespace

void write_snapshot(std::ostream& out, const Recording& recording) {
  SnapshotWriter(out, recording).write();
}

}  // namespace streambp
