// Which linear maps "all-linear" stands for.
#pragma once

#include <string>
#include <vector>

#include "streambp/model/config/config.h"

namespace streambp {

/// A layer's linear maps in attention.
std::vector<std::string> attention_names(const Config& config);

/// Linear maps that kAllLinear stands for outside a mixture: the head, and a critic's, excluded.
std::vector<std::string> all_linear_names(const Config& config);

}  // namespace streambp
