// A case of the checks: a function of matrices, and where it is looked at.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "reference/config.h"
#include "reference/tape.h"

namespace streambp::STREAMBP_REFERENCE {

/// Inputs and expected values are doubles in either build, so that both are asked the same.
using DoubleMatrix = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

using DoubleWeights = std::map<std::string, DoubleMatrix>;

Matrix on_tape(const DoubleMatrix& x);

/// The function under check. The tape is given for functions that need constants of their own.
using Function = std::function<Var(Tape&, const std::vector<Var>&)>;

struct CheckOptions {
  double limit = 1e-13;  // permitted relative error of value and gradients in doubles: some hundred roundings
  std::uint64_t seed = 1;  // of the cotangent, of directions and of the choice of entries
  /// For every input the distance over which the function bends, in units of which the differences are taken.
  /// Empty: max(1, |x|).
  std::vector<double> length_scales;
  /// At most so many entries of each input have a complex step of their own, chosen at random where there are
  /// more, and each input one as a whole. 0: all inputs have one together.
  std::size_t max_entries = 64;
  /// Whether differences move all inputs at once, along one direction, instead of each by itself.
  bool move_together = false;
  /// The value of the function, computed by another formula; may be empty.
  std::function<DoubleMatrix(const std::vector<DoubleMatrix>&)> expected;
  /// Inputs that the function has to refuse with std::invalid_argument.
  std::vector<std::vector<DoubleMatrix>> refused;
};

struct Case {
  std::string name;
  Function f;
  std::vector<DoubleMatrix> inputs;
  CheckOptions options = {};
};

using Visit = std::function<void(const Case&)>;

/// Every operation over several shapes and extremes, and every objective by what it takes from the heads.
/// Both builds visit the same cases in the same order.
void list_ops(std::uint64_t seed, const Visit& visit);

/// Log-probabilities, loss and everything the heads say of a tiny model of each family, with and without
/// adapters, and of a critic, by every parameter, of which `entries` are moved one by one for the
/// log-probabilities, half as many for the loss, and a third for the heads: none of `entries` 1, where all
/// parameters are moved together instead.
void list_models(std::uint64_t seed, std::size_t entries, const Visit& visit);

/// What the gradients of a case are projected on, for a value of that shape: never ones, because the rows of
/// a softmax sum to a constant, and a gradient that is wrong by something constant would be hidden.
DoubleMatrix cotangent_of(const Case& c, Index rows, Index cols);

/// A matrix with independent entries, uniform between low and high.
DoubleMatrix random_matrix(Index rows, Index cols, std::uint64_t seed, double low = -1.5, double high = 1.5);

/// Weights for `config`, all different from what training starts with: norms are not ones and biases are not
/// zeros.
DoubleWeights random_weights(const ModelConfig& config, std::uint64_t seed);

/// One with rows * cols = size entries whose squares sum to 1: where an input of that shape is moved as a
/// whole.
DoubleMatrix random_direction(Index rows, Index cols, std::uint64_t seed);

}  // namespace streambp::STREAMBP_REFERENCE
