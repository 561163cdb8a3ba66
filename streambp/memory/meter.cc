#include "streambp/memory/meter.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <fstream>
#include <limits>
#include <mutex>
#include <string_view>

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/CachingDeviceAllocator.h>

#include "streambp/error.h"

namespace streambp {
namespace {

constexpr int kMaxScopes = 64;
constexpr std::string_view kUnnamed = "other";

/// Scope names, each with a number. Scopes are opened in one thread at a time, numbers are read from any.
class ScopeNames {
 public:
  int number(std::string_view name) {
    const std::lock_guard lock(mutex_);
    const auto found = std::find(names_.begin(), names_.begin() + count_, name);
    if (found != names_.begin() + count_) return static_cast<int>(found - names_.begin());
    if (count_ == kMaxScopes) return 0;
    names_[count_] = name;
    return count_++;
  }

  std::string name(int number) {
    const std::lock_guard lock(mutex_);
    return names_[number];
  }

 private:
  std::mutex mutex_;
  std::array<std::string, kMaxScopes> names_{std::string(kUnnamed)};
  int count_ = 1;
};

ScopeNames& scope_names() {
  static ScopeNames names;
  return names;
}

std::atomic<int> current_scope{0};

/// Live bytes of one device by scope, and a copy of them taken whenever the total reaches a new peak.
class Ledger {
 public:
  explicit Ledger(const char* device) : device_(device) {}

  /// Enters `bytes` under the innermost scope and returns that scope's number. Throws OutOfMemory beyond the
  /// limit.
  int add(int64_t bytes) {
    const std::lock_guard lock(mutex_);
    const int scope = current_scope.load(std::memory_order_relaxed);
    // A product that wrapped around arrives here as a negative or absurd size.
    if (bytes < 0 || (limit_ > 0 && bytes > limit_ - live_)) {
      throw OutOfMemory(fmt::format("out of memory on {}: {} bytes for '{}' asked, {} alive, limit {}",
                                    device_, bytes, scope_names().name(scope), live_, limit_));
    }
    live_ += bytes;
    by_scope_[scope] += bytes;
    if (live_ > peak_) mark_peak();
    return scope;
  }

  void remove(int64_t bytes, int scope) noexcept {
    const std::lock_guard lock(mutex_);
    live_ -= bytes;
    by_scope_[scope] -= bytes;
  }

  void reset_peak() {
    const std::lock_guard lock(mutex_);
    mark_peak();
  }

  MemoryReading read() {
    const std::lock_guard lock(mutex_);
    MemoryReading reading{live_, peak_, {}};
    for (int scope = 0; scope < kMaxScopes; ++scope) {
      if (at_peak_[scope] != 0) reading.at_peak[scope_names().name(scope)] = at_peak_[scope];
    }
    return reading;
  }

  void set_limit(int64_t bytes) {
    const std::lock_guard lock(mutex_);
    limit_ = bytes;
  }

  int64_t limit() {
    const std::lock_guard lock(mutex_);
    return limit_;
  }

 private:
  void mark_peak() {
    peak_ = live_;
    at_peak_ = by_scope_;
  }

  const char* device_;
  std::mutex mutex_;
  int64_t live_ = 0;
  int64_t peak_ = 0;
  int64_t limit_ = 0;
  std::array<int64_t, kMaxScopes> by_scope_{};
  std::array<int64_t, kMaxScopes> at_peak_{};
};

// Ledgers outlive every tensor, those of static storage included: they are never destroyed.
Ledger& cpu_ledger() {
  static Ledger& ledger = *new Ledger("cpu");
  return ledger;
}

Ledger& meta_ledger() {
  static Ledger& ledger = *new Ledger("meta");
  return ledger;
}

Ledger& ledger_of(c10::DeviceType device) {
  if (device == c10::DeviceType::CPU) return cpu_ledger();
  if (device == c10::DeviceType::Meta) return meta_ledger();
  throw InputError("no memory ledger is kept for device {}", c10::DeviceTypeName(device));
}

/// What an allocation has to remember until it is freed. Lies in front of the data on the CPU, alone on the
/// meta device.
struct Header {
  int64_t bytes;
  int scope;
};

constexpr size_t kAlignment = 64;
static_assert(sizeof(Header) <= kAlignment);

class CountingCpuAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    const c10::Device device(c10::DeviceType::CPU);
    if (bytes == 0) return {nullptr, nullptr, &free_data, device};
    if (bytes > static_cast<size_t>(std::numeric_limits<int64_t>::max()))
      throw OutOfMemory("out of memory on cpu: size overflow");
    const int scope = cpu_ledger().add(static_cast<int64_t>(bytes));
    void* block = std::aligned_alloc(kAlignment, (bytes + 2 * kAlignment - 1) / kAlignment * kAlignment);
    if (block == nullptr) {
      cpu_ledger().remove(static_cast<int64_t>(bytes), scope);
      throw OutOfMemory(fmt::format("out of memory on cpu: the system refused {} bytes", bytes));
    }
    new (block) Header{static_cast<int64_t>(bytes), scope};
    void* data = static_cast<char*>(block) + kAlignment;
    return {data, data, &free_data, device};
  }

  c10::DeleterFnPtr raw_deleter() const override { return &free_data; }
  void copy_data(void* to, const void* from, size_t count) const override { std::memcpy(to, from, count); }

 private:
  static void free_data(void* data) {
    if (data == nullptr) return;
    void* block = static_cast<char*>(data) - kAlignment;
    const Header header = *static_cast<Header*>(block);
    cpu_ledger().remove(header.bytes, header.scope);
    std::free(block);
  }
};

class CountingMetaAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    auto* header = new Header{static_cast<int64_t>(bytes), 0};
    try {
      header->scope = meta_ledger().add(header->bytes);
    } catch (...) {
      delete header;
      throw;
    }
    return {nullptr, header, &free_header, c10::Device(c10::DeviceType::Meta)};
  }

  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void*, const void*, size_t) const override {}

 private:
  static void free_header(void* context) {
    auto* header = static_cast<Header*>(context);
    meta_ledger().remove(header->bytes, header->scope);
    delete header;
  }
};

int64_t read_number(const char* path) {
  std::ifstream file(path);
  int64_t value = -1;
  return file >> value ? value : -1;
}

}  // namespace

MemoryScope::MemoryScope(const char* name) : outer_(current_scope.exchange(scope_names().number(name))) {}

MemoryScope::~MemoryScope() {
  current_scope.store(outer_);
}

void install_meters() {
  static CountingCpuAllocator& cpu = *new CountingCpuAllocator;
  static CountingMetaAllocator& meta = *new CountingMetaAllocator;
  constexpr uint8_t kHighestPriority = 255;
  c10::SetCPUAllocator(&cpu, kHighestPriority);
  c10::SetAllocator(c10::DeviceType::Meta, &meta, kHighestPriority);
}

void reset_peak(c10::Device device) {
  if (device.is_cuda()) {
    c10::getDeviceAllocator(device.type())->resetPeakStats(device.index());
  } else {
    ledger_of(device.type()).reset_peak();
  }
}

MemoryReading read_meter(c10::Device device) {
  if (!device.is_cuda()) return ledger_of(device.type()).read();
  const auto stats = c10::getDeviceAllocator(device.type())->getDeviceStats(device.index());
  const auto& allocated =
      stats.allocated_bytes[static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE)];
  return {allocated.current, allocated.peak, {{std::string(kUnnamed), allocated.peak}}};
}

void set_memory_limit(c10::DeviceType device, int64_t bytes) {
  ledger_of(device).set_limit(bytes);
}

int64_t memory_limit(c10::DeviceType device) {
  return ledger_of(device).limit();
}

int64_t available_memory() {
  int64_t available = std::numeric_limits<int64_t>::max();
  std::ifstream meminfo("/proc/meminfo");
  for (std::string key, unit; meminfo >> key;) {
    int64_t kibibytes = 0;
    if (!(meminfo >> kibibytes)) break;
    std::getline(meminfo, unit);
    if (key == "MemAvailable:") available = kibibytes * 1024;
  }
  const int64_t group_limit =
      read_number("/sys/fs/cgroup/memory.max");  // "max" where there is none: not a number
  const int64_t group_use = read_number("/sys/fs/cgroup/memory.current");
  if (group_limit > 0 && group_use >= 0) available = std::min(available, group_limit - group_use);
  return available;
}

}  // namespace streambp
