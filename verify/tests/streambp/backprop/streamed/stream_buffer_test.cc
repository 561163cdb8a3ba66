// Rows on the device and on the host: pieces of the host's memory, copies that are begun early, what they
// hold.
#include "streambp/backprop/streamed/stream_buffer.h"

#include <gtest/gtest.h>

#include "streambp/memory/meter.h"
#include "verify/tests/streambp/ops/ops_testing.h"

namespace streambp {
namespace {

at::TensorOptions floats(c10::Device device = at::kCPU) {
  return at::TensorOptions().device(device).dtype(at::kFloat);
}

TEST(StreamBuffer, GivesBackWhatWasStoredAcrossPieces) {
  const auto copies = std::make_shared<HostCopies>(at::kCPU);
  const at::Tensor all = random({50, 2, 3}, 1).to(at::kFloat);
  for (const int64_t piece_rows : {1, 7, 16, 50, 100}) {
    const StreamBuffer buffer({50, 2, 3}, floats(), copies, piece_rows * 6 * 4);
    for (int64_t begin = 0; begin < 50; begin += 13)
      buffer.store(begin, all.narrow(0, begin, std::min<int64_t>(13, 50 - begin)));
    for (const auto& [begin, end] : {std::pair<int64_t, int64_t>{0, 50}, {0, 1}, {6, 8}, {13, 26}, {49, 50}})
      EXPECT_TRUE(at::equal(buffer.rows(begin, end), all.narrow(0, begin, end - begin))) << piece_rows;
  }
}

TEST(StreamBuffer, ReadsWhatItExpectsOnceAndAnythingElseToo) {
  const auto copies = std::make_shared<HostCopies>(at::kCPU);
  const at::Tensor all = random({12, 2}, 1).to(at::kFloat);
  StreamBuffer buffer({12, 2}, floats(), copies, 5 * 8);
  buffer.store(0, all);
  buffer.expect(0, 4);
  buffer.expect(4, 8);
  EXPECT_TRUE(at::equal(buffer.rows(8, 12), all.narrow(0, 8, 4))) << "rows that nobody expected";
  EXPECT_TRUE(at::equal(buffer.rows(4, 8), all.narrow(0, 4, 4)));
  // What was read is a copy: rows that are stored later are seen by later reads.
  const at::Tensor early = buffer.rows(0, 4);
  buffer.store(0, at::zeros({4, 2}, floats()));
  EXPECT_TRUE(at::equal(early, all.narrow(0, 0, 4)));
  EXPECT_TRUE(at::equal(buffer.rows(0, 4), at::zeros({4, 2}, floats())));
  StreamBuffer other = std::move(buffer);
  EXPECT_FALSE(buffer.defined());
  EXPECT_TRUE(at::equal(other.rows(8, 12), all.narrow(0, 8, 4)));
  other.expect(0, 4);
  other.reset();
  EXPECT_FALSE(other.defined());
}

TEST(StreamBuffer, OnTheDeviceRowsAreItsOwn) {
  StreamBuffer buffer({6, 2}, floats());
  buffer.store(2, at::ones({3, 2}, floats()));
  buffer.expect(2, 5);
  buffer.rows(2, 5).mul_(2);
  EXPECT_TRUE(at::equal(buffer.rows(2, 5), at::full({3, 2}, 2.0, floats()))) << "a view, not a copy";
  EXPECT_EQ(buffer.take().size(0), 6);
  EXPECT_FALSE(buffer.defined());
}

TEST(StreamBuffer, ADryRunHoldsWhatAGpuWould) {
  install_meters();
  const auto copies = std::make_shared<HostCopies>(at::kMeta);
  const int64_t before = read_meter(at::kMeta).live_bytes;
  reset_peak(at::kMeta);
  const StreamBuffer buffer({100, 8}, floats(at::kMeta), copies);
  const auto alive = [&] { return read_meter(at::kMeta).live_bytes - before; };
  EXPECT_EQ(alive(), 0);
  EXPECT_EQ(read_meter(at::kMeta).host_peak_bytes, 3200);
  buffer.store(0, at::empty({10, 8}, floats(at::kMeta)));
  EXPECT_EQ(alive(), 320) << "rows that are being copied to the host";
  buffer.store(10, at::empty({10, 8}, floats(at::kMeta)));
  EXPECT_EQ(alive(), 640) << "all that has not been waited for";
  copies->settle();
  EXPECT_EQ(alive(), 0);
  reset_peak(at::kMeta);
  buffer.expect(0, 10);
  EXPECT_EQ(alive(), 320);
  {
    const at::Tensor rows = buffer.rows(0, 10);
    buffer.expect(10, 20);
    EXPECT_EQ(alive(), 640) << "the rows at work, and the next ones";
  }
  EXPECT_EQ(alive(), 320);
  EXPECT_EQ(read_meter(at::kMeta).at_peak.at("rows from the host"), 640);
  buffer.rows(10, 20);
  EXPECT_EQ(alive(), 0);
}

}  // namespace
}  // namespace streambp
