#include "reference/ops/ops_matrix.h"

#include <algorithm>
#include <cstddef>
#include <string>

#include "reference/require.h"

namespace streambp::STREAMBP_REFERENCE {
Var matmul(const Var& a, const Var& b) {
  require(a.cols() == b.rows(), "matmul",
          "expected as many columns in A as rows in B, got " + shape_text(a.value()) + " and " +
              shape_text(b.value()));
  return Tape::record({a, b}, a.value() * b.value(), [a, b](const Var& y) {
    a.gradient() += y.gradient() * b.value().transpose();
    b.gradient() += a.value().transpose() * y.gradient();
  });
}

Var linear(const Var& x, const Var& weight) {
  require(x.cols() == weight.cols(), "linear",
          "expected X and W with the same number of columns, got " + shape_text(x.value()) + " and " +
              shape_text(weight.value()));
  return Tape::record({x, weight}, x.value() * weight.value().transpose(), [x, weight](const Var& y) {
    x.gradient() += y.gradient() * weight.value();
    weight.gradient() += y.gradient().transpose() * x.value();
  });
}

Var linear(const Var& x, const Var& weight, const Var& bias) {
  require_shape("linear", "the bias", bias.value(), 1, weight.rows());
  const Var product = linear(x, weight);
  Matrix value = product.value().rowwise() + bias.value().row(0);
  return Tape::record({product, bias}, std::move(value), [product, bias](const Var& y) {
    product.gradient() += y.gradient();
    bias.gradient() += y.gradient().colwise().sum();
  });
}

Var transpose(const Var& x) {
  return Tape::record({x}, x.value().transpose(),
                      [x](const Var& y) { x.gradient() += y.gradient().transpose(); });
}

Var scale_rows(const Var& x, const Var& s) {
  require_shape("scale_rows", "the factors", s.value(), x.rows(), 1);
  Matrix value = x.value().array().colwise() * s.value().col(0).array();
  return Tape::record({x, s}, std::move(value), [x, s](const Var& y) {
    x.gradient().array() += y.gradient().array().colwise() * s.value().col(0).array();
    s.gradient() += y.gradient().cwiseProduct(x.value()).rowwise().sum();
  });
}

Var scale_rows(const Var& x, const std::vector<Number>& s) {
  require(static_cast<Index>(s.size()) == x.rows(), "scale_rows",
          "expected " + std::to_string(x.rows()) + " factors, one for every row, got " +
              std::to_string(s.size()));
  Vector factors(x.rows());
  std::copy(s.begin(), s.end(), factors.begin());
  Matrix value = x.value().array().colwise() * factors.array();
  return Tape::record({x}, std::move(value), [x, factors](const Var& y) {
    x.gradient().array() += y.gradient().array().colwise() * factors.array();
  });
}

Var slice_columns(const Var& x, Index first, Index count) {
  require(first >= 0 && count >= 0 && first + count <= x.cols(), "slice_columns",
          "expected " + std::to_string(count) + " columns from " + std::to_string(first) + " on, got " +
              shape_text(x.value()));
  return Tape::record({x}, x.value().middleCols(first, count), [x, first, count](const Var& y) {
    x.gradient().middleCols(first, count) += y.gradient();
  });
}

Var sum(const Var& x) {
  return Tape::record({x}, Matrix::Constant(1, 1, x.value().sum()),
                      [x](const Var& y) { x.gradient().array() += y.gradient()(0, 0); });
}

Var row_sum(const Var& x) {
  return Tape::record({x}, x.value().rowwise().sum(),
                      [x](const Var& y) { x.gradient().colwise() += y.gradient().col(0); });
}

Var gather_rows(const Var& x, const std::vector<int>& rows) {
  require_indices("gather_rows", rows, x.rows());
  return Tape::record({x}, x.value()(rows, Eigen::all), [x, rows](const Var& y) {
    for (std::size_t i = 0; i < rows.size(); ++i) {
      x.gradient().row(rows[i]) += y.gradient().row(static_cast<Index>(i));
    }
  });
}

Var gather_columns(const Var& x, const std::vector<int>& columns) {
  return transpose(gather_rows(transpose(x), columns));
}

Var scatter_rows(const Var& x, const std::vector<int>& rows, Index count) {
  require(static_cast<Index>(rows.size()) == x.rows(), "scatter_rows",
          "expected " + std::to_string(x.rows()) + " indices, one for every row, got " +
              std::to_string(rows.size()));
  require_indices("scatter_rows", rows, count);
  Matrix value = Matrix::Zero(count, x.cols());
  for (std::size_t i = 0; i < rows.size(); ++i) value.row(rows[i]) += x.value().row(static_cast<Index>(i));
  return Tape::record({x}, std::move(value),
                      [x, rows](const Var& y) { x.gradient() += y.gradient()(rows, Eigen::all); });
}

Var pick(const Var& x, const std::vector<int>& columns) {
  require(static_cast<Index>(columns.size()) == x.rows(), "pick",
          "expected " + std::to_string(x.rows()) + " columns, one for every row, got " +
              std::to_string(columns.size()));
  require_indices("pick", columns, x.cols());
  Matrix value(x.rows(), 1);
  for (Index i = 0; i < x.rows(); ++i) value(i, 0) = x.value()(i, columns[static_cast<std::size_t>(i)]);
  return Tape::record({x}, std::move(value), [x, columns](const Var& y) {
    for (Index i = 0; i < x.rows(); ++i)
      x.gradient()(i, columns[static_cast<std::size_t>(i)]) += y.gradient()(i, 0);
  });
}

Var concat_rows(const std::vector<Var>& parts) {
  require(!parts.empty(), "concat_rows", "expected at least one part");
  const Index cols = parts.front().cols();
  Index rows = 0;
  for (const Var& part : parts) {
    require(part.cols() == cols, "concat_rows",
            "expected parts with " + std::to_string(cols) + " columns, got " + shape_text(part.value()));
    rows += part.rows();
  }
  Matrix value(rows, cols);
  Index start = 0;
  for (const Var& part : parts) {
    value.middleRows(start, part.rows()) = part.value();
    start += part.rows();
  }
  return Tape::record(parts, std::move(value), [parts](const Var& y) {
    Index begin = 0;
    for (const Var& part : parts) {
      part.gradient() += y.gradient().middleRows(begin, part.rows());
      begin += part.rows();
    }
  });
}

}  // namespace streambp::STREAMBP_REFERENCE
