// Columns of heads, or of other groups, taken apart and put together again.
#pragma once

#include <vector>

#include "reference/tape.h"

namespace streambp::STREAMBP_REFERENCE {

/// first, first + 1, ..., as many as `count`: neighbouring rows or columns.
std::vector<int> numbers(int first, int count);

/// `groups` groups of neighbouring columns, each of which has parts of `sizes` columns one after another:
/// part by part, the columns of all groups.
std::vector<Var> split_groups(const Var& x, int groups, const std::vector<int>& sizes);

/// The reverse: of every group the parts one after another.
Var join_groups(const std::vector<Var>& parts, int groups);

}  // namespace streambp::STREAMBP_REFERENCE
