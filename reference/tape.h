// Reverse-mode automatic differentiation on matrices: the ground on which the reference stands.
//
// A computation is written down while it runs. Every operation stores its value and a closure that knows the
// chain rule of that one operation; walking the record backwards and calling the closures gives all
// gradients.
#pragma once

#include <Eigen/Dense>
#include <deque>
#include <functional>
#include <vector>

#include "reference/scalar.h"

namespace streambp::STREAMBP_REFERENCE {

using Matrix = Eigen::Matrix<Scalar, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using Vector = Eigen::Matrix<Scalar, Eigen::Dynamic, 1>;
using RowVector = Eigen::Matrix<Scalar, 1, Eigen::Dynamic>;
using Index = Eigen::Index;

/// A value that no gradient goes through, as the operations that ask for one take it.
Matrix held_constant(const Matrix& x);

class Tape;

/// A handle to one entry of a tape: a matrix and, after Tape::backward, the gradient of the root with respect
/// to it. Copies refer to the same entry. The tape must outlive its handles.
class Var {
 public:
  Var() = default;

  const Matrix& value() const { return node_->value; }
  Index rows() const { return node_->value.rows(); }
  Index cols() const { return node_->value.cols(); }

  /// The gradient, with the shape of the value. Closures add to it and never assign, because a value may be
  /// used more than once and the contributions of its uses sum.
  Matrix& gradient() const { return node_->gradient; }

 private:
  friend class Tape;

  struct Node {
    Matrix value;
    Matrix gradient;
    std::function<void(const Var& self)> backward;  // empty for a leaf
  };

  Var(Tape* tape, Node* node) : tape_(tape), node_(node) {}

  Tape* tape_ = nullptr;
  Node* node_ = nullptr;
};

/// The chain rule of one operation y = f(a, b, ...): reads y.gradient() and adds dL/da to a.gradient(), and
/// so on.
using Backward = std::function<void(const Var& y)>;

/// The record of one computation, in the order in which it ran.
class Tape {
 public:
  Tape() = default;
  Tape(const Tape&) = delete;  // handles and closures point into the tape
  Tape& operator=(const Tape&) = delete;

  /// An input: nothing lies before it.
  Var leaf(Matrix value);

  /// Writes down the result of an operation on `inputs` (at least one), with its chain rule. The entry goes
  /// on the inputs' tape. Throws std::invalid_argument if there are none, or if they are on different tapes.
  static Var record(const std::vector<Var>& inputs, Matrix value, Backward backward);

  /// Sets the gradient of every entry to that of <seed, root>. `seed` has the shape of `root`
  /// (std::invalid_argument if not). What an earlier call left is discarded. Entries that the root does not
  /// depend on get zeros.
  void backward(const Var& root, const Matrix& seed);

 private:
  std::deque<Var::Node> nodes_;  // a deque, because it does not move its elements when it grows
};

}  // namespace streambp::STREAMBP_REFERENCE
