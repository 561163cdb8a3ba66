// From the hyperparameters of a golden case, under TRL's names, to the options of an objective.
#pragma once

#include <map>
#include <string>

#include "verify/golden_cases/case_file.h"

namespace streambp::verify {

/// Whether golden cases of this objective can be read.
bool has_golden_options(const std::string& objective);

/// The options that the hyperparameters of `file` stand for. Throws Unsupported, naming key and value, for
/// whatever changes the loss and is not known here: nothing is ignored.
std::map<std::string, std::string> golden_options(const std::string& objective, const CaseFile& file);

}  // namespace streambp::verify
