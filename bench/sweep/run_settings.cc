#include "bench/sweep/run_settings.h"

#include "streambp/backprop/settings.h"

namespace streambp::bench {

nlohmann::json run_settings(const nlohmann::json& record) {
  nlohmann::json run = nlohmann::json::object();
  if (const auto settings = record.find("settings"); settings != record.end() && settings->is_object()) {
    run = *settings;
    for (const SettingKind& kind : setting_kinds()) run.erase(kind.name);
    for (const char* not_of_it : {"repeats", "budget", "host_budget"}) run.erase(not_of_it);
  }
  for (const char* member : {"model", "dtype", "device"}) {
    if (record.contains(member)) run[member] = record.at(member);
  }
  return run;
}

}  // namespace streambp::bench
