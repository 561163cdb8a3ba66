#include "reference/tape.h"

#include <utility>

#include "reference/require.h"

namespace streambp::STREAMBP_REFERENCE {

Matrix held_constant(const Matrix& x) {
  return x.unaryExpr([](const Scalar& entry) { return Scalar(real_part(entry)); });
}

Var Tape::leaf(Matrix value) {
  nodes_.push_back({std::move(value), Matrix(), nullptr});
  return Var(this, &nodes_.back());
}

Var Tape::record(const std::vector<Var>& inputs, Matrix value, Backward backward) {
  require(!inputs.empty() && inputs.front().tape_ != nullptr, "Tape::record",
          "expected inputs that are on a tape");
  Tape* tape = inputs.front().tape_;
  for (const Var& input : inputs) {
    require(input.tape_ == tape, "Tape::record", "expected inputs that are all on one tape");
  }
  tape->nodes_.push_back({std::move(value), Matrix(), std::move(backward)});
  return Var(tape, &tape->nodes_.back());
}

void Tape::backward(const Var& root, const Matrix& seed) {
  require(root.tape_ == this, "Tape::backward", "expected a root on this tape");
  require_shape("Tape::backward", "seed", seed, root.rows(), root.cols());
  for (Var::Node& node : nodes_) node.gradient = Matrix::Zero(node.value.rows(), node.value.cols());
  root.gradient() = seed;
  // An entry only uses entries written before it. Going backwards, an entry's gradient is therefore complete
  // when its turn comes; entries after the root keep zeros and hand on nothing.
  bool reached = false;
  for (auto node = nodes_.rbegin(); node != nodes_.rend(); ++node) {
    reached = reached || &*node == root.node_;
    if (reached && node->backward) node->backward(Var(this, &*node));
  }
}

}  // namespace streambp::STREAMBP_REFERENCE
