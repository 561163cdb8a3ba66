#include "reference/ops/ops_layer.h"

#include <cmath>
#include <cstddef>
#include <string>

#include "reference/require.h"

namespace streambp::STREAMBP_REFERENCE {
namespace {

/// Calls visit(t, i, a, b) for the columns a and b of every pair i in every head of row t.
template <typename Visit>
void for_each_pair(const Matrix& x, const RopeOptions& options, Visit visit) {
  const auto half = static_cast<Index>(options.inverse_frequencies.size());
  for (Index t = 0; t < x.rows(); ++t) {
    for (Index i = 0; i < half; ++i) {
      for (Index a = options.interleaved ? 2 * i : i; a < x.cols(); a += options.head_dim)
        visit(t, i, a, options.interleaved ? a + 1 : a + half);
    }
  }
}

/// `x` with every pair rotated by direction * position * frequency and stretched.
Matrix rotate(const Matrix& x, const std::vector<double>& positions, const RopeOptions& options,
              double direction) {
  Matrix y = x;
  for_each_pair(x, options, [&](Index t, Index i, Index a, Index b) {
    const Number angle =
        positions[static_cast<std::size_t>(t)] * options.inverse_frequencies[static_cast<std::size_t>(i)];
    const Number c = options.attention_factor * std::cos(angle);
    const Number s = options.attention_factor * direction * std::sin(angle);
    y(t, a) = x(t, a) * c - x(t, b) * s;
    y(t, b) = x(t, b) * c + x(t, a) * s;
  });
  return y;
}

/// The same by `angles` [rows, pairs].
Matrix rotate_by(const Matrix& x, const Matrix& angles, const RopeOptions& options, double direction) {
  const Scalar stretch(options.attention_factor), sense(options.attention_factor * direction);
  Matrix y = x;
  for_each_pair(x, options, [&](Index t, Index i, Index a, Index b) {
    const Scalar c = stretch * math::cos(angles(t, i)), s = sense * math::sin(angles(t, i));
    y(t, a) = x(t, a) * c - x(t, b) * s;
    y(t, b) = x(t, b) * c + x(t, a) * s;
  });
  return y;
}

/// The options with the size of heads filled in. Throws what the header says.
RopeOptions valid_rope(const Var& x, const std::vector<double>& positions, const RopeOptions& options) {
  const auto turning = 2 * static_cast<int>(options.inverse_frequencies.size());
  RopeOptions same = options;
  if (same.head_dim == 0) same.head_dim = turning;
  require(turning > 0 && turning <= same.head_dim, "rope",
          "expected from 1 to " + std::to_string(same.head_dim / 2) + " pairs, got " +
              std::to_string(turning / 2));
  require(x.cols() % same.head_dim == 0, "rope",
          "expected heads of " + std::to_string(same.head_dim) + " columns, got " + shape_text(x.value()));
  require(static_cast<Index>(positions.size()) == x.rows(), "rope",
          "expected " + std::to_string(x.rows()) + " positions, one for every row, got " +
              std::to_string(positions.size()));
  return same;
}

}  // namespace

Var embedding(const Var& table, const std::vector<int>& tokens, int padding) {
  require_indices("embedding", tokens, table.rows());
  Matrix value = table.value()(tokens, Eigen::all);
  for (std::size_t t = 0; t < tokens.size(); ++t) {
    const auto row = static_cast<Index>(t);
    if (tokens[t] == padding) value.row(row) = held_constant(value.row(row));
  }
  return Tape::record({table}, std::move(value), [table, tokens, padding](const Var& y) {
    for (std::size_t t = 0; t < tokens.size(); ++t) {
      if (tokens[t] != padding) table.gradient().row(tokens[t]) += y.gradient().row(static_cast<Index>(t));
    }
  });
}

Var rms_norm(const Var& x, const Var& weight, Number epsilon) {
  const Index n = weight.cols();
  require(weight.rows() == 1 && n > 0, "rms_norm",
          "expected a weight of one row with at least one entry, got " + shape_text(weight.value()));
  require(x.cols() % n == 0, "rms_norm",
          "expected a multiple of " + std::to_string(n) + " columns, got " + shape_text(x.value()));
  const Index groups = x.cols() / n;
  Matrix reciprocal(x.rows(), groups);  // r of every group
  Matrix value(x.rows(), x.cols());
  for (Index t = 0; t < x.rows(); ++t) {
    for (Index g = 0; g < groups; ++g) {
      const auto group = x.value().row(t).segment(g * n, n);
      reciprocal(t, g) = 1.0 / math::sqrt(group.squaredNorm() / static_cast<Number>(n) + epsilon);
      value.row(t).segment(g * n, n) = (group * reciprocal(t, g)).cwiseProduct(weight.value().row(0));
    }
  }
  return Tape::record({x, weight}, std::move(value), [x, weight, reciprocal, n, groups](const Var& y) {
    for (Index t = 0; t < x.rows(); ++t) {
      for (Index g = 0; g < groups; ++g) {
        const Scalar r = reciprocal(t, g);
        const RowVector z = x.value().row(t).segment(g * n, n) * r;
        const RowVector dy = y.gradient().row(t).segment(g * n, n);
        const RowVector dz = dy.cwiseProduct(weight.value().row(0));
        weight.gradient().row(0) += dy.cwiseProduct(z);
        x.gradient().row(t).segment(g * n, n) += r * (dz - z * (dz.dot(z) / static_cast<Number>(n)));
      }
    }
  });
}

Var rope(const Var& x, const Var& alpha, const std::vector<double>& positions, const RopeOptions& options) {
  const RopeOptions same = valid_rope(x, positions, options);
  const auto pairs = static_cast<Index>(same.inverse_frequencies.size());
  require_shape("rope", "the logarithms of factors", alpha.value(), 1, pairs);
  Matrix angles(x.rows(), pairs);
  for (Index t = 0; t < x.rows(); ++t) {
    for (Index i = 0; i < pairs; ++i) {
      const Scalar factor(positions[static_cast<std::size_t>(t)] *
                          same.inverse_frequencies[static_cast<std::size_t>(i)]);
      angles(t, i) = factor * math::exp(alpha.value()(0, i));
    }
  }
  return Tape::record(
      {x, alpha}, rotate_by(x.value(), angles, same, +1.0), [x, alpha, angles, same](const Var& y) {
        x.gradient() += rotate_by(y.gradient(), angles, same, -1.0);
        const Matrix &d = y.gradient(), &turned = y.value();
        for_each_pair(turned, same, [&](Index t, Index i, Index a, Index b) {
          alpha.gradient()(0, i) += angles(t, i) * (d(t, b) * turned(t, a) - d(t, a) * turned(t, b));
        });
      });
}

Var rope(const Var& x, const std::vector<double>& positions, const RopeOptions& options) {
  const RopeOptions same = valid_rope(x, positions, options);
  return Tape::record({x}, rotate(x.value(), positions, same, +1.0), [x, positions, same](const Var& y) {
    x.gradient() += rotate(y.gradient(), positions, same, -1.0);
  });
}

}  // namespace streambp::STREAMBP_REFERENCE
