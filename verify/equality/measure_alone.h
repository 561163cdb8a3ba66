// Errors in rows that were not chosen by hand, where terms may cancel.
#pragma once

#include "verify/evaluation.h"

namespace streambp::verify {

/// measure(), but a loss below a thousandth, and a gradient with less than a thousandth of the largest one's
/// norm, count as if they had that.
/// In rows that were not chosen by hand the terms of one may cancel (two tokens with the same value leave
/// their query nothing to choose), and what remains of it is rounding errors of the terms.
EvaluationErrors measure_alone(const Evaluation& value, const Evaluation& truth);

}  // namespace streambp::verify
