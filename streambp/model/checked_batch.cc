#include "streambp/model/checked_batch.h"

#include <algorithm>
#include <vector>

#include "streambp/error.h"
#include "streambp/model/given_experts.h"
#include "streambp/model/given_picks.h"

namespace streambp {

void require_plain_positions(const Config& config, const Batch& batch) {
  const std::vector<int64_t>& rates = config.compressed.rates;
  const bool compresses = std::any_of(rates.begin(), rates.end(), [](int64_t rate) { return rate > 0; });
  if (!compresses && !config.picks_key_blocks()) return;
  for (size_t s = 0; s + 1 < batch.offsets.size(); ++s) {
    const int64_t begin = batch.offsets[s], length = batch.offsets[s + 1] - begin;
    const at::Tensor positions = batch.positions.narrow(0, begin, length);
    if (!at::equal(positions - positions[0], at::arange(length, positions.options())))
      throw InputError(
          "position_ids of sequence {}: {} has layers that {} blocks of rows, expected positions that rise "
          "by 1 "
          "in each sequence",
          s, config.family, compresses ? "compress" : "see some");
  }
}

void check_batch(const Config& config, const Batch& batch) {
  require_plain_positions(config, batch);
  given_choices(config, batch, at::kCPU);
  check_given_picks(config, batch);
}

}  // namespace streambp
