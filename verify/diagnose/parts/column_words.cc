#include "verify/diagnose/parts/column_words.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <map>
#include <utility>
#include <vector>

#include "verify/diagnose/parts/row_words.h"

namespace streambp::verify {
namespace {

constexpr size_t kMostColumnRuns = 8;
/// Columns that have to be there for one in which no token is scored.
constexpr size_t kColumnsForOneLost = 4;
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

std::optional<ColumnWords> words_of_lost_columns(const at::Tensor& columns, const at::Tensor& gone) {
  std::map<int64_t, std::pair<int64_t, int64_t>> by_column;  // gone, all
  for (int64_t i = 0; i < columns.numel(); ++i) {
    auto& [lost, all] = by_column[columns[i].item<int64_t>()];
    lost += gone[i].item<bool>() ? 1 : 0;
    ++all;
  }
  std::vector<int64_t> lost_columns;
  int64_t tokens = 0;
  for (const auto& [column, counts] : by_column) {
    if (counts.first == 0) continue;
    if (counts.first != counts.second) return std::nullopt;
    lost_columns.push_back(column);
    tokens += counts.first;
  }
  if (tokens < 2 || kColumnsForOneLost * lost_columns.size() > by_column.size()) return std::nullopt;
  return ColumnWords{
      "columns-lost",
      fmt::format("the tokens of {} are not scored: each the last token of a chunk of columns, as where "
                  "labels are shifted within chunks",
                  list_text("column", lost_columns))};
}

}  // namespace streambp::verify
