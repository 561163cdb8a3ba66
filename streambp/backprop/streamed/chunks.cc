#include "streambp/backprop/streamed/chunks.h"

#include <tuple>

#include "streambp/backprop/streamed/stream_part.h"
#include "streambp/ops/dry_run.h"

namespace streambp {

Chunks::Chunks(const Stream& stream, int64_t size, c10::Device device, const StreamPart* part)
    : stream_(stream), size_(size), device_(device), part_(part) {
  std::vector<int64_t> cuts = part == nullptr ? std::vector<int64_t>{} : part->cuts();
  cuts.push_back(stream.size());
  int64_t begin = 0;
  for (const int64_t cut : cuts) {
    for (; begin < cut; begin += size) begins_.push_back(begin);
    begin = cut;
  }
  begins_.push_back(stream.size());
  to_run_ = to_run_by([](const Rows&) { return std::vector<int64_t>{}; });
}

std::vector<int64_t> Chunks::to_run_by(const std::function<std::vector<int64_t>(const Rows&)>& kind) const {
  const auto prefix_of = [this](const Rows& chunk) {
    return part_ == nullptr ? chunk.begin - chunk.sequence_begin : part_->rows_before(chunk.begin);
  };
  return steps_to_run(
      device_, count(),
      [&](int64_t i) {
        const Rows chunk = rows(i);
        return std::tuple(i == last(), chunk.offsets, prefix_of(chunk) > 0, kind(chunk));
      },
      [&](int64_t i) { return prefix_of(rows(i)); });
}

}  // namespace streambp
