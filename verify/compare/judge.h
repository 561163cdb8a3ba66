// From gradients and a truth to a verdict: which dtype to judge by, and how often to measure its noise.
#pragma once

#include "verify/compare/report.h"
#include "verify/compare/truth.h"

namespace streambp::verify {

/// Judges by options.tolerance where it is given, else by the rule of verify/compare/compare.h in
/// options.compute_dtype, or in the narrowest dtype of the gradients:
/// - In a low precision the truth is that of weights rounded to it, or of those in the file if they fit
/// better.
/// - Noise is measured once where that makes them exact, up to NoiseRuns::kRuns times before anything else is
///   said of them.
/// - Gradients that are wrong in their own dtype, but exact in a narrower one that all their numbers belong
/// to,
///   are undecided: they may have been computed in it and written wide, or rounded where they should not have
///   been. So are float32 gradients whose errors are just what bfloat16's noise is. A common factor is named
///   in either case. options.compute_dtype decides.
/// - Gradients that agree with a truth that is all zero, or of a model that gives every token the same
///   probability, are undecided: nearly any code would give them.
/// Leaves `truth` with the weights that the verdict is about: in a low precision those rounded to it.
CompareReport judge(Truth& truth, const CompareOptions& options, const Tensors& gradients);

}  // namespace streambp::verify
