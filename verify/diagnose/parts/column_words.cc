#include "verify/diagnose/parts/column_words.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <fmt/format.h>
#include <fmt/ranges.h>
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

}  // namespace streambp::verify
