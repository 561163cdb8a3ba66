// The table of a sweep, from its records.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace streambp::bench {

/// A row for each record, in their order. `memory` is the peak beyond what was resident; ratios are to the
/// checkpoint method (standard where no record is of checkpoint) of the same run (model, dtype, device and
/// all settings but a method's own) at the same length, batch and objective, where it was measured; `% GEMM`
/// is the speed of the executed products against that of the machine's square product. `settings`, where
/// there are any, are the method's that are not the default and those in which runs differ. A chunk or a
/// method that was chosen rather than named says `auto`. A member that a record lacks shows as "-".
std::string sweep_table(const std::vector<nlohmann::json>& records);

/// 1 if any cell ended in an error, else 3 if any ran out of memory, else 0.
int exit_code_of(const std::vector<nlohmann::json>& records);

}  // namespace streambp::bench
