#include "reference/ops_softmax.h"

#include <cmath>

#include "reference/ops_matrix.h"
#include "reference/require.h"

namespace streambp::reference {
namespace {

double exponential(double x) {
  return std::exp(x);
}

/// The softmax of every row.
Matrix softmax_rows(const Matrix& x) {
  Matrix p(x.rows(), x.cols());
  for (Index i = 0; i < x.rows(); ++i) p.row(i) = softmax(x.row(i).transpose()).transpose();
  return p;
}

/// x - max and ln sum e^(x - max) of one row: the two parts whose difference is the log-softmax.
struct Shifted {
  explicit Shifted(const Eigen::RowVectorXd& x) {
    Index where = 0;
    largest = x.maxCoeff(&where);
    entries = x.array() - largest;
    // The largest entry adds e^0 = 1. Left to log1p, it does not swallow the others where they are small, and
    // the log-probability of an almost certain token keeps all its digits.
    Eigen::RowVectorXd others = entries.unaryExpr(&exponential);
    others(where) = 0.0;
    log_sum = std::log1p(others.sum());
  }

  double largest;
  Eigen::RowVectorXd entries;
  double log_sum;
};

void require_columns(const char* op, const Var& x) {
  require(x.cols() > 0, op, "expected at least one column, got " + shape_text(x.value()));
}

}  // namespace

Eigen::VectorXd softmax(const Eigen::VectorXd& scores) {
  const double largest = scores.maxCoeff();
  const Eigen::VectorXd e = (scores.array() - largest).unaryExpr(&exponential);
  return e / e.sum();
}

Var logsumexp(const Var& x) {
  require_columns("logsumexp", x);
  Matrix value(x.rows(), 1);
  for (Index i = 0; i < x.rows(); ++i) {
    const Shifted row(x.value().row(i));
    value(i, 0) = row.largest + row.log_sum;
  }
  return Tape::record({x}, std::move(value), [x](const Var& y) {
    const Matrix p = softmax_rows(x.value());
    for (Index i = 0; i < x.rows(); ++i) x.gradient().row(i) += y.gradient()(i, 0) * p.row(i);
  });
}

Var log_softmax(const Var& x) {
  require_columns("log_softmax", x);
  Matrix value(x.rows(), x.cols());
  for (Index i = 0; i < x.rows(); ++i) {
    const Shifted row(x.value().row(i));
    value.row(i) = row.entries.array() - row.log_sum;
  }
  return Tape::record({x}, std::move(value), [x](const Var& y) {
    const Matrix p = softmax_rows(x.value());
    for (Index i = 0; i < x.rows(); ++i) {
      x.gradient().row(i) += y.gradient().row(i) - y.gradient().row(i).sum() * p.row(i);
    }
  });
}

Var token_log_probabilities(const Var& logits, const std::vector<int>& targets) {
  return pick(log_softmax(logits), targets);
}

}  // namespace streambp::reference
