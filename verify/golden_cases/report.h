// What `streambp-verify goldens` prints of its cases.
#pragma once

#include <string>
#include <vector>

#include "verify/golden_cases/check_case.h"
#include "verify/streaming_table.h"

namespace streambp::verify {

/// A table with a row for each case, as wide as the names of `cases` need.
StreamingTable golden_table(const std::vector<GoldenCase>& cases);

/// The row of golden_table.
std::vector<std::string> golden_row(const GoldenResult& result);

/// A JSON object without its end of line.
std::string golden_json(const GoldenResult& result, double limit);

/// What was too far off and in which run; the worst of each name, the worst first, and before all gradients
/// what is no gradient (its name is in parentheses): it explains them.
void print_golden_failures(const GoldenResult& result, double limit);

}  // namespace streambp::verify
