// The diagnosis of a comparison: what somebody's gradients are held against, as the command line names it.
#pragma once

#include "verify/compare/truth.h"
#include "verify/diagnose/diagnose.h"

namespace streambp::verify {

/// After `comparison` of `gradients` with `truth`, whose weights may have been rounded by it. Throws
/// InputError as diagnose does.
Diagnosis diagnose_comparison(Truth& truth, const CompareOptions& options, const Comparison& comparison,
                              const Tensors& gradients);

}  // namespace streambp::verify
