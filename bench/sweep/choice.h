// The member `choice` of a record.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "streambp/plan/choice.h"

namespace streambp::bench {

/// plan::describe() and, where nothing fits, which flags may help.
std::string choice_reason(const plan::Choice& choice);

/// asked, budget_bytes, host_budget_bytes (null: not limited), predicted_peak_bytes and relative_cost of the
/// chosen configuration (null where nothing fits), reason, and considered, a list of {method, settings,
/// chunk, predicted_peak_bytes, relative_cost, fits, why_not}.
nlohmann::json choice_member(const plan::Choice& choice);

}  // namespace streambp::bench
