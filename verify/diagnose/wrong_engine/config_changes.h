// Settings of config.json that other implementations of a model get wrong, or leave at their defaults.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "streambp/model/config/config.h"

namespace streambp::verify {

struct ConfigChange {
  std::string name;
  std::string sentence;
  /// Changes nothing where the model has no such setting.
  std::function<void(Config& config)> change;
};

const std::vector<ConfigChange>& config_changes();

/// Switches of config.json that are the other way, and counts that are others.
std::vector<ConfigChange> config_switches();

/// `config` with the change of this name.
Config changed_config(Config config, const std::string& name);

/// A number of config.json that may be another one.
struct ConfigNumber {
  const char* name;
  const char* text;  // "rope_theta"
  double& (*of)(Config& config);
};

const std::vector<ConfigNumber>& config_numbers();
const ConfigNumber& config_number(const std::string& name);

}  // namespace streambp::verify
