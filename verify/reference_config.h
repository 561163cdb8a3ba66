// A model's settings in the terms of the reference.
#pragma once

#include "reference/config.h"
#include "streambp/model/config/config.h"

namespace streambp::verify {

/// The settings of `config` in the reference's terms, without adapters.
reference::ModelConfig reference_config(const Config& config);

}  // namespace streambp::verify
