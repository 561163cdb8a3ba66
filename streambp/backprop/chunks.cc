#include "streambp/backprop/chunks.h"

#include <map>
#include <tuple>
#include <utility>

namespace streambp {

Chunks::Chunks(const Stream& stream, int64_t size, c10::Device device)
    : stream_(stream), size_(size), costs_memory_alone_(device.is_meta()) {
  to_run_ = to_run_by([](const Rows&) { return std::vector<int64_t>{}; });
}

std::vector<int64_t> Chunks::to_run_by(const std::function<std::vector<int64_t>(const Rows&)>& kind) const {
  std::vector<int64_t> run_ones;
  struct Longest {
    int64_t index = 0;
    int64_t prefix = -1;
  };
  std::map<std::tuple<std::vector<int64_t>, bool, std::vector<int64_t>>, Longest> cuts;
  for (int64_t i = 0; i < count(); ++i) {
    if (!costs_memory_alone_ || i == last()) {
      run_ones.push_back(i);
      continue;
    }
    const Rows run = rows(i);
    const int64_t prefix = run.begin - run.sequence_begin;
    Longest& longest = cuts[{run.offsets, prefix > 0, kind(run)}];
    if (prefix > longest.prefix) longest = {i, prefix};
  }
  for (const auto& [cut, longest] : cuts) run_ones.push_back(longest.index);
  std::sort(run_ones.begin(), run_ones.end());
  return run_ones;
}

}  // namespace streambp
