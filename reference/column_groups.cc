#include "reference/column_groups.h"

#include <cstddef>
#include <numeric>

#include "reference/ops/ops.h"

namespace streambp::STREAMBP_REFERENCE {

std::vector<int> numbers(int first, int count) {
  std::vector<int> all(static_cast<std::size_t>(count));
  std::iota(all.begin(), all.end(), first);
  return all;
}

std::vector<Var> split_groups(const Var& x, int groups, const std::vector<int>& sizes) {
  const int group = std::accumulate(sizes.begin(), sizes.end(), 0);
  std::vector<Var> parts;
  int first = 0;
  for (int size : sizes) {
    std::vector<int> columns;
    for (int i = 0; i < groups * size; ++i) columns.push_back(i / size * group + first + i % size);
    parts.push_back(gather_columns(x, columns));
    first += size;
  }
  return parts;
}

Var join_groups(const std::vector<Var>& parts, int groups) {
  std::vector<Var> transposed;
  std::vector<int> first = {0};  // columns of the parts side by side
  for (const Var& part : parts) {
    transposed.push_back(transpose(part));
    first.push_back(first.back() + static_cast<int>(part.cols()));
  }
  std::vector<int> columns;
  for (int group = 0; group < groups; ++group) {
    for (std::size_t i = 0; i < parts.size(); ++i) {
      const int size = static_cast<int>(parts[i].cols()) / groups;
      for (int j = 0; j < size; ++j) columns.push_back(first[i] + group * size + j);
    }
  }
  return transpose(gather_rows(concat_rows(transposed), columns));
}

}  // namespace streambp::STREAMBP_REFERENCE
