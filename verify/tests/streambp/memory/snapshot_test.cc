// What the viewers are given: the trace is JSON whose spans nest, the snapshot a pickle that PyTorch's page
// can read, and both tell the bytes that the recording holds.
#include "streambp/memory/snapshot.h"

#include <algorithm>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <sstream>
#include <stdexcept>
#include <vector>

#include <ATen/ATen.h>

#include "streambp/memory/meter.h"
#include "streambp/memory/trace.h"

namespace streambp {
namespace {

using nlohmann::json;

/// Reads the opcodes that the page's reader knows and the writer uses; throws at any other.
class PickleReader {
 public:
  explicit PickleReader(std::string bytes) : bytes_(std::move(bytes)) {}

  json read() {
    if (take(2) != "\x80\x04") throw std::runtime_error("expected a pickle of protocol 4");
    for (;;) {
      const char opcode = take(1)[0];
      switch (opcode) {
        case '}':
          push(json::object());
          break;
        case ']':
          push(json::array());
          break;
        case '(':
          marks_.push_back(stack_.size());
          break;
        case 'u':
          set_items();
          break;
        case 'a': {
          const Value item = stack_.back();
          stack_.pop_back();
          stack_.back()->push_back(*item);
          break;
        }
        case 'K':
          push(integer(1, false));
          break;
        case 'M':
          push(integer(2, false));
          break;
        case 'J':
          push(integer(4, true));
          break;
        case '\x8a':
          push(integer(static_cast<int>(integer(1, false)), true));
          break;
        case 'X':
          push(take(static_cast<size_t>(integer(4, false))));
          break;
        case '\x88':
        case '\x89':
          push(opcode == '\x88');
          break;
        case '\x94':
          memo_.push_back(stack_.back());
          break;
        case 'h':
          stack_.push_back(memo_.at(static_cast<size_t>(integer(1, false))));
          break;
        case 'j':
          stack_.push_back(memo_.at(static_cast<size_t>(integer(4, false))));
          break;
        case '.':
          if (stack_.size() != 1 || position_ != bytes_.size())
            throw std::runtime_error("expected one value");
          return *stack_.front();
        default:
          throw std::runtime_error("unknown opcode " + std::to_string(static_cast<unsigned char>(opcode)));
      }
    }
  }

 private:
  using Value = std::shared_ptr<json>;

  std::string take(size_t count) {
    if (count > bytes_.size() - position_) throw std::runtime_error("the pickle ends early");
    position_ += count;
    return bytes_.substr(position_ - count, count);
  }

  int64_t integer(int bytes, bool is_signed) {
    const std::string text = take(static_cast<size_t>(bytes));
    uint64_t value = is_signed && (text.back() & '\x80') != 0 ? ~uint64_t{0} : 0;
    for (int i = bytes - 1; i >= 0; --i)
      value = value << 8 | static_cast<unsigned char>(text[static_cast<size_t>(i)]);
    return static_cast<int64_t>(value);
  }

  void push(json value) { stack_.push_back(std::make_shared<json>(std::move(value))); }

  void set_items() {
    const size_t mark = marks_.back();
    marks_.pop_back();
    for (size_t i = mark; i + 1 < stack_.size(); i += 2) {
      (*stack_[mark - 1])[stack_[i]->get<std::string>()] = *stack_[i + 1];
    }
    stack_.resize(mark);
  }

  std::string bytes_;
  size_t position_ = 0;
  std::vector<Value> stack_, memo_;
  std::vector<size_t> marks_;
};

at::Tensor bytes(int64_t count) {
  return at::empty({count}, at::TensorOptions().device(at::kMeta).dtype(at::kByte));
}

/// A run with a weight that stays, blocks that come and go, and some that are left.
struct RecordedRun {
  RecordedRun() {
    install_meters();
    {
      const MemoryScope scope("weights");
      weight = bytes(1000);
      early = bytes(300);
    }
    reset_peak(at::kMeta);
    Recorder recorder(c10::DeviceType::Meta);
    for (int64_t layer = 0; layer < 300; ++layer) {
      const Span span("layer {} \"backward\"", layer);
      const MemoryScope scope("chunk");
      const at::Tensor a = bytes(100 + layer);
      const at::Tensor b = bytes(int64_t{5} << 30);
      if (layer == 7) early.reset();
      if (layer == 9) left = bytes(77);
    }
    recording = recorder.stop();
    peak = read_meter(at::kMeta).peak_bytes;
  }

  at::Tensor weight, early, left;
  Recording recording;
  int64_t peak = 0;
};

json read_snapshot(const Recording& recording) {
  std::ostringstream out;
  write_snapshot(out, recording);
  return PickleReader(out.str()).read();
}

TEST(Snapshot, TellsEveryByteByItsScope) {
  const RecordedRun run;
  const json snapshot = read_snapshot(run.recording);
  ASSERT_EQ(snapshot.at("device_traces").size(), 1U);
  const json& events = snapshot.at("device_traces")[0];
  EXPECT_EQ(events.back().at("category"), "unknown") << "the page's script needs one such event";
  std::map<int64_t, json> alive;
  int64_t live = 0, peak = 0;
  for (const json& event : events) {
    const std::string action = event.at("action");
    for (const char* member : {"size", "stream", "time_us"})
      EXPECT_TRUE(event.at(member).is_number()) << member;
    if (action == "alloc") {
      EXPECT_TRUE(alive.emplace(event.at("addr"), event).second) << event;
      EXPECT_EQ(event.at("frames")[0].at("name"), event.at("category"));
      live += event.at("size").get<int64_t>();
    } else if (action == "free_completed") {
      const auto block = alive.find(event.at("addr"));
      ASSERT_NE(block, alive.end());
      EXPECT_EQ(block->second.at("size"), event.at("size"));
      EXPECT_EQ(block->second.at("category"), event.at("category"));
      live -= event.at("size").get<int64_t>();
      alive.erase(block);
    } else {
      EXPECT_TRUE(action == "free_requested" || action == "snapshot") << action;
    }
    peak = std::max(peak, live);
  }
  EXPECT_EQ(peak, run.peak);

  // The segment holds what is alive at the end, in blocks without gaps.
  ASSERT_EQ(snapshot.at("segments").size(), 1U);
  const json& segment = snapshot.at("segments")[0];
  int64_t address = segment.at("address"), active = 0;
  size_t found = 0;
  for (const json& block : segment.at("blocks")) {
    EXPECT_EQ(block.at("address"), address);
    address += block.at("size").get<int64_t>();
    if (block.at("state") == "inactive") continue;
    const auto known = alive.find(block.at("address"));
    ASSERT_NE(known, alive.end());
    EXPECT_EQ(known->second.at("size"), block.at("size"));
    EXPECT_EQ(known->second.at("frames"), block.at("frames"));
    active += block.at("size").get<int64_t>();
    ++found;
  }
  EXPECT_EQ(found, alive.size());
  EXPECT_EQ(active, live);
  EXPECT_EQ(segment.at("allocated_size"), live);
  EXPECT_EQ(address - segment.at("address").get<int64_t>(), segment.at("total_size"));
}

TEST(Snapshot, FramesAreTheScopeAndTheSpansAroundIt) {
  const RecordedRun run;
  const json snapshot = read_snapshot(run.recording);
  const auto frames_of = [&](int64_t size) {
    for (const json& event : snapshot.at("device_traces")[0]) {
      if (event.at("action") != "alloc" || event.at("size") != size) continue;
      std::string frames;
      for (const json& frame : event.at("frames")) frames += frame.at("name").get<std::string>() + ";";
      return frames;
    }
    return std::string("no such block");
  };
  EXPECT_EQ(frames_of(1000), "weights;alive before the recording;");
  EXPECT_EQ(frames_of(77), "chunk;layer 9 \"backward\";");
  EXPECT_EQ(frames_of(399), "chunk;layer 299 \"backward\";");
}

TEST(Snapshot, OfNothingIsEmpty) {
  const json snapshot = read_snapshot(Recording{});
  EXPECT_EQ(snapshot.at("segments").size(), 0U);
  EXPECT_EQ(snapshot.at("device_traces")[0].size(), 1U);
}

TEST(Snapshot, HasRefusals) {
  install_meters();
  set_memory_limit(at::kMeta, read_meter(at::kMeta).live_bytes + 5);
  Recorder recorder(c10::DeviceType::Meta);
  EXPECT_ANY_THROW(bytes(6));
  set_memory_limit(at::kMeta, 0);
  const json events = read_snapshot(recorder.stop()).at("device_traces")[0];
  ASSERT_EQ(events.size(), 2U) << "the refusal, and the event without a category";
  const json& event = events[0];
  EXPECT_EQ(event.at("action"), "oom");
  EXPECT_EQ(event.at("size"), 6);
  EXPECT_EQ(event.at("device_free"), 5);
}

TEST(Trace, NestsSpansAndCountsEveryByte) {
  const RecordedRun run;
  std::ostringstream out;
  write_trace(out, run.recording, {{"model", "a \"quoted\" \\ name"}});
  const json trace = json::parse(out.str());
  EXPECT_EQ(trace.at("otherData").at("model"), "a \"quoted\" \\ name");
  EXPECT_EQ(trace.at("otherData").at("clock"), "number of the event: nothing is timed");
  std::vector<std::string> open;
  int64_t peak = 0, marked = 0, total = -1;
  double time = 0.0;
  size_t spans = 0;
  for (const json& event : trace.at("traceEvents")) {
    const std::string phase = event.at("ph"), name = event.at("name");
    EXPECT_GE(event.at("ts").get<double>(), time) << event;
    time = event.at("ts");
    if (phase == "B") {
      open.push_back(name);
      ++spans;
    } else if (phase == "E") {
      ASSERT_FALSE(open.empty());
      EXPECT_EQ(open.back(), name);
      open.pop_back();
    } else if (phase == "C" && name == "memory") {
      total = event.at("args").at("bytes");
      peak = std::max(peak, total);
    } else if (phase == "C") {
      int64_t sum = 0;
      for (const auto& [scope, bytes] : event.at("args").items()) sum += bytes.get<int64_t>();
      EXPECT_EQ(sum, total) << event;
    } else if (phase == "i") {
      EXPECT_EQ(name, "peak");
      marked = event.at("args").at("bytes");
    } else {
      EXPECT_EQ(phase, "M");
    }
  }
  EXPECT_TRUE(open.empty());
  EXPECT_EQ(spans, 300U);
  EXPECT_EQ(peak, run.peak);
  EXPECT_EQ(marked, run.peak);
}

TEST(Trace, SaysWhatItsClockIs) {
  install_meters();
  Recorder recorder(c10::DeviceType::CPU);
  const at::Tensor a = at::empty({1});
  std::ostringstream out;
  write_trace(out, recorder.stop(), {});
  EXPECT_EQ(json::parse(out.str()).at("otherData").at("clock"), "microseconds since the start");
}

}  // namespace
}  // namespace streambp
