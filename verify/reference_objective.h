// The library's objectives in the reference's terms.
#pragma once

#include <map>
#include <string>

#include "reference/model.h"
#include "streambp/objective/objective.h"

namespace streambp::verify {

/// What objective `name` under `given` means for the reference on the whole of `batch`. `teacher_logits` [M,
/// V] are those of its scored tokens (distillation). Throws InputError as complete_options does, and
/// std::invalid_argument as the reference's objectives do.
reference::TokenObjective reference_objective(const std::string& name, const Batch& batch,
                                              const std::map<std::string, std::string>& given,
                                              const reference::Matrix& teacher_logits = {});

}  // namespace streambp::verify
