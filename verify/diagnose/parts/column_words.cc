#include "verify/diagnose/parts/column_words.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <map>
#include <vector>

namespace streambp::verify {
namespace {

constexpr size_t kMostColumnRuns = 8;
/// How alike weights times tokens are.
constexpr double kSameColumns = 1e-4;

struct ColumnRun {
  int64_t first, last, tokens;
  double weight, error;
};

}  // namespace

std::optional<ColumnWords> words_of_columns(const at::Tensor& columns, const at::Tensor& weights,
                                            const at::Tensor& errors) {
  std::vector<ColumnRun> runs;
  const at::Tensor order = at::argsort(columns);
  for (int64_t i = 0; i < order.size(0); ++i) {
    const int64_t at = order[i].item<int64_t>(), column = columns[at].item<int64_t>();
    const double weight = weights[at].item<double>(), error = errors[at].item<double>();
    if (runs.empty() || std::abs(weight - runs.back().weight) > error + runs.back().error) {
      if (runs.size() == kMostColumnRuns || (!runs.empty() && runs.back().last == column))
        return std::nullopt;
      runs.push_back({column, column, 0, weight, error});
    }
    runs.back().last = column;
    ++runs.back().tokens;
  }
  if (runs.size() < 2) return std::nullopt;
  const double share = static_cast<double>(order.size(0)) / static_cast<double>(runs.size());
  const bool means = std::all_of(runs.begin(), runs.end(), [&](const ColumnRun& run) {
    return std::abs(run.weight * static_cast<double>(run.tokens) / share - 1.0) <= kSameColumns;
  });
  std::vector<std::string> texts;
  for (const ColumnRun& run : runs)
    texts.push_back(means ? fmt::format("{} to {}", run.first, run.last)
                          : fmt::format("{:.4g} times in columns {} to {}", run.weight, run.first, run.last));
  if (means)
    return ColumnWords{
        "mean-of-means-of-columns",
        fmt::format("the loss is the mean of the means of columns {}", fmt::join(texts, " and "))};
  return ColumnWords{"columns-weighted", fmt::format("tokens count {}", fmt::join(texts, ", "))};
}

std::optional<ColumnWords> words_of_ends(const at::Tensor& sequence, const at::Tensor& gone) {
  std::map<int64_t, std::vector<bool>> by_sequence;
  for (int64_t i = 0; i < sequence.numel(); ++i)
    by_sequence[sequence[i].item<int64_t>()].push_back(gone[i].item<bool>());
  for (const bool from_front : {true, false}) {
    std::ptrdiff_t count = 0;
    bool alike = true;
    for (auto& [number, all] : by_sequence) {
      if (!from_front) std::reverse(all.begin(), all.end());
      const auto left = std::find(all.begin(), all.end(), false);
      const std::ptrdiff_t own = left - all.begin();
      alike =
          alike && own > 0 && (count == 0 || own == count) && std::find(left, all.end(), true) == all.end();
      count = own;
    }
    if (!alike || count == 0) continue;
    const std::string which = from_front ? "first" : "last";
    return ColumnWords{which + "-scored-tokens-lost",
                       count == 1
                           ? fmt::format("the {} scored token of each row is not scored (it {})", which,
                                         from_front ? "starts one token late" : "ends one token early")
                           : fmt::format("the {} {} scored tokens of each row are not scored", which, count)};
  }
  return std::nullopt;
}

}  // namespace streambp::verify
