#include "bench/ranks/ranks_longest.h"

#include <algorithm>
#include <utility>

#include "streambp/plan/longest.h"

namespace streambp::bench {
namespace {

constexpr int64_t kResolution = 200;

}  // namespace

std::optional<LongestOnRanks> longest_on_ranks(Communicator& communicator, const Bench& bench,
                                               const Cell& cell, const Sharing& sharing, int64_t budget) {
  std::optional<LongestOnRanks> best;
  const auto fits = [&](int64_t seq_len) {
    LongestOnRanks tried{cell, {}};
    tried.cell.seq_len = seq_len;
    tried.run = run_on_rank(communicator, bench, tried.cell, sharing, /*repeats=*/1);
    if (tried.run.peak_bytes > budget) return false;
    best = std::move(tried);
    return true;
  };
  int64_t low = plan::kShortest;
  if (!fits(low)) return std::nullopt;
  int64_t high = 4 * low;
  while (high < plan::kLongest && fits(high)) high = 4 * std::exchange(low, high);
  while (high - low > std::max<int64_t>(1, low / kResolution)) {
    const int64_t middle = low + (high - low) / 2;
    (fits(middle) ? low : high) = middle;
  }
  return best;
}

StepOnPaper step_on_paper(const RanksRun& run, const Rates& rates) {
  StepOnPaper step{.products = run.operations / rates.operations,
                   .sent_by_pass = static_cast<double>(sent_bytes(run.pass)) / rates.bytes,
                   .sent_by_step = static_cast<double>(sent_bytes(run.step)) / rates.bytes};
  const double pass =
      run.sharing.overlaps ? std::max(step.products, step.sent_by_pass) : step.products + step.sent_by_pass;
  step.all = pass + step.sent_by_step;
  return step;
}

}  // namespace streambp::bench
