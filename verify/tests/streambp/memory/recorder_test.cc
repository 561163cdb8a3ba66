// The recorder against the meter: the same bytes, event by event, in the same names.
#include "streambp/memory/recorder.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <map>
#include <random>
#include <sstream>
#include <stdexcept>

#include <ATen/ATen.h>

#include "streambp/backprop/method.h"
#include "streambp/data/objective_inputs.h"
#include "streambp/error.h"
#include "streambp/memory/meter.h"
#include "streambp/memory/timeline.h"

namespace streambp {
namespace {

using Kind = Recording::Kind;

at::Tensor bytes_of(c10::DeviceType device, int64_t count) {
  return at::empty({count}, at::TensorOptions().device(device).dtype(at::kByte));
}

class Recorded : public testing::TestWithParam<c10::DeviceType> {
 protected:
  static void SetUpTestSuite() { install_meters(); }
  void SetUp() override { reset_peak(c10::Device(GetParam())); }
  void TearDown() override { set_memory_limit(GetParam(), 0); }

  MemoryReading meter() const { return read_meter(c10::Device(GetParam())); }
  at::Tensor bytes(int64_t count) const { return bytes_of(GetParam(), count); }
};

/// Live bytes after each entry that is no span, and the totals' consistency with the scopes.
std::vector<int64_t> totals(const Recording& recording) {
  std::vector<int64_t> totals;
  Replay replay(recording);
  do {
    int64_t sum = 0;
    for (const int64_t bytes : replay.by_scope()) {
      EXPECT_GE(bytes, 0) << "event " << replay.index();
      sum += bytes;
    }
    EXPECT_EQ(sum, replay.live()) << "event " << replay.index();
    if (replay.index() == 0 || !Recording::is_span(replay.entry().kind)) totals.push_back(replay.live());
  } while (replay.next());
  return totals;
}

/// Bytes by the scope's name where the total is highest for the first time.
std::map<std::string, int64_t> breakdown_at_peak(const Recording& recording) {
  const int64_t peak = peak_bytes(recording);
  Replay replay(recording);
  while (replay.live() != peak && replay.next()) {
  }
  std::map<std::string, int64_t> breakdown;
  for (size_t scope = 0; scope < recording.scopes.size(); ++scope) {
    if (replay.by_scope()[scope] != 0) breakdown[recording.scopes[scope]] = replay.by_scope()[scope];
  }
  return breakdown;
}

TEST_P(Recorded, TotalsAreTheMetersAfterEveryEvent) {
  const at::Tensor old = bytes(1001);
  std::vector<at::Tensor> alive(7);
  alive[0] = bytes(333);
  reset_peak(c10::Device(GetParam()));
  std::mt19937 random(5);
  Recorder recorder(GetParam());
  std::vector<int64_t> expected{meter().live_bytes};
  for (int step = 0; step < 500; ++step) {
    const Span span(step % 2 == 0 ? "even {}" : "odd", step % 2 == 0 ? step : -1);
    const MemoryScope scope(step % 3 == 0 ? "first scope" : "second scope");
    at::Tensor& slot = alive[random() % alive.size()];
    if (slot.defined()) {
      slot.reset();
    } else {
      slot = bytes(1 + static_cast<int64_t>(random() % 700));
    }
    expected.push_back(meter().live_bytes);
  }
  const MemoryReading reading = meter();
  const Recording recording = recorder.stop();
  EXPECT_EQ(totals(recording), expected);
  EXPECT_EQ(peak_bytes(recording), reading.peak_bytes);
  EXPECT_EQ(breakdown_at_peak(recording), reading.at_peak);
}

TEST_P(Recorded, BlocksAliveTogetherNeverOverlap) {
  std::vector<at::Tensor> alive(20);
  for (int64_t i = 0; i < 10; ++i) alive[static_cast<size_t>(i)] = bytes(63 + i);
  std::mt19937 random(7);
  Recorder recorder(GetParam());
  for (int step = 0; step < 2000; ++step) {
    at::Tensor& slot = alive[random() % alive.size()];
    if (slot.defined()) {
      slot.reset();
    } else {
      slot = bytes(1 + static_cast<int64_t>(random() % 1000));
    }
  }
  const Recording recording = recorder.stop();
  std::map<uint64_t, int64_t> blocks;
  uint64_t end = 0;
  const auto add = [&](uint64_t address, int64_t size) {
    const auto [block, is_new] = blocks.emplace(address, size);
    ASSERT_TRUE(is_new) << address;
    const auto next = std::next(block);
    ASSERT_TRUE(next == blocks.end() || address + static_cast<uint64_t>(size) <= next->first);
    if (block != blocks.begin()) {
      const auto before = std::prev(block);
      ASSERT_LE(before->first + static_cast<uint64_t>(before->second), address);
    }
    end = std::max(end, address + static_cast<uint64_t>(size));
  };
  for (const Recording::Block& block : recording.at_start) add(block.address, block.bytes);
  for (const Recording::Entry& entry : recording.entries) {
    if (entry.kind == Kind::kAllocated) add(entry.address, entry.bytes);
    if (entry.kind == Kind::kFreed) {
      ASSERT_EQ(blocks.erase(entry.address), 1U);
    }
  }
  const auto peak = static_cast<uint64_t>(peak_bytes(recording));
  fmt::print("addresses: {:.2f} x the peak\n",
             static_cast<double>(end - Recorder::kFirstAddress) / static_cast<double>(peak));
  EXPECT_LE(end - Recorder::kFirstAddress, 2 * peak) << "freed addresses are not used again";
}

TEST_P(Recorded, EmptyBlocksAreNoEvents) {
  Recorder recorder(GetParam());
  { const at::Tensor empty = bytes(0); }
  EXPECT_TRUE(recorder.stop().entries.empty());
}

TEST_P(Recorded, ARefusalIsAnEvent) {
  set_memory_limit(GetParam(), meter().live_bytes + 100);
  Recorder recorder(GetParam());
  const MemoryScope scope("first scope");
  EXPECT_THROW(bytes(101), OutOfMemory);
  const Recording recording = recorder.stop();
  ASSERT_EQ(recording.entries.size(), 1U);
  const Recording::Entry& entry = recording.entries.front();
  EXPECT_EQ(entry.kind, Kind::kRefused);
  EXPECT_EQ(entry.bytes, 101);
  EXPECT_EQ(entry.address, 100U);
  EXPECT_EQ(recording.scopes[entry.name], "first scope");
}

TEST_P(Recorded, NothingReachesARecorderThatHasStopped) {
  Recorder recorder(GetParam());
  at::Tensor a = bytes(10);
  recorder.stop();
  a.reset();
  const at::Tensor b = bytes(10);
  EXPECT_THROW(recorder.stop(), std::logic_error);
  Recorder second(GetParam());
  EXPECT_TRUE(second.stop().entries.empty());
}

INSTANTIATE_TEST_SUITE_P(Devices, Recorded, testing::Values(c10::DeviceType::CPU, c10::DeviceType::Meta),
                         [](const auto& device) {
                           return c10::DeviceTypeName(device.param, /*lower_case=*/true);
                         });

TEST(Recorder, WorksAloneAndOnDevicesWithALedger) {
  EXPECT_THROW(Recorder(c10::DeviceType::XPU), InputError);
  const Recorder recorder(c10::DeviceType::Meta);
  EXPECT_THROW(Recorder(c10::DeviceType::CPU), std::logic_error);
}

TEST(Recorder, NumbersTheEventsOfTheMetaDevice) {
  install_meters();
  Recorder recorder(c10::DeviceType::Meta);
  {
    const Span span("span");
    const at::Tensor a = bytes_of(c10::DeviceType::Meta, 3);
  }
  const Recording recording = recorder.stop();
  ASSERT_EQ(recording.entries.size(), 4U);
  for (size_t i = 0; i < 4; ++i) EXPECT_EQ(recording.trace_time(recording.entries[i]), double(i + 1));
}

TEST(Recorder, SpansLieInsideOneAnother) {
  const Span too_early("before the recording");
  Recorder recorder(c10::DeviceType::Meta);
  const Span cut("cut off at the end");
  {
    const Span layer("layer {} backward", 12);
    const Span chunk("chunk {}", 0);
  }
  const Span last("chunk {}", 3);
  const Recording recording = recorder.stop();
  std::string story;
  for (const Recording::Entry& entry : recording.entries) {
    story += (entry.kind == Kind::kSpanBegin ? "+" : "-") + recording.span_text(entry) + ";";
  }
  EXPECT_EQ(story,
            "+cut off at the end;+layer 12 backward;+chunk 0;-chunk 0;-layer 12 backward;+chunk 3;-chunk 3;"
            "-cut off at the end;");
}

/// A pass of streambp over 100 tokens.
struct RecordedPass {
  Recording recording;
  MemoryReading reading;
};

RecordedPass record_pass(c10::DeviceType device) {
  install_meters();
  const Config config = preset("qwen3-tiny");
  Model model = Model::random(config, {at::kFloat, device, at::kFloat, {}}, 1);
  const Batch batch = random_batch({63, 37}, config.vocab_size, 2);
  const auto objective = make_objective("sft", batch, {});
  Settings settings;
  settings.chunk = 24;
  reset_peak(c10::Device(device));
  Recorder recorder(device);
  backpropagate(model, batch, *objective, settings);
  Recording recording = recorder.stop();
  return {std::move(recording), read_meter(c10::Device(device))};
}

TEST(Recorder, FollowsAPassToThePeak) {
  for (const c10::DeviceType device : {c10::DeviceType::CPU, c10::DeviceType::Meta}) {
    const auto [recording, reading] = record_pass(device);
    const std::vector<int64_t> live = totals(recording);
    fmt::print("{}: {} entries, peak {} bytes\n", c10::DeviceTypeName(device), recording.entries.size(),
               peak_bytes(recording));
    EXPECT_EQ(peak_bytes(recording), reading.peak_bytes);
    EXPECT_EQ(breakdown_at_peak(recording), reading.at_peak);
    EXPECT_EQ(live.front(), live.back()) << "the pass left something behind";
  }
}

TEST(Recorder, SeesBackwardPassesInTheNamesOfTheirForwardPasses) {
  const Recording recording = record_pass(c10::DeviceType::Meta).recording;
  std::map<std::string, std::map<std::string, int64_t>> most;  // by the outermost span, by scope
  Replay replay(recording);
  while (replay.next()) {
    if (replay.spans().empty()) continue;
    for (size_t scope = 0; scope < recording.scopes.size(); ++scope) {
      int64_t& bytes = most[replay.spans().front()][recording.scopes[scope]];
      bytes = std::max(bytes, replay.by_scope()[scope]);
    }
  }
  // Gate and up, [24, F] each, are alive together, and in the backward pass the gradient of their product
  // with them.
  const int64_t wide = 24 * preset("qwen3-tiny").intermediate_size * 4;
  // The last layer runs forward in its backward pass alone, with the head inside it.
  EXPECT_EQ(most.count("layer 1 forward"), 0U);
  for (const char* span : {"layer 0 forward", "layer 0 backward", "layer 1 backward"}) {
    ASSERT_EQ(most.count(span), 1U) << span;
    fmt::print("{}: MLP {}, attention {}\n", span, most[span]["MLP"], most[span]["attention"]);
    EXPECT_GE(most[span]["MLP"], (std::string_view(span).ends_with("backward") ? 3 : 2) * wide) << span;
    EXPECT_GT(most[span]["attention"], 0) << span;
    EXPECT_GT(most[span]["keys and values"], 0) << span;
  }
  EXPECT_GT(most["layer 0 backward"]["MLP"], most["layer 0 forward"]["MLP"]);
  EXPECT_GT(most["layer 0 backward"]["key and value gradients"], 0);
  EXPECT_GT(most["layer 1 backward"]["logits"], 0);
  EXPECT_EQ(most["layer 0 backward"]["logits"], 0);
}

TEST(Recorder, GivesTheSameForTheSameDryRun) {
  std::ostringstream first, second;
  write_timeline(first, record_pass(c10::DeviceType::Meta).recording, {}, 1 << 20);
  write_timeline(second, record_pass(c10::DeviceType::Meta).recording, {}, 1 << 20);
  EXPECT_EQ(first.str(), second.str());
}

/// Blocks of 1, 2, ... bytes that come one by one and then go one by one.
Recording pyramid(int blocks) {
  install_meters();
  Recorder recorder(c10::DeviceType::Meta);
  std::vector<at::Tensor> alive;
  for (int i = 1; i <= blocks; ++i) alive.push_back(bytes_of(c10::DeviceType::Meta, i));
  while (!alive.empty()) alive.pop_back();
  return recorder.stop();
}

TEST(Timeline, SamplesKeepThePeak) {
  const Recording recording = pyramid(50);
  for (const size_t most : {2, 3, 4, 7, 19, 99, 100, 101, 102, 1000}) {
    const std::vector<size_t> indices = sampled_indices(recording, most);
    ASSERT_LE(indices.size(), std::max<size_t>(most, 2)) << "of " << most;
    EXPECT_TRUE(std::is_sorted(indices.begin(), indices.end()));
    Replay replay(recording);
    int64_t highest = 0;
    for (const size_t index : indices) {
      while (replay.index() < index) ASSERT_TRUE(replay.next());
      highest = std::max(highest, replay.live());
    }
    EXPECT_EQ(highest, peak_bytes(recording)) << "of " << most;
  }
  EXPECT_EQ(sampled_indices(recording, 102).size(), 101U) << "the start and 100 events";
}

TEST(Timeline, IsATableOfTheReplay) {
  install_meters();
  const int64_t before = read_meter(at::kMeta).live_bytes;
  Recorder recorder(c10::DeviceType::Meta);
  {
    const Span span("layer {}", 4);
    const Span inner("a, \"b\"");
    const MemoryScope scope("scope, with a comma");
    const at::Tensor a = bytes_of(c10::DeviceType::Meta, 5);
  }
  std::ostringstream out;
  write_timeline(out, recorder.stop(), {{"model", "of\nmine"}});
  ASSERT_EQ(before, 0) << "another test's tensors are alive";
  EXPECT_EQ(out.str(),
            "# model: of mine\n"
            "event,seconds,spans,\"scope, with a comma\"\n"
            "0,,,0\n1,,layer 4,0\n2,,\"layer 4/a, \"\"b\"\"\",0\n3,,\"layer 4/a, \"\"b\"\"\",5\n"
            "4,,\"layer 4/a, \"\"b\"\"\",0\n5,,layer 4,0\n6,,,0\n");
}

}  // namespace
}  // namespace streambp
