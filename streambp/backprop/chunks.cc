#include "streambp/backprop/chunks.h"

#include <tuple>

#include "streambp/ops/dry_run.h"

namespace streambp {

Chunks::Chunks(const Stream& stream, int64_t size, c10::Device device)
    : stream_(stream), size_(size), device_(device) {
  to_run_ = to_run_by([](const Rows&) { return std::vector<int64_t>{}; });
}

std::vector<int64_t> Chunks::to_run_by(const std::function<std::vector<int64_t>(const Rows&)>& kind) const {
  const auto prefix_of = [](const Rows& chunk) { return chunk.begin - chunk.sequence_begin; };
  return steps_to_run(
      device_, count(),
      [&](int64_t i) {
        const Rows chunk = rows(i);
        return std::tuple(i == last(), chunk.offsets, prefix_of(chunk) > 0, kind(chunk));
      },
      [&](int64_t i) { return prefix_of(rows(i)); });
}

}  // namespace streambp
