#pragma once

#include <string>
#include <vector>

#include "streambp/backprop/method.h"
#include "streambp/backprop/settings.h"

namespace streambp {

/// Every method, with the settings of `asked` that it takes.
inline std::vector<Settings> every_method(const Settings& asked) {
  std::vector<Settings> all;
  for (const std::string& name : method_names()) all.push_back(settings_for(parse_method(name), asked));
  return all;
}

}  // namespace streambp
