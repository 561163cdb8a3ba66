// A tiny model of each family, for the checks by differences.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "reference/config.h"

namespace streambp::STREAMBP_REFERENCE {

/// Two layers of sizes that differ from each other, with nothing that only some families have.
ModelConfig tiny_model();

/// One layer of either kind, in groups of which two heads share B and C.
ModelConfig tiny_granite_hybrid();

/// A layer with a window, which rotates, and one without either.
ModelConfig tiny_cohere2();

/// A convolution, and attention.
ModelConfig tiny_lfm2();

/// A layer of each kind.
ModelConfig tiny_nemotron_h();

/// By the family's name, with settings that act within the few tokens of a tiny batch.
std::vector<std::pair<std::string, ModelConfig>> tiny_families();

}  // namespace streambp::STREAMBP_REFERENCE
