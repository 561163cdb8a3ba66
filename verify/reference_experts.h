// Experts that are given instead of chosen, in the reference's terms.
#pragma once

#include <ATen/ATen.h>

#include "reference/decoder.h"
#include "streambp/model/config/config.h"

namespace streambp::verify {

/// Of `experts` [n, L, k] of a sequence in all layers of `config`, or in those with experts, by layer and
/// token.
reference::GivenExperts given_experts(const at::Tensor& experts, const Config& config);

}  // namespace streambp::verify
