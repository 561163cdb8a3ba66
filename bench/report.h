// The table of a sweep, from its records.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace streambp::bench {

/// A row for each record, in their order. `memory` is the peak beyond what was resident; both ratios are to
/// the checkpoint method at the same length, batch and objective, where it was measured; `% GEMM` is the
/// speed of the executed products against that of the machine's square product. A chunk or a method that was
/// chosen rather than named says `auto`. A member that a record lacks
/// shows as "-".
std::string sweep_table(const std::vector<nlohmann::json>& records);

}  // namespace streambp::bench
