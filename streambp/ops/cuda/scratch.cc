#include "streambp/ops/cuda/scratch.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace streambp::cuda {
namespace {

GpuLimits limits;

}  // namespace

const GpuLimits& card() {
  return limits;
}

void set_card(const GpuLimits& other) {
  limits = other;
}

int64_t flash_splits(int64_t heads, int64_t queries, int64_t keys, int64_t head_size) {
  const int64_t key_tile = head_size <= 64 ? 256 : head_size <= 128 ? 128 : 64;
  const int64_t key_tiles = (keys + key_tile - 1) / key_tile;
  const int64_t blocks = heads * ((queries + 63) / 64), slots = 2 * card().multiprocessors;
  if (static_cast<double>(blocks) >= 0.8 * static_cast<double>(slots)) return 1;
  const int64_t most = std::min<int64_t>({128, slots, key_tiles});
  const auto size_of = [&](int64_t splits) { return (key_tiles + splits - 1) / splits; };
  // Of the numbers of splits that cut the keys differently, the first that fills its waves nearly as well as
  // the best does.
  std::vector<double> fill(static_cast<size_t>(most) + 1, 0.0);
  double best = 0.0;
  for (int64_t splits = 1; splits <= most; ++splits) {
    if (splits > 1 && size_of(splits) == size_of(splits - 1)) continue;
    const double waves = static_cast<double>(blocks * splits) / static_cast<double>(slots);
    best = std::max(best, fill[static_cast<size_t>(splits)] = waves / std::ceil(waves));
  }
  for (int64_t splits = 1; splits <= most; ++splits) {
    if (fill[static_cast<size_t>(splits)] >= 0.85 * best && fill[static_cast<size_t>(splits)] > 0.0)
      return splits;
  }
  return 1;
}

}  // namespace streambp::cuda
