#include "streambp/near_names.h"

#include <algorithm>
#include <cctype>
#include <fmt/ranges.h>
#include <numeric>
#include <utility>

namespace streambp {
namespace {

std::string lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return text;
}

/// Letters to be changed, put in or left out (Levenshtein).
size_t distance(const std::string& a, const std::string& b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 0; i < a.size(); ++i) {
    size_t diagonal = std::exchange(row[0], i + 1);
    for (size_t j = 0; j < b.size(); ++j) {
      const size_t changed = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = std::exchange(row[j + 1], std::min({changed, row[j] + 1, row[j + 1] + 1}));
    }
  }
  return row.back();
}

}  // namespace

std::string did_you_mean(const std::string& typed, const std::vector<std::string>& names) {
  constexpr size_t kMost = 3;
  constexpr size_t kFewestLetters = 3;  // of a beginning: two would be that of many
  const std::string wanted = lower(typed);
  std::vector<std::string> near;
  for (const std::string& name : names) {
    if (wanted.size() >= kFewestLetters && lower(name).starts_with(wanted)) near.push_back(name);
  }
  for (size_t letters = 1; letters <= std::min<size_t>(2, wanted.size() / 2) && near.empty(); ++letters) {
    for (const std::string& name : names) {
      if (distance(wanted, lower(name)) == letters) near.push_back(name);
    }
  }
  if (near.empty()) return {};
  near.resize(std::min(near.size(), kMost));
  return fmt::format("; did you mean {}?", fmt::join(near, " or "));
}

}  // namespace streambp
