// The settings of a pass as Python gives them, for passes and for predictions of them.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>

#include "streambp/backprop/settings.h"

namespace streambp::python {

struct PassRequest {
  Settings settings;
  std::set<std::string> fixed;  // names of the settings that were given, and of those that they fix
  int64_t micro_batches = 1;
  std::string first_labels = "refuse";
};

/// `given`: texts by the names of streambp/backprop/settings.h, and method, micro_batches, first_labels.
/// Throws InputError for unknown names, values out of range, and settings of the programs alone.
PassRequest read_pass_request(const std::map<std::string, std::string>& given);

}  // namespace streambp::python
