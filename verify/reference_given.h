// Experts and rows that are given instead of chosen, in the reference's terms.
#pragma once

#include <ATen/ATen.h>

#include "reference/decoder.h"
#include "streambp/model/config/config.h"

namespace streambp::verify {

/// Of `experts` [n, L, k] of a sequence in all layers of `config`, or in those with experts, by layer and
/// token.
reference::GivenExperts given_experts(const at::Tensor& experts, const Config& config);

/// Of `picks` [n, L, k] of a sequence whose first token is in column `first` of its row, in all layers of
/// `config`, or in those with indexers of their own, by layer and token.
reference::GivenPicks given_picks(const at::Tensor& picks, int64_t first, const Config& config);

}  // namespace streambp::verify
