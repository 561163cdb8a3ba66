#include "reference/ops/ops_softmax.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "reference/ops/ops_matrix.h"
#include "reference/require.h"

namespace streambp::STREAMBP_REFERENCE {
namespace {

Scalar exponential(const Scalar& x) {
  return math::exp(x);
}

/// The softmax of every row.
Matrix softmax_rows(const Matrix& x) {
  Matrix p(x.rows(), x.cols());
  for (Index i = 0; i < x.rows(); ++i) p.row(i) = softmax(x.row(i).transpose()).transpose();
  return p;
}

/// x - max and ln sum e^(x - max) of one row: the two parts whose difference is the log-softmax.
struct Shifted {
  explicit Shifted(const RowVector& x) {
    largest = x.maxCoeff(&where);
    entries = x.array() - largest;
    // The largest entry adds e^0 = 1. Left to log1p, it does not swallow the others where they are small, and
    // the log-probability of an almost certain token keeps all its digits.
    RowVector powers = entries.unaryExpr(&exponential);
    powers(where) = 0.0;
    others = powers.sum();
    log_sum = math::log1p(others);
  }

  Index where = 0;  // the largest
  Scalar largest;
  Scalar others;  // sum of e^(x - max) over the others
  RowVector entries;
  Scalar log_sum;
};

void require_columns(const char* op, const Var& x) {
  require(x.cols() > 0, op, "expected at least one column, got " + shape_text(x.value()));
}

/// p f for f = g(ln p, ...), 0 where p is: so that what has no probability counts for nothing though its
/// logarithm is infinite.
Scalar weighted(const Scalar& log_p, const Scalar& f) {
  const Scalar p = math::exp(log_p);
  return p == 0.0 ? Scalar(0.0) : p * f;
}

}  // namespace

Vector softmax(const Vector& scores) {
  const Scalar largest = scores.maxCoeff();
  const Vector e = (scores.array() - largest).unaryExpr(&exponential);
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
    for (Index i = 0; i < x.rows(); ++i) {
      const RowVector dy = y.gradient().row(i);
      const Shifted row(x.value().row(i));
      const RowVector p = (row.entries.array() - row.log_sum).unaryExpr(&exponential);
      // dy_ij - p_ij sum_l dy_il, as dy_ij (1 - p_ij) - p_ij sum_(l != j) dy_il: next to certainty 1 - p_ij
      // is the others' share, of which the difference of two numbers next to 1 would leave nothing.
      const Scalar total = dy.sum();
      for (Index j = 0; j < x.cols(); ++j) {
        const Scalar rest = j == row.where ? row.others / (row.others + 1.0) : Scalar(1.0) - p(j);
        x.gradient()(i, j) += dy(j) * rest - (total - dy(j)) * p(j);
      }
    }
  });
}

Var entropy(const Var& log_p) {
  const auto term = [](const Scalar& a) { return -weighted(a, a); };
  const auto slope = [](const Scalar& a) { return -weighted(a, a + 1.0); };
  return Tape::record({log_p}, log_p.value().unaryExpr(term).rowwise().sum(), [log_p, slope](const Var& y) {
    for (Index i = 0; i < log_p.rows(); ++i) {
      log_p.gradient().row(i) += y.gradient()(i, 0) * log_p.value().row(i).unaryExpr(slope);
    }
  });
}

Var kl_divergence(const Var& log_p, const Var& log_q) {
  require_shape("kl_divergence", "log q", log_q.value(), log_p.rows(), log_p.cols());
  const auto term = [](const Scalar& a, const Scalar& b) { return weighted(a, a - b); };
  const auto slope = [](const Scalar& a, const Scalar& b) { return weighted(a, a - b + 1.0); };
  Matrix value = log_p.value().binaryExpr(log_q.value(), term).rowwise().sum();
  return Tape::record({log_p, log_q}, std::move(value), [log_p, log_q, slope](const Var& y) {
    for (Index i = 0; i < log_p.rows(); ++i) {
      const Scalar dy = y.gradient()(i, 0);
      log_p.gradient().row(i) += dy * log_p.value().row(i).binaryExpr(log_q.value().row(i), slope);
      log_q.gradient().row(i) -= dy * log_p.value().row(i).unaryExpr(&exponential);
    }
  });
}

Var log_mixture(const Var& log_p, const Var& log_q, Number w) {
  require_shape("log_mixture", "log q", log_q.value(), log_p.rows(), log_p.cols());
  require(w > 0.0 && w < 1.0, "log_mixture", "expected a weight between 0 and 1, got " + std::to_string(w));
  const Number log_first = std::log1p(-w), log_second = std::log(w);
  const auto mixed = [=](const Scalar& a, const Scalar& b) -> Scalar {
    const Scalar ahead = (b + log_second) - (a + log_first);
    return std::max<Scalar>(a + log_first, b + log_second) + math::log1p(math::exp(-math::abs(ahead)));
  };
  Matrix value = log_p.value().binaryExpr(log_q.value(), mixed);
  return Tape::record({log_p, log_q}, std::move(value), [=](const Var& m) {
    const auto share_of_p = [&](const Scalar& a, const Scalar& c) { return math::exp(a + log_first - c); };
    const auto share_of_q = [&](const Scalar& b, const Scalar& c) { return math::exp(b + log_second - c); };
    log_p.gradient() += m.gradient().cwiseProduct(log_p.value().binaryExpr(m.value(), share_of_p));
    log_q.gradient() += m.gradient().cwiseProduct(log_q.value().binaryExpr(m.value(), share_of_q));
  });
}

Var token_log_probabilities(const Var& logits, const std::vector<int>& targets) {
  return pick(log_softmax(logits), targets);
}

}  // namespace streambp::STREAMBP_REFERENCE
