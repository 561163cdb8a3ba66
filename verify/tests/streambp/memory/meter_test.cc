// The meter: what it counts, in whose name, and where it stops.
#include "streambp/memory/meter.h"

#include <array>
#include <future>
#include <gtest/gtest.h>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include <ATen/ATen.h>

#include "streambp/error.h"
#include "streambp/memory/block_listener.h"
#include "streambp/memory/counted.h"
#include "streambp/memory/shortage.h"
#include "streambp/runtime/failure.h"

namespace streambp {
namespace {

class Meter : public testing::TestWithParam<c10::DeviceType> {
 protected:
  static void SetUpTestSuite() { install_meters(); }
  void SetUp() override {
    before_ = read_meter(device()).live_bytes;
    reset_peak(device());
  }
  void TearDown() override { set_memory_limit(GetParam(), 0); }

  c10::Device device() const { return c10::Device(GetParam()); }
  at::Tensor floats(int64_t count) const {
    return at::empty({count}, at::TensorOptions().device(device()).dtype(at::kFloat));
  }

  int64_t before_ = 0;
};

TEST_P(Meter, CountsLiveBytesAndTheirPeakToTheByte) {
  at::Tensor a = floats(1000);
  EXPECT_EQ(read_meter(device()).live_bytes - before_, 4000);
  at::Tensor b = floats(501);
  a.reset();
  const MemoryReading reading = read_meter(device());
  EXPECT_EQ(reading.live_bytes - before_, 2004);
  EXPECT_EQ(reading.peak_bytes - before_, 6004);
  reset_peak(device());
  EXPECT_EQ(read_meter(device()).peak_bytes - before_, 2004);
}

TEST(MeterOfTheCpu, TellsWhatItHasCounted) {
  install_meters();
  EXPECT_TRUE(is_counted(at::empty({10}).storage().data_ptr()));
  std::array<float, 10> elsewhere{};
  EXPECT_FALSE(is_counted(at::from_blob(elsewhere.data(), {10}).storage().data_ptr()));
}

TEST_P(Meter, NamesThePeakByInnermostScope) {
  const MemoryScope outer("outer scope");
  const at::Tensor a = floats(10);
  at::Tensor b;
  {
    const MemoryScope inner("inner scope");
    b = floats(100);
  }
  const at::Tensor c = floats(1);
  const MemoryReading reading = read_meter(device());
  EXPECT_EQ(reading.at_peak.at("outer scope"), 44);
  EXPECT_EQ(reading.at_peak.at("inner scope"), 400);
  int64_t sum = 0;
  for (const auto& [scope, bytes] : reading.at_peak) sum += bytes;
  EXPECT_EQ(sum, reading.peak_bytes);
}

TEST_P(Meter, ScopesBelongToTheirThreads) {
  const MemoryScope here("scope here");
  std::promise<void> opened, allocated;
  at::Tensor there;
  std::thread other([&] {
    const MemoryScope scope("scope there");
    opened.set_value();
    allocated.get_future().wait();
    there = floats(100);
  });
  opened.get_future().wait();
  const at::Tensor a = floats(10);  // while the other thread's scope is open
  allocated.set_value();
  other.join();
  const MemoryReading reading = read_meter(device());
  EXPECT_EQ(reading.at_peak.at("scope here"), 40);
  EXPECT_EQ(reading.at_peak.at("scope there"), 400);
}

TEST_P(Meter, AThreadWithoutScopesTakesTheLatest) {
  const MemoryScope here("waiting scope");
  at::Tensor there;
  std::thread([&] { there = floats(100); }).join();
  EXPECT_EQ(read_meter(device()).at_peak.at("waiting scope"), 400);
}

TEST_P(Meter, AViewCostsNothing) {
  const at::Tensor a = floats(100);
  const at::Tensor view = a.narrow(0, 10, 20).view({4, 5}).t();
  EXPECT_EQ(read_meter(device()).live_bytes - before_, 400);
}

TEST_P(Meter, StopsAtTheLimitAndGoesOnBelowIt) {
  set_memory_limit(GetParam(), before_ + 4096);
  EXPECT_THROW(floats(2000), OutOfMemory);
  EXPECT_EQ(read_meter(device()).live_bytes, before_);
  EXPECT_NO_THROW(floats(1000));
  EXPECT_NO_THROW(floats(1024));
  EXPECT_THROW(floats(1025), OutOfMemory);
}

TEST_P(Meter, SaysWhoAskedForWhat) {
  set_memory_limit(GetParam(), before_ + 1);
  const MemoryScope scope("logits");
  try {
    floats(1000);
    FAIL() << "the limit did not hold";
  } catch (const OutOfMemory& error) {
    EXPECT_NE(std::string(error.what()).find("4000 bytes for 'logits'"), std::string::npos) << error.what();
    const MemoryShortage shortage = shortage_of(error);
    EXPECT_EQ(shortage.asked, 4000);
    EXPECT_EQ(shortage.alive, before_);
    EXPECT_EQ(shortage.limit, before_ + 1);
    EXPECT_EQ(shortage.needed(), before_ + 4000);
  }
}

TEST(MemoryShortage, IsReadFromTheTextsOfPyTorch) {
  const auto of = [](const char* text) { return shortage_of(std::runtime_error(text)); };
  const MemoryShortage cuda = of(
      "CUDA out of memory. Tried to allocate 20.50 MiB. GPU 0 has a total capacity of 79.25 GiB of which "
      "512.00 "
      "KiB is free. Including non-PyTorch memory, this process has 79.11 GiB memory in use. Of the allocated "
      "memory 78.00 GiB is allocated by PyTorch, and 356.06 MiB is reserved by PyTorch but unallocated.");
  EXPECT_EQ(cuda.asked, 41 * (int64_t{1} << 19));
  EXPECT_EQ(cuda.limit, 317 * (int64_t{1} << 28));
  EXPECT_EQ(cuda.alive, *cuda.limit - (int64_t{1} << 19));
  const MemoryShortage capped = of(
      "CUDA out of memory. Tried to allocate 1.00 GiB. GPU 0 has a total capacity of 79.25 GiB of which "
      "30.00 GiB "
      "is free. 40.00 GiB allowed; Of the allocated memory 39.50 GiB is allocated by PyTorch, and 0 bytes is "
      "reserved by PyTorch but unallocated.");
  EXPECT_EQ(capped.limit, int64_t{40} << 30);
  EXPECT_EQ(capped.needed(), (int64_t{81} << 29));
  const MemoryShortage cpu =
      of("DefaultCPUAllocator: can't allocate memory: you tried to allocate 123456 bytes. Error code 12");
  EXPECT_EQ(cpu.asked, 123456);
  EXPECT_FALSE(cpu.alive || cpu.limit || cpu.needed());
  for (const char* text :
       {"", "CUDA error: out of memory", "CUDA out of memory. Tried to allocate more than 1EB memory.",
        " allowed; ", "x allowed; ", "Tried to allocate -1 bytes", "Tried to allocate 1e300 GiB"}) {
    const MemoryShortage none = of(text);
    EXPECT_FALSE(none.asked || none.alive || none.limit) << text;
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, Meter, testing::Values(c10::DeviceType::CPU, c10::DeviceType::Meta),
                         [](const auto& device) {
                           return c10::DeviceTypeName(device.param, /*lower_case=*/true);
                         });

TEST(AvailableMemory, IsWhatTheMachineHas) {
  EXPECT_GT(available_memory(), 1 << 20);
  EXPECT_LT(available_memory(), int64_t{1} << 50);
}

/// Remembers what it hears.
struct Heard final : BlockListener {
  std::vector<std::string> all;

  uint64_t present(int64_t, int) noexcept override { return 0; }
  uint64_t allocated(int64_t bytes, int scope) noexcept override {
    all.push_back(fmt::format("+{} {}", bytes, scope_name(scope)));
    return 0;
  }
  void freed(uint64_t, int64_t bytes, int scope) noexcept override {
    all.push_back(fmt::format("-{} {}", bytes, scope_name(scope)));
  }
  void refused(int64_t, int, int64_t) noexcept override {}
};

TEST(CudaMeter, EntersWhatTheCachingAllocatorReports) {
  install_cuda_meter();
  Heard heard;
  listen(c10::DeviceType::CUDA, &heard);
  const auto report = [](int address, int64_t bytes, c10::Device device) {
    c10::reportMemoryUsageToProfiler(reinterpret_cast<void*>(static_cast<uintptr_t>(address)), bytes, 0, 0,
                                     device);
  };
  const c10::Device cuda(c10::DeviceType::CUDA, 0);
  {
    const MemoryScope scope("weights");
    report(0x1000, 512, cuda);
  }
  const MemoryScope scope("chunk");
  report(0x2000, 1024, cuda);
  report(0x1000, -512, cuda);
  report(0x3000, 77, at::kCPU);
  // A thread that nobody listens to has freed the block: its address comes again.
  report(0x2000, 2048, cuda);
  report(0x2000, -2048, cuda);
  report(0x2000, -2048, cuda);
  listen(c10::DeviceType::CUDA, nullptr);
  EXPECT_EQ(heard.all, (std::vector<std::string>{"+512 weights", "+1024 chunk", "-512 weights", "-1024 chunk",
                                                 "+2048 chunk", "-2048 chunk"}));
}

TEST(Meter, SizesThatDoNotAddUpAreRefused) {
  install_meters();
  const auto bytes = [](int64_t count) {
    return at::empty({count}, at::TensorOptions().device(at::kMeta).dtype(at::kByte));
  };
  const int64_t before = read_meter(at::kMeta).live_bytes;
  const at::Tensor half = bytes(int64_t{1} << 61);
  const at::Tensor most = bytes((int64_t{1} << 61) - before);
  try {
    bytes(1);
    ADD_FAILURE() << "more than 2^62 bytes were counted";
  } catch (const std::exception& error) {
    EXPECT_TRUE(is_out_of_memory(error)) << error.what();
    EXPECT_NE(std::string(error.what()).find("limit 4611686018427387904"), std::string::npos) << error.what();
    EXPECT_EQ(shortage_of(error).needed(), (int64_t{1} << 62) + 1);
  }
  EXPECT_THROW(bytes(std::numeric_limits<int64_t>::max()), std::exception);
  set_meta_block_bytes(512);
  EXPECT_THROW(bytes(std::numeric_limits<int64_t>::max()), std::exception);
  set_meta_block_bytes(1);
  EXPECT_EQ(read_meter(at::kMeta).live_bytes, int64_t{1} << 62);
}

TEST(MetaBlocks, AreRoundedAsTheDeviceThatIsStoodFor) {
  install_meters();
  const auto floats = [](int64_t count) {
    return at::empty({count}, at::TensorOptions().device(at::kMeta).dtype(at::kFloat));
  };
  const int64_t before = read_meter(at::kMeta).live_bytes;
  reset_peak(at::kMeta);
  set_meta_block_bytes(512);
  const at::Tensor a = floats(1), b = floats(128), c = floats(129);
  EXPECT_EQ(read_meter(at::kMeta).live_bytes - before, 512 + 512 + 1024);
  {
    const HostMemoryScope host;
    const at::Tensor small = floats(1);
    EXPECT_EQ(read_meter(at::kMeta).host_peak_bytes, 4) << "the host's memory has no such blocks";
  }
  set_meta_block_bytes(1);
  const at::Tensor d = floats(1);
  EXPECT_EQ(read_meter(at::kMeta).live_bytes - before, 2048 + 4);
}

}  // namespace
}  // namespace streambp
