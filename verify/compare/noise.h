// What a low precision does to correct gradients, measured on the very weights and batch that are compared.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "verify/compare/compare.h"
#include "verify/compare/truth.h"

namespace streambp::verify {

/// Whether every weight is a number of `dtype`.
bool are_numbers_of(at::ScalarType dtype, const Model& model);

/// Rounds every weight of the models to `dtype` and back, as a model held in it has them.
void round_weights(Truth& truth, at::ScalarType dtype);

/// Gives every weight the value again that it was opened with.
void restore_weights(Truth& truth);

/// The runs that a comparison in a low precision asks for, one at a time. They cost a pass each, but the last
/// two, whose weights are moved by a unit in the last place at random: those have a truth of their own.
class NoiseRuns {
 public:
  static constexpr int kRuns = 4;

  /// Of `truth`'s model, batch and objective, opened anew; `chunk`: of the float64 runs (0: auto).
  NoiseRuns(const Truth& truth, at::ScalarType dtype, int64_t chunk)
      : truth_(truth), dtype_(dtype), chunk_(chunk) {}

  /// The next run, against `exact`, the float64 gradients at weights rounded to the dtype. The first is the
  /// project's `standard`, or `streambp` for batches of more than 4,096 tokens; the second is `streambp` with
  /// a quarter of the batch for a chunk, which sums in another order.
  NoiseSample next(const Tensors& exact);

  /// The gradients of run 0 or 1 themselves.
  Tensors gradients(int run) const;

  int done() const { return done_; }

 private:
  const Truth& truth_;
  at::ScalarType dtype_;
  int64_t chunk_;
  int done_ = 0;
};

/// Where the choice of experts hangs on rounding errors.
struct NearTies {
  int64_t tokens = 0;
  int64_t near = 0;                 // tokens that are near a tie in some layer
  std::vector<int64_t> layers;      // where
  std::set<std::string> unsettled;  // the parameters of the experts on both sides of the ties
};

/// A token of a mixture's layer is near a tie if it chooses other experts in `dtype` than in float64, or if
/// the log-probabilities of its last chosen and its first left-out expert are no further apart than four
/// times the median error of a log-probability in `dtype`. Nothing for a model without experts.
NearTies find_near_ties(Truth& exact, at::ScalarType dtype);

}  // namespace streambp::verify
