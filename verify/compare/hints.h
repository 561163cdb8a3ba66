// What may be the matter with gradients that differ from the truth by a factor.
#pragma once

#include "streambp/model/batch.h"
#include "verify/compare/compare.h"

namespace streambp::verify {

/// Where the gradients of sft have a factor in common, adds to `comparison.hints` which other divisors of the
/// loss of `batch` would give it.
void add_factor_hints(const Batch& batch, const CompareOptions& options, Comparison& comparison);

}  // namespace streambp::verify
