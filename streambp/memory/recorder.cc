#include "streambp/memory/recorder.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <iterator>
#include <map>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <utility>

#include "streambp/error.h"
#include "streambp/memory/block_listener.h"
#include "streambp/memory/fork_lock.h"

namespace streambp {
namespace {

/// Hands out ranges of addresses that do not overlap: the first gap that is large enough, or the end.
class AddressSpace {
 public:
  uint64_t take(int64_t bytes) {
    const uint64_t size = rounded(bytes);
    for (auto gap = gaps_.begin(); gap != gaps_.end(); ++gap) {
      if (gap->second < size) continue;
      const auto [address, length] = *gap;
      gaps_.erase(gap);
      if (length > size) gaps_[address + size] = length - size;
      return address;
    }
    return std::exchange(end_, end_ + size);
  }

  void give_back(uint64_t address, int64_t bytes) {
    const auto gap = gaps_.emplace(address, rounded(bytes)).first;
    merge_with_next(gap);
    if (gap != gaps_.begin()) merge_with_next(std::prev(gap));
  }

 private:
  using Gaps = std::map<uint64_t, uint64_t>;

  /// Tensors begin on 64 bytes, as the CPU's allocator aligns them.
  static uint64_t rounded(int64_t bytes) { return (static_cast<uint64_t>(bytes) + 63) / 64 * 64; }

  void merge_with_next(Gaps::iterator gap) {
    const auto next = std::next(gap);
    if (next == gaps_.end() || gap->first + gap->second != next->first) return;
    gap->second += next->second;
    gaps_.erase(next);
  }

  Gaps gaps_;  // address to length
  uint64_t end_ = Recorder::kFirstAddress;
};

// The recorder at work. A span knows it by its serial number, which no two recorders share.
ForkLock active_mutex{ForkLock::kRecorder};
Recorder::Work* active = nullptr;
std::atomic<uint64_t> active_serial{0};
uint64_t last_serial = 0;

}  // namespace

class Recorder::Work final : public BlockListener {
 public:
  explicit Work(c10::DeviceType device) {
    recording_.device = device;
    recording_.timed = device != c10::DeviceType::Meta;
  }

  c10::DeviceType device() const { return recording_.device; }

  uint64_t present(int64_t bytes, int scope) noexcept override {
    if (bytes == 0) return 0;
    const std::lock_guard lock(mutex_);
    const uint64_t address = addresses_.take(bytes);
    recording_.at_start.push_back({address, bytes, scope});
    return address;
  }

  uint64_t allocated(int64_t bytes, int scope) noexcept override {
    if (bytes == 0) return 0;
    const std::lock_guard lock(mutex_);
    const uint64_t address = addresses_.take(bytes);
    add(Recording::Kind::kAllocated, address, bytes, scope);
    return address;
  }

  void freed(uint64_t address, int64_t bytes, int scope) noexcept override {
    if (bytes == 0) return;
    const std::lock_guard lock(mutex_);
    addresses_.give_back(address, bytes);
    add(Recording::Kind::kFreed, address, bytes, scope);
  }

  void refused(int64_t bytes, int scope, int64_t left) noexcept override {
    const std::lock_guard lock(mutex_);
    add(Recording::Kind::kRefused, static_cast<uint64_t>(left), bytes, scope);
  }

  void begin(const char* name, int64_t number) {
    const std::lock_guard lock(mutex_);
    Lane& lane = lane_of_thread();
    std::vector<std::string>& names = recording_.spans;
    auto known = std::find(names.begin(), names.end(), name);
    if (known == names.end()) {
      if (names.size() == kMostNames) throw std::logic_error("a recording with too many names of spans");
      known = names.insert(names.end(), name);
    }
    lane.open.push_back({static_cast<int>(known - names.begin()), number});
    add(lane.begin, 0, number, lane.open.back().first);
  }

  void end() {
    const std::lock_guard lock(mutex_);
    end(lane_of_thread());
  }

  Recording finish() {
    for (Lane* lane : {&other_, &own_}) {
      while (!lane->open.empty()) end(*lane);
    }
    int scopes = 0;
    for (const Recording::Block& block : recording_.at_start) scopes = std::max(scopes, block.scope + 1);
    for (const Recording::Entry& entry : recording_.entries) {
      if (!Recording::is_span(entry.kind)) scopes = std::max(scopes, static_cast<int>(entry.name) + 1);
    }
    for (int scope = 0; scope < scopes; ++scope) recording_.scopes.push_back(scope_name(scope));
    return std::move(recording_);
  }

 private:
  static constexpr size_t kMostNames = 256;

  /// The open spans of a thread: name and number.
  struct Lane {
    Recording::Kind begin, end;
    std::vector<std::pair<int, int64_t>> open = {};
  };

  Lane& lane_of_thread() { return std::this_thread::get_id() == thread_ ? own_ : other_; }

  void end(Lane& lane) {
    const auto [name, number] = lane.open.back();
    lane.open.pop_back();
    add(lane.end, 0, number, name);
  }

  void add(Recording::Kind kind, uint64_t address, int64_t bytes, int name) {
    const uint64_t time = recording_.timed
                              ? static_cast<uint64_t>(std::chrono::nanoseconds(Clock::now() - start_).count())
                              : recording_.entries.size() + 1;
    recording_.entries.push_back({address, bytes, time, static_cast<uint64_t>(name), kind});
  }

  using Clock = std::chrono::steady_clock;
  const Clock::time_point start_ = Clock::now();
  ForkLock mutex_{ForkLock::kListener};
  Recording recording_;
  AddressSpace addresses_;
  const std::thread::id thread_ = std::this_thread::get_id();
  Lane own_{Recording::Kind::kSpanBegin, Recording::Kind::kSpanEnd};
  Lane other_{Recording::Kind::kOtherSpanBegin, Recording::Kind::kOtherSpanEnd};
};

std::string Recording::span_text(const Entry& entry) const {
  const std::string& name = spans[entry.name];
  return entry.bytes < 0 ? name : fmt::format(fmt::runtime(name), entry.bytes);
}

Recorder::Recorder(c10::DeviceType device) : work_(std::make_unique<Work>(device)) {
  const std::lock_guard lock(active_mutex);
  if (active != nullptr) throw std::logic_error("another recorder is at work");
  listen(device, work_.get());
  active = work_.get();
  active_serial.store(++last_serial, std::memory_order_relaxed);
}

Recorder::~Recorder() {
  if (work_ != nullptr) detach();
}

void Recorder::detach() {
  const std::lock_guard lock(active_mutex);
  active = nullptr;
  active_serial.store(0, std::memory_order_relaxed);
  listen(work_->device(), nullptr);
}

Recording Recorder::stop() {
  if (work_ == nullptr) throw std::logic_error("this recorder has been stopped");
  detach();
  Recording recording = work_->finish();
  work_.reset();
  return recording;
}

Span::Span(const char* name, int64_t number) : recording_(active_serial.load(std::memory_order_relaxed)) {
  if (recording_ == 0) return;
  const std::lock_guard lock(active_mutex);
  if (recording_ == active_serial) {
    active->begin(name, number);
  } else {
    recording_ = 0;
  }
}

Span::~Span() {
  if (recording_ == 0) return;
  const std::lock_guard lock(active_mutex);
  if (recording_ == active_serial) active->end();
}

}  // namespace streambp
