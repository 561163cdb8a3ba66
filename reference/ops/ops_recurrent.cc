#include "reference/ops/ops_recurrent.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "reference/require.h"

namespace streambp::STREAMBP_REFERENCE {
namespace {

/// Calls visit(t, j, row) for every row t and tap j that lies on a row.
template <typename Visit>
void for_each_tap(Index length, Index taps, Visit visit) {
  for (Index t = 0; t < length; ++t) {
    for (Index j = std::max<Index>(0, taps - 1 - t); j < taps; ++j) visit(t, j, t - (taps - 1) + j);
  }
}

/// The inputs of the rule, and the entries of a key and of a value.
struct Operands {
  Var q, k, v, g, beta;
  Index key_size, value_size;
  bool replaces;     // what the memory answers to a key; else it adds to it
  bool by_channels;  // whether every entry of a key has a decay of its own

  /// The first column of a head's key, of which several heads may have the same, and of its value.
  Index key_column(Index head) const { return head / (beta.cols() / (q.cols() / key_size)) * key_size; }
  /// Of its decays, and how many rows of the memory have the same.
  Index decay_column(Index head) const { return by_channels ? head * key_size : head; }
  Index rows_of_decay() const { return by_channels ? 1 : key_size; }
  Index value_column(Index head) const { return head * value_size; }
};

/// By what the rows of a head's memory are multiplied at a token.
RowVector decays(const Operands& in, Index head, Index t) {
  RowVector factors(in.key_size);
  for (Index row = 0; row < in.key_size; ++row)
    factors(row) = math::exp(in.g.value()(t, in.decay_column(head) + row / in.rows_of_decay()));
  return factors;
}

/// What a head remembers at one token, after it has forgotten and after it has learned; see the header.
struct Memory {
  Matrix forgotten, learned;  // R_t, S_t
  RowVector error;            // v_t - R_t^T k_t
};

/// The outputs of one head, put into its columns of `value`; gives its memory of every token.
std::vector<Memory> run(const Operands& in, Index head, Matrix& value) {
  const Index at_key = in.key_column(head), at_value = in.value_column(head);
  std::vector<Memory> memories;
  Matrix state = Matrix::Zero(in.key_size, in.value_size);
  for (Index t = 0; t < value.rows(); ++t) {
    const auto query = in.q.value().row(t).segment(at_key, in.key_size);
    const auto key = in.k.value().row(t).segment(at_key, in.key_size);
    const Matrix forgotten = decays(in, head, t).asDiagonal() * state;
    RowVector error = in.v.value().row(t).segment(at_value, in.value_size);
    if (in.replaces) error -= key * forgotten;
    state = forgotten + key.transpose() * (in.beta.value()(t, head) * error);
    value.row(t).segment(at_value, in.value_size) = query * state;
    memories.push_back({forgotten, state, error});
  }
  return memories;
}

/// Adds one head's part to the gradients of the inputs, given that of the outputs.
void run_backwards(const Operands& in, Index head, const std::vector<Memory>& memories, const Matrix& dy) {
  const Index at_key = in.key_column(head), at_value = in.value_column(head);
  Matrix d_state = Matrix::Zero(in.key_size, in.value_size);
  for (Index t = dy.rows() - 1; t >= 0; --t) {
    const auto& [forgotten, learned, error] = memories[static_cast<std::size_t>(t)];
    const auto query = in.q.value().row(t).segment(at_key, in.key_size);
    const auto key = in.k.value().row(t).segment(at_key, in.key_size);
    const auto d_output = dy.row(t).segment(at_value, in.value_size);
    const Scalar beta = in.beta.value()(t, head);

    d_state += query.transpose() * d_output;
    in.q.gradient().row(t).segment(at_key, in.key_size) += d_output * learned.transpose();
    const RowVector d_update = key * d_state;
    const RowVector d_error = beta * d_update;
    in.beta.gradient()(t, head) += d_update.dot(error);
    in.v.gradient().row(t).segment(at_value, in.value_size) += d_error;
    in.k.gradient().row(t).segment(at_key, in.key_size) += beta * error * d_state.transpose();
    if (in.replaces) {
      in.k.gradient().row(t).segment(at_key, in.key_size) -= d_error * forgotten.transpose();
      d_state -= key.transpose() * d_error;
    }
    for (Index row = 0; row < in.key_size; ++row)
      in.g.gradient()(t, in.decay_column(head) + row / in.rows_of_decay()) +=
          d_state.row(row).cwiseProduct(forgotten.row(row)).sum();
    d_state = decays(in, head, t).asDiagonal() * d_state;
  }
}

}  // namespace

Var causal_convolution(const Var& x, const Var& weight) {
  const Index length = x.rows(), taps = weight.cols();
  require(weight.rows() == x.cols() && taps > 0, "causal_convolution",
          "expected a weight of " + std::to_string(x.cols()) + " rows, one for every column, got " +
              shape_text(weight.value()));
  Matrix value = Matrix::Zero(length, x.cols());
  for_each_tap(length, taps, [&](Index t, Index j, Index row) {
    value.row(t) += x.value().row(row).cwiseProduct(weight.value().col(j).transpose());
  });
  return Tape::record({x, weight}, std::move(value), [x, weight, length, taps](const Var& y) {
    for_each_tap(length, taps, [&](Index t, Index j, Index row) {
      const auto dy = y.gradient().row(t);
      x.gradient().row(row) += dy.cwiseProduct(weight.value().col(j).transpose());
      weight.gradient().col(j) += dy.cwiseProduct(x.value().row(row)).transpose();
    });
  });
}

Var l2_norm(const Var& x, Index n, Number epsilon) {
  require(n > 0 && x.cols() % n == 0, "l2_norm",
          "expected a multiple of " + std::to_string(n) + " columns, got " + shape_text(x.value()));
  const Index groups = x.cols() / n;
  Matrix reciprocal(x.rows(), groups);  // r of every group
  Matrix value(x.rows(), x.cols());
  for (Index t = 0; t < x.rows(); ++t) {
    for (Index i = 0; i < groups; ++i) {
      const auto group = x.value().row(t).segment(i * n, n);
      reciprocal(t, i) = 1.0 / math::sqrt(group.squaredNorm() + epsilon);
      value.row(t).segment(i * n, n) = group * reciprocal(t, i);
    }
  }
  return Tape::record({x}, std::move(value), [x, reciprocal, n, groups](const Var& y) {
    for (Index t = 0; t < x.rows(); ++t) {
      for (Index i = 0; i < groups; ++i) {
        const auto unit = y.value().row(t).segment(i * n, n);
        const auto dy = y.gradient().row(t).segment(i * n, n);
        x.gradient().row(t).segment(i * n, n) += reciprocal(t, i) * (dy - unit * dy.dot(unit));
      }
    }
  });
}

namespace {

Var recurrence(const char* name, bool replaces, bool by_channels, const Var& q, const Var& k, const Var& v,
               const Var& g, const Var& beta, int key_heads) {
  const Index length = q.rows(), heads = beta.cols();
  require(key_heads > 0 && heads > 0 && heads % key_heads == 0, name,
          "expected a number of heads that is a multiple of the key heads, got " + std::to_string(heads) +
              " and " + std::to_string(key_heads));
  require(q.cols() % key_heads == 0 && v.cols() % heads == 0, name,
          "expected queries of " + std::to_string(key_heads) + " heads and values of " +
              std::to_string(heads) + ", got " + shape_text(q.value()) + " and " + shape_text(v.value()));
  require_shape(name, "the keys", k.value(), length, q.cols());
  require_shape(name, "the values", v.value(), length, v.cols());
  require_shape(name, "the decays", g.value(), length, by_channels ? heads * (q.cols() / key_heads) : heads);
  require_shape(name, "beta", beta.value(), length, heads);
  const Operands operands = {q, k, v, g, beta, q.cols() / key_heads, v.cols() / heads, replaces, by_channels};

  std::vector<std::vector<Memory>> memories;  // of every head and token
  Matrix value(length, v.cols());
  for (Index head = 0; head < heads; ++head) memories.push_back(run(operands, head, value));
  return Tape::record({q, k, v, g, beta}, std::move(value), [operands, memories, heads](const Var& y) {
    for (Index head = 0; head < heads; ++head) {
      run_backwards(operands, head, memories[static_cast<std::size_t>(head)], y.gradient());
    }
  });
}

}  // namespace

Var gated_delta_rule(const Var& q, const Var& k, const Var& v, const Var& g, const Var& beta, int key_heads) {
  return recurrence("gated_delta_rule", true, false, q, k, v, g, beta, key_heads);
}

Var channel_gated_delta_rule(const Var& q, const Var& k, const Var& v, const Var& g, const Var& beta,
                             int key_heads) {
  return recurrence("channel_gated_delta_rule", true, true, q, k, v, g, beta, key_heads);
}

Var state_space(const Var& q, const Var& k, const Var& v, const Var& g, const Var& beta, int key_heads) {
  return recurrence("state_space", false, false, q, k, v, g, beta, key_heads);
}

}  // namespace streambp::STREAMBP_REFERENCE
