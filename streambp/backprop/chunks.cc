#include "streambp/backprop/chunks.h"

#include <map>
#include <utility>

namespace streambp {

Chunks::Chunks(const Stream& stream, int64_t size, c10::Device device) : stream_(stream), size_(size) {
  struct Longest {
    int64_t index = 0;
    int64_t prefix = -1;
  };
  std::map<std::pair<std::vector<int64_t>, bool>, Longest> cuts;
  for (int64_t i = 0; i < count(); ++i) {
    if (!device.is_meta() || i == last()) {
      to_run_.push_back(i);
      continue;
    }
    const Rows run = rows(i);
    const int64_t prefix = run.begin - run.sequence_begin;
    Longest& longest = cuts[{run.offsets, prefix > 0}];
    if (prefix > longest.prefix) longest = {i, prefix};
  }
  for (const auto& [cut, longest] : cuts) to_run_.push_back(longest.index);
  std::sort(to_run_.begin(), to_run_.end());
}

}  // namespace streambp
