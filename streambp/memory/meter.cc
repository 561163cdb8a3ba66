#include "streambp/memory/meter.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <limits>
#include <mutex>
#include <string_view>
#include <unordered_map>
#include <utility>

#include <c10/core/Allocator.h>

#include "streambp/error.h"
#include "streambp/memory/block_listener.h"
#include "streambp/memory/counted.h"
#include "streambp/memory/fork_lock.h"
#include "streambp/memory/host_blocks.h"
#include "streambp/memory/remembered_scope.h"
#include "streambp/memory/shortage.h"
#include "streambp/runtime/torch_private.h"

namespace streambp {
namespace {

constexpr int kMaxScopes = 64;
constexpr int64_t kMostCounted = int64_t{1} << 62;  // bytes of a device
constexpr std::string_view kUnnamed = "other";

/// Scope names, each with a number.
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
  ForkLock mutex_{ForkLock::kNames};
  std::array<std::string, kMaxScopes> names_{std::string(kUnnamed)};
  int count_ = 1;
};

ScopeNames& scope_names() {
  static ScopeNames& names = *new ScopeNames;  // outlives every tensor
  return names;
}

/// A thread that has opened no scope works for one that has: autograd's for the one that waits for them. It
/// takes the scope that was opened or closed last in the process.
constexpr int kNoScope = -1;
thread_local int scope_of_thread = kNoScope;
std::atomic<int> latest_scope{0};
thread_local bool on_host = false;

int current_scope() {
  return scope_of_thread != kNoScope ? scope_of_thread : latest_scope.load(std::memory_order_relaxed);
}

class Ledger;

/// What an allocation has to remember until it is freed. Lies in front of the data on the CPU, alone on the
/// meta device.
struct Header {
  int64_t bytes = 0;
  int scope = 0;
  Ledger* ledger = nullptr;
  uint64_t mark = 0;  // a listener's
  Header* previous = nullptr;
  Header* next = nullptr;
};

/// Live bytes of one device by scope, and a copy of them taken whenever the total reaches a new peak.
class Ledger {
 public:
  explicit Ledger(const char* device) : device_(device) {}

  /// Enters `bytes` under the innermost scope, in a header that make() returns. Throws OutOfMemory beyond the
  /// limit, and where make() returns null.
  template <typename Make>
  Header* add(int64_t bytes, Make make) {
    const std::lock_guard lock(mutex_);
    const int scope = current_scope();
    // A product that wrapped around arrives here as a negative or absurd size.
    const int64_t most = limit_ > 0 ? limit_ : kMostCounted;
    if (bytes < 0 || bytes > most - live_) {
      if (listener_ != nullptr) listener_->refused(bytes, scope, limit_ > 0 ? limit_ - live_ : 0);
      const bool is_size = bytes >= 0 && bytes <= kMostCounted;
      throw AllocationFailed(fmt::format("out of memory on {}: {} bytes for '{}' asked, {} alive, limit {}",
                                         device_, bytes, scope_names().name(scope), live_, most),
                             {is_size ? std::optional(bytes) : std::nullopt, live_,
                              limit_ > 0 ? std::optional(limit_) : std::nullopt});
    }
    Header* const header = make();
    if (header == nullptr) {
      throw AllocationFailed(fmt::format("out of memory on {}: the system refused {} bytes", device_, bytes),
                             {bytes, live_, std::nullopt});
    }
    *header = {bytes, scope, this, 0, nullptr, first_};
    if (first_ != nullptr) first_->previous = header;
    first_ = header;
    live_ += bytes;
    by_scope_[scope] += bytes;
    if (live_ > peak_) mark_peak();
    if (listener_ != nullptr) header->mark = listener_->allocated(bytes, scope);
    return header;
  }

  void remove(const Header& header) noexcept {
    const std::lock_guard lock(mutex_);
    (header.previous == nullptr ? first_ : header.previous->next) = header.next;
    if (header.next != nullptr) header.next->previous = header.previous;
    live_ -= header.bytes;
    by_scope_[header.scope] -= header.bytes;
    if (listener_ != nullptr) listener_->freed(header.mark, header.bytes, header.scope);
  }

  void listen(BlockListener* listener) {
    const std::lock_guard lock(mutex_);
    listener_ = listener;
    if (listener == nullptr) return;
    Header* oldest = first_;
    while (oldest != nullptr && oldest->next != nullptr) oldest = oldest->next;
    for (Header* block = oldest; block != nullptr; block = block->previous) {
      block->mark = listener->present(block->bytes, block->scope);
    }
  }

  void reset_peak() {
    const std::lock_guard lock(mutex_);
    mark_peak();
  }

  MemoryReading read() {
    const std::lock_guard lock(mutex_);
    MemoryReading reading;
    reading.live_bytes = live_;
    reading.peak_bytes = peak_;
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
  ForkLock mutex_{ForkLock::kLedger};
  int64_t live_ = 0;
  int64_t peak_ = 0;
  int64_t limit_ = 0;
  Header* first_ = nullptr;  // the youngest block alive
  BlockListener* listener_ = nullptr;
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

/// Without a limit of its own: the caching allocator has one.
Ledger& cuda_ledger() {
  static Ledger& ledger = *new Ledger("cuda");
  return ledger;
}

/// What is kept in the host's memory on purpose.
Ledger& host_ledger() {
  static Ledger& ledger = *new Ledger("the host");
  return ledger;
}
// As the library loads: a child that is forked while a thread makes one would wait for it without end.
[[maybe_unused]] const bool made = (scope_names(), cpu_ledger(), meta_ledger(), host_ledger(), true);

Ledger& side(Ledger& device) {
  return on_host ? host_ledger() : device;
}

Ledger& ledger_of(c10::DeviceType device) {
  if (device == c10::DeviceType::CPU) return cpu_ledger();
  if (device == c10::DeviceType::Meta) return meta_ledger();
  if (device == c10::DeviceType::CUDA) return cuda_ledger();
  throw InputError("no memory ledger is kept for device {}", c10::DeviceTypeName(device));
}

constexpr size_t kAlignment = 64;
static_assert(sizeof(Header) <= kAlignment);

class CountingCpuAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    const c10::Device device(c10::DeviceType::CPU);
    if (bytes == 0) return {nullptr, nullptr, &free_data, device};
    if (bytes > static_cast<size_t>(std::numeric_limits<int64_t>::max()))
      throw OutOfMemory("out of memory on cpu: size overflow");
    Header* const header = side(cpu_ledger()).add(static_cast<int64_t>(bytes), [bytes]() -> Header* {
      void* block = take_host_block(bytes + kAlignment);
      return block == nullptr ? nullptr : new (block) Header;
    });
    void* data = reinterpret_cast<char*>(header) + kAlignment;
    return {data, data, &free_data, device};
  }

  c10::DeleterFnPtr raw_deleter() const override { return &free_data; }
  void copy_data(void* to, const void* from, size_t count) const override { std::memcpy(to, from, count); }

  static void free_data(void* data) {
    if (data == nullptr) return;
    void* block = static_cast<char*>(data) - kAlignment;
    const Header& header = *static_cast<Header*>(block);
    const auto bytes = static_cast<size_t>(header.bytes);
    header.ledger->remove(header);
    give_back_host_block(block, bytes + kAlignment);
  }
};

std::atomic<int64_t> meta_block_bytes{1};

class CountingMetaAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    const int64_t block = on_host ? 1 : meta_block_bytes.load();  // of the device's allocator, not the host's
    bytes = std::min(bytes, size_t{kMostCounted});
    const int64_t whole = (static_cast<int64_t>(bytes) + block - 1) / block * block;
    Header* const header = side(meta_ledger()).add(whole, [] { return new Header; });
    return {nullptr, header, &free_header, c10::Device(c10::DeviceType::Meta)};
  }

  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void*, const void*, size_t) const override {}

 private:
  static void free_header(void* context) {
    auto* header = static_cast<Header*>(context);
    header->ledger->remove(*header);
    delete header;
  }
};

/// Hears of every block that the caching allocator gives or takes back in a thread that has this installed.
class CudaReports {
 public:
  void hear(void* data, int64_t bytes, c10::Device device) {
    if (!device.is_cuda() || bytes == 0) return;
    const std::lock_guard lock(mutex_);
    // A block may have gone in a thread without a listener: its address comes again.
    const auto known = blocks_.find(data);
    if (known != blocks_.end()) {
      cuda_ledger().remove(*known->second);
      delete known->second;
      blocks_.erase(known);
    }
    if (bytes > 0) blocks_.emplace(data, cuda_ledger().add(bytes, [] { return new Header; }));
  }

 private:
  ForkLock mutex_{ForkLock::kReports};
  std::unordered_map<void*, Header*> blocks_;
};

}  // namespace

MemoryScope::MemoryScope(const char* name)
    : outer_(std::exchange(scope_of_thread, scope_names().number(name))) {
  latest_scope.store(scope_of_thread, std::memory_order_relaxed);
}

MemoryScope::~MemoryScope() {
  scope_of_thread = outer_;
  latest_scope.store(outer_ == kNoScope ? 0 : outer_, std::memory_order_relaxed);
}

HostMemoryScope::HostMemoryScope() : outer_(std::exchange(on_host, true)) {}

HostMemoryScope::~HostMemoryScope() {
  on_host = outer_;
}

RememberedScope::RememberedScope() : number_(current_scope()) {}

RememberedScope::Reopened::Reopened(const RememberedScope& scope)
    : outer_(std::exchange(scope_of_thread, scope.number_)), latest_(latest_scope.exchange(scope.number_)) {}

RememberedScope::Reopened::~Reopened() {
  scope_of_thread = outer_;
  latest_scope.store(latest_);
}

void install_meters() {
  static CountingCpuAllocator& cpu = *new CountingCpuAllocator;
  static CountingMetaAllocator& meta = *new CountingMetaAllocator;
  torch_private::set_allocators(cpu, meta);
}

bool is_counted(const c10::DataPtr& data) {
  return data.get_deleter() == &CountingCpuAllocator::free_data;
}

void install_cuda_meter() {
  [[maybe_unused]] static const bool installed = [] {
    torch_private::hear_blocks(
        [reports = std::make_shared<CudaReports>()](void* data, int64_t bytes, c10::Device device) {
          reports->hear(data, bytes, device);
        });
    return true;
  }();
}

void set_meta_block_bytes(int64_t bytes) {
  meta_block_bytes = bytes;
}

void reset_peak(c10::Device device) {
  host_ledger().reset_peak();
  ledger_of(device.type()).reset_peak();
  if (!device.is_cuda()) return;
  torch_private::reset_gpu_peaks(device);
}

MemoryReading read_meter(c10::Device device) {
  MemoryReading reading = ledger_of(device.type()).read();
  reading.host_peak_bytes = host_ledger().read().peak_bytes;
  if (!device.is_cuda()) return reading;
  const torch_private::GpuMemory gpu = torch_private::gpu_memory(device);
  // The allocator has the last word; what the ledger has missed has no name.
  if (const int64_t missed = gpu.allocated_peak - reading.peak_bytes; missed != 0)
    reading.at_peak[std::string(kUnnamed)] += missed;
  reading.live_bytes = gpu.allocated;
  reading.peak_bytes = gpu.allocated_peak;
  reading.reserved_peak_bytes = gpu.reserved_peak;
  reading.device_bytes = gpu.total - gpu.free;
  reading.host_peak_bytes += gpu.pinned_peak;
  return reading;
}

void set_host_memory_limit(int64_t bytes) {
  host_ledger().set_limit(bytes);
}

void set_memory_limit(c10::DeviceType device, int64_t bytes) {
  ledger_of(device).set_limit(bytes);
}

int64_t memory_limit(c10::DeviceType device) {
  return ledger_of(device).limit();
}

void listen(c10::DeviceType device, BlockListener* listener) {
  ledger_of(device).listen(listener);
}

std::string scope_name(int scope) {
  return scope_names().name(scope);
}

}  // namespace streambp
