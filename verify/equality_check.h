// All comparisons of one row of the equality sweep.
#pragma once

#include "verify/equality.h"
#include "verify/equality_report.h"
#include "verify/equality_subject.h"

namespace streambp {

/// Every method and setting against standard and against the reference; the same to the last bit where the
/// arithmetic is the same; gradients that add up, over runs and over micro-batches.
EqualityRow check_row(const EqualityOptions& options, const RowName& name);

}  // namespace streambp
