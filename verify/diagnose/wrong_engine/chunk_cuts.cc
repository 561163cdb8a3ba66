#include "verify/diagnose/wrong_engine/chunk_cuts.h"

#include <algorithm>
#include <fmt/format.h>
#include <set>

#include "streambp/model/scored.h"
#include "verify/diagnose/wrong_engine/wrong_batch.h"

namespace streambp::verify {
namespace {

/// Sizes of chunks that a stretch of tokens may be cut into.
std::vector<int64_t> sizes_of_chunks(int64_t length, const std::vector<int64_t>& given) {
  std::set<int64_t> all;
  for (int64_t size = 2; size < length; size *= 2) {
    if (size * 32 >= length) all.insert(size);
  }
  for (int64_t parts = 2; parts <= 4; ++parts) all.insert((length + parts - 1) / parts);
  all.insert(given.begin(), given.end());
  std::erase_if(all, [&](int64_t size) { return size < 1 || size >= length; });
  return {all.begin(), all.end()};
}

int64_t longest_sequence(const Batch& batch) {
  int64_t longest = 0;
  for (size_t i = 0; i + 1 < batch.offsets.size(); ++i)
    longest = std::max(longest, batch.offsets[i + 1] - batch.offsets[i]);
  return longest;
}

}  // namespace

std::vector<Cut> cuts_of(const Batch& batch, const std::vector<Cut::Along>& along,
                         const std::vector<int64_t>& given) {
  std::vector<Cut> all;
  for (const Cut::Along each : along) {
    if (each == Cut::Along::kRows) {
      for (int64_t size = 1; size < batch.padded_rows; ++size) all.push_back({each, size});
      continue;
    }
    const int64_t length = each == Cut::Along::kColumns  ? batch.padded_columns
                           : each == Cut::Along::kStream ? batch.size()
                           : each == Cut::Along::kFlat   ? batch.padded_rows * batch.padded_columns
                           : each == Cut::Along::kScored ? scored_indices(batch).size(0)
                                                         : longest_sequence(batch);
    for (const int64_t size : sizes_of_chunks(length, given)) all.push_back({each, size});
  }
  return all;
}

std::string short_text(const Cut& cut) {
  switch (cut.along) {
    case Cut::Along::kColumns:
      return fmt::format("{}-columns", cut.size);
    case Cut::Along::kStream:
      return fmt::format("{}-packed", cut.size);
    case Cut::Along::kFlat:
      return fmt::format("{}-flat", cut.size);
    case Cut::Along::kScored:
      return fmt::format("{}-scored", cut.size);
    case Cut::Along::kRows:
      return fmt::format("{}-rows", cut.size);
    case Cut::Along::kSequence:
      break;
  }
  return fmt::format("{}", cut.size);
}

std::string long_text(const Cut& cut) {
  switch (cut.along) {
    case Cut::Along::kColumns:
      return fmt::format("chunks of {} columns of the padded rows", cut.size);
    case Cut::Along::kStream:
      return fmt::format("chunks of {} tokens of the packed stream", cut.size);
    case Cut::Along::kFlat:
      return fmt::format("chunks of {} positions of the padded rows one after another", cut.size);
    case Cut::Along::kScored:
      return fmt::format("chunks of {} scored tokens", cut.size);
    case Cut::Along::kRows:
      return cut.size == 1 ? "single rows" : fmt::format("micro-batches of {} rows", cut.size);
    case Cut::Along::kSequence:
      break;
  }
  return fmt::format("chunks of {} tokens", cut.size);
}

}  // namespace streambp::verify
