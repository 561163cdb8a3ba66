// What files of a model call its parameters, where that is not what they are called here.
#pragma once

#include <string>

#include "streambp/model/config/config.h"

namespace streambp {

/// What files call a parameter: its own name, but for the mixtures of Mixtral and its kin, and what some
/// families have outside of layers.
std::string stored_name(const Config& config, const std::string& parameter);

/// The parameter that files call `stored`: the inverse of stored_name.
std::string parameter_name(const Config& config, const std::string& stored);

/// What transformers' class calls the module model.norm: an adapter's folder has its names.
std::string last_norm_of_class(const Config& config);

}  // namespace streambp
