#include "verify/diagnose/trials/likely_pairs.h"

#include <algorithm>
#include <array>
#include <map>
#include <string>
#include <utility>

namespace streambp::verify {
namespace {

/// Pairs that are run: of all, and in addition of every kind with the best single mistake and with the
/// second.
constexpr size_t kPairs = 24;
constexpr std::array<size_t, 2> kOfEveryKind{3, 1};

}  // namespace

std::vector<MistakePair> likely_pairs(std::vector<SingleMistake> singles, const at::Tensor& truth,
                                      const FitGauge& gauge) {
  std::sort(singles.begin(), singles.end(),
            [](const SingleMistake& a, const SingleMistake& b) { return a.residual < b.residual; });
  std::vector<std::pair<MistakePair, size_t>> all;  // with the rank of the first
  for (size_t i = 0; i < singles.size(); ++i) {
    for (size_t j = i + 1; j < singles.size(); ++j) {
      const Hypothesis *first = singles[i].of, *second = singles[j].of;
      if (first->about == second->about) continue;
      const at::Tensor sum = singles[i].sketch + singles[j].sketch - truth;
      all.push_back({{first, second, gauge.sketch_residual(sum)}, i});
    }
  }
  std::sort(all.begin(), all.end(),
            [](const auto& a, const auto& b) { return a.first.residual < b.first.residual; });
  std::vector<MistakePair> chosen;
  std::map<std::pair<size_t, std::string>, size_t> of_kind;
  size_t of_all = 0;
  for (const auto& [pair, rank] : all) {
    const size_t most = rank < kOfEveryKind.size() ? kOfEveryKind[rank] : 0;
    if (of_all < kPairs) {
      ++of_all;
    } else if (of_kind[{rank, pair.second->about}] >= most) {
      continue;
    }
    ++of_kind[{rank, pair.second->about}];
    chosen.push_back(pair);
  }
  return chosen;
}

}  // namespace streambp::verify
