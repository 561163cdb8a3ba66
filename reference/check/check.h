// How the reference is itself checked: one call puts a function of matrices through everything that is
// expected of an operation. Findings are returned, so that a test suite and a command-line driver can use the
// same checks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "reference/model.h"
#include "reference/tape.h"

namespace streambp::reference {

struct CheckResult {
  std::string name;
  double value_error = 0.0;     // see check_gradient; 0 where no independent value was given
  double gradient_error = 0.0;  // see check_gradient
  double limit = 0.0;           // of the gradient error; values are held to kValueLimit
  bool passed = false;
  std::string detail;  // what failed, or the entry with the largest gradient error
};

/// The function under check. The tape is given for functions that need constants of their own.
using Function = std::function<Var(Tape&, const std::vector<Var>&)>;

/// Permitted value error: a few dozen roundings of a double.
inline constexpr double kValueLimit = 1e-13;

struct CheckOptions {
  std::uint64_t seed = 1;  // of the cotangent and of the choice of entries
  double limit = 1e-9;     // permitted gradient error
  /// For every input the distance over which the function bends, in units of which the differences are taken.
  /// Empty: max(1, |x|).
  std::vector<double> length_scales;
  /// At most so many entries of each input are checked, chosen at random where there are more.
  std::size_t max_entries = 64;
  /// The value of the function, computed by another formula; may be empty.
  std::function<Matrix(const std::vector<Matrix>&)> expected;
  /// Inputs that the function has to refuse with std::invalid_argument.
  std::vector<std::vector<Matrix>> refused;
};

/// Checks `f` at `inputs`:
/// - Value: max |f - expected| <= kValueLimit max |expected|.
/// - Gradient, projected on a random cotangent w (never ones: the rows of a softmax sum to a constant, and a
/// gradient that
///   is wrong by something constant would be hidden). For input x, entry by entry, with a the tape's gradient
///   of <w, f> and n its six-point central difference:  max |a - n| <= limit max(max |n|, 1e-3 max |f|). The
///   second term is there for gradients that vanish or nearly do, which differences can only know to the
///   rounding of f. Steps are h = eps^(1/7) times the length scale, where truncation and rounding are both
///   about 4e-14, and a quarter of that, for functions that bend more sharply; the nearer of the two counts.
///   A wrong gradient is far from both.
/// - A cotangent of zeros gives a gradient of exactly zeros.
/// - A NaN in the entry on which the result depends most gives a NaN in the result.
/// - A repetition on a new tape is bit-equal, in value and gradient.
/// - Every one of options.refused is refused.
/// Errors of a failed comparison of shapes are reported as NaN, which passes no gate.
CheckResult check_gradient(const std::string& name, const Function& f, const std::vector<Matrix>& inputs,
                           const CheckOptions& options = {});

/// Every operation over several shapes and extremes, and every objective by what it takes from the heads.
/// Takes a second or less.
std::vector<CheckResult> check_all_ops(std::uint64_t seed);

/// Log-probabilities, loss and everything the heads say of a tiny model of each family, with and without
/// adapters, and of a critic, differentiated by every parameter.
std::vector<CheckResult> check_models(std::uint64_t seed);

/// A matrix with independent entries, uniform between low and high.
Matrix random_matrix(Index rows, Index cols, std::uint64_t seed, double low = -1.5, double high = 1.5);

/// Weights for `config`, all different from what training starts with: norms are not ones and biases are not
/// zeros.
Weights random_weights(const ModelConfig& config, std::uint64_t seed);

}  // namespace streambp::reference
