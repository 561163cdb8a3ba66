#include "bench/sweep/choice.h"

#include "bench/records/json_members.h"
#include "bench/sweep/setting_members.h"

namespace streambp::bench {

using nlohmann::json;

std::string choice_reason(const plan::Choice& choice) {
  std::string text = plan::describe(choice);
  if (choice.chosen || choice.leanest() == nullptr) return text;
  return text +
         fmt::format(
             "; expected a larger --budget, {}or a shorter --seq-len, of which streambp-bench max-length "
             "finds the longest",
             choice.budget.host > 0 ? "" : "a --host-budget with which --offload host is tried, ");
}

json choice_member(const plan::Choice& choice) {
  json considered = json::array();
  for (const plan::Considered& one : choice.considered) {
    considered.push_back(
        {{"method", method_name(one.settings.method)},
         {"settings", searched_setting_members(one.settings)},
         {"chunk", positive_or_null(one.settings.chunk)},
         {"predicted_peak_bytes", one.predicted ? json(one.predicted->peak_bytes) : json(nullptr)},
         {"relative_cost", one.cost},
         {"fits", one.fits},
         {"why_not", one.why_not.empty() ? json(nullptr) : json(one.why_not)}});
  }
  json member{{"asked", "auto"},
              {"budget_bytes", choice.budget.device},
              {"host_budget_bytes", positive_or_null(choice.budget.host)},
              {"predicted_peak_bytes", nullptr},
              {"relative_cost", nullptr},
              {"reason", choice_reason(choice)},
              {"considered", considered}};
  if (choice.chosen) {
    const plan::Considered& one = choice.considered[*choice.chosen];
    member["predicted_peak_bytes"] = one.predicted->peak_bytes;
    member["relative_cost"] = one.cost;
  }
  return member;
}

}  // namespace streambp::bench
