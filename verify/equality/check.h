// All comparisons of one row of the equality sweep.
#pragma once

#include "verify/equality/equality.h"
#include "verify/equality/report.h"
#include "verify/equality/subject.h"

namespace streambp::verify {

/// Every method and setting against standard and against the reference; the same to the last bit where the
/// arithmetic is the same; gradients that add up, over runs and over micro-batches.
EqualityRow check_row(const EqualityOptions& options, const RowName& name);

}  // namespace streambp::verify
