// The angles by which rotary position embedding rotates a head's pairs from one token to the next.
#pragma once

#include <cstdint>
#include <vector>

#include "streambp/model/config/config.h"

namespace streambp {

/// Of Batch::sequence_inputs: the columns of the pass that each sequence's trainer runs it in, where these
/// are several (KTO's rows and those of its estimate).
inline constexpr const char* kPassColumns = "pass_columns";

/// The inverse frequencies of `rope` for heads of which `rotary_dim` (even, at least 2) entries turn:
/// [rotary_dim / 2], radians a position, as transformers' modeling_rope_utils.py computes them. `length` is 1
/// + the greatest position of the batch: dynamic scaling grows with it, longrope chooses its factors by it,
/// the other types don't look at it.
std::vector<double> rope_inverse_frequencies(const RopeSettings& rope, int64_t rotary_dim, int64_t length);

}  // namespace streambp
