// Checks of the operations on entries and of the products, sums and selections.
#include <cmath>
#include <numbers>

#include "reference/check/check_suite.h"
#include "reference/ops/ops.h"

namespace streambp::STREAMBP_REFERENCE {
namespace {

constexpr std::pair<Index, Index> kShapes[] = {{1, 1}, {1, 7}, {5, 1}, {3, 4}};

struct Unary {
  const char* name;
  std::function<Var(const Var&)> f;
  Real (*expected)(Real);
  double low, high;
};

const Unary kUnaries[] = {
    {"exp", [](const Var& x) { return exp(x); }, [](Real x) { return std::exp(x); }, -1.5, 1.5},
    {"log", [](const Var& x) { return log(x); }, [](Real x) { return std::log(x); }, 0.5, 3.0},
    {"tanh", [](const Var& x) { return tanh(x); }, [](Real x) { return std::tanh(x); }, -1.5, 1.5},
    {"tanh +-15", [](const Var& x) { return tanh(x); }, [](Real x) { return std::tanh(x); }, -15, 15},
    {"scale", [](const Var& x) { return scale(x, -0.7); }, [](Real x) { return Real{-0.7} * x; }, -1.5, 1.5},
    {"offset", [](const Var& x) { return offset(x, -0.7); }, [](Real x) { return x - Real{0.7}; }, -1.5, 1.5},
    {"log1mexp", [](const Var& x) { return log1mexp(x); }, [](Real x) { return std::log1p(-std::exp(x)); },
     -3.0, -0.2},
    {"log1mexp -50", [](const Var& x) { return log1mexp(x); },
     [](Real x) { return std::log1p(-std::exp(x)); }, -50.0, -20.0},
    {"silu", [](const Var& x) { return silu(x); }, [](Real x) { return x / (1 + std::exp(-x)); }, -1.5, 1.5},
    {"silu +-50", [](const Var& x) { return silu(x); }, [](Real x) { return x / (1 + std::exp(-x)); }, -50,
     50},
    {"gelu_tanh", [](const Var& x) { return gelu_tanh(x); },
     [](Real x) {
       const Real u = std::sqrt(2 / std::numbers::pi_v<Real>) * (x + Real{0.044715} * x * x * x);
       return x - x / (std::exp(2 * u) + 1);  // because (1 + tanh u) / 2 = 1 - 1 / (e^2u + 1)
     },
     -3.0, 3.0},
    {"gelu", [](const Var& x) { return gelu(x); },
     [](Real x) { return x * std::erfc(-x / std::numbers::sqrt2_v<Real>) / 2; }, -3.0, 3.0},
    {"sigmoid", [](const Var& x) { return sigmoid(x); },
     [](Real x) { return std::exp(x) / (std::exp(x) + 1); }, -1.5, 1.5},
    {"sigmoid +-50", [](const Var& x) { return sigmoid(x); },
     [](Real x) { return std::exp(x) / (std::exp(x) + 1); }, -50, 50},
    {"softplus", [](const Var& x) { return softplus(x); }, [](Real x) { return std::log(1 + std::exp(x)); },
     -1.5, 1.5},
    {"softplus +-50", [](const Var& x) { return softplus(x); },
     [](Real x) { return std::log1p(std::exp(x)); }, -50, 50},
    {"log_sigmoid", [](const Var& x) { return log_sigmoid(x); },
     [](Real x) { return -std::log1p(std::exp(-x)); }, -1.5, 1.5},
    {"log_sigmoid +-50", [](const Var& x) { return log_sigmoid(x); },
     [](Real x) { return -std::log1p(std::exp(-x)); }, -50, 50},
};

struct Binary {
  const char* name;
  Var (*f)(const Var&, const Var&);
  Real (*expected)(Real, Real);
};

const Binary kBinaries[] = {
    {"add", add, [](Real a, Real b) { return a + b; }},
    {"sub", sub, [](Real a, Real b) { return a - b; }},
    {"mul", mul, [](Real a, Real b) { return a * b; }},
    {"minimum", minimum, [](Real a, Real b) { return (a + b - std::abs(a - b)) / 2; }},
    {"maximum", maximum, [](Real a, Real b) { return (a + b + std::abs(a - b)) / 2; }},
};

/// Entries at least 0.2 away from `from`, so that no step of a difference crosses it.
DoubleMatrix away_from(const DoubleMatrix& from, const DoubleMatrix& direction) {
  return from + direction.unaryExpr([](double d) { return d + std::copysign(0.2, d); });
}

void check_products(Suite& suite) {
  const Index products[][3] = {{1, 1, 1}, {3, 4, 5}, {1, 7, 2}, {5, 1, 3}, {6, 9, 1}};
  for (const auto& [m, k, n] : products) {
    const DoubleMatrix a = suite.matrix(m, k);
    CheckOptions options;
    options.refused = {{a, DoubleMatrix::Zero(k + 1, n)}};
    suite.check(
        "matmul", [](Tape&, const Vars& x) { return matmul(x[0], x[1]); }, {a, suite.matrix(k, n)},
        [k = k](const Matrices& x) {
          return build(x[0].rows(), x[1].cols(), [&](Index i, Index j) {
            Real total = 0;
            for (Index l = 0; l < k; ++l) total += Real{x[0](i, l)} * Real{x[1](l, j)};
            return total;
          });
        },
        options);

    const auto linear_value = [k = k](const Matrices& x) {
      return build(x[0].rows(), x[1].rows(), [&](Index i, Index j) {
        Real total = x.size() == 3 ? x[2](0, j) : 0.0;
        for (Index l = 0; l < k; ++l) total += Real{x[0](i, l)} * Real{x[1](j, l)};
        return total;
      });
    };
    const DoubleMatrix weight = suite.matrix(n, k);
    options.refused = {{a, DoubleMatrix::Zero(n, k + 1)}};
    suite.check(
        "linear", [](Tape&, const Vars& x) { return linear(x[0], x[1]); }, {a, weight}, linear_value,
        options);
    options.refused = {{a, weight, DoubleMatrix::Zero(1, n + 1)}, {a, weight, DoubleMatrix::Zero(2, n)}};
    suite.check(
        "linear with bias", [](Tape&, const Vars& x) { return linear(x[0], x[1], x[2]); },
        {a, weight, suite.matrix(1, n)}, linear_value, options);
  }
}

void check_row_sums(Suite& suite, const DoubleMatrix& x) {
  const Index rows = x.rows();
  const auto row_total = [](const DoubleMatrix& of, Index i) {
    Real total = 0;
    for (Index j = 0; j < of.cols(); ++j) total += of(i, j);
    return total;
  };
  suite.check(
      "row_sum", [](Tape&, const Vars& v) { return row_sum(v[0]); }, {x},
      [=](const Matrices& v) {
        return build(v[0].rows(), 1, [&](Index i, Index) { return row_total(v[0], i); });
      });
  suite.check(
      "sum", [](Tape&, const Vars& v) { return sum(v[0]); }, {x},
      [=](const Matrices& v) {
        return build(1, 1, [&](Index, Index) {
          Real total = 0;
          for (Index i = 0; i < v[0].rows(); ++i) total += row_total(v[0], i);
          return total;
        });
      });

  CheckOptions scaling;
  scaling.refused = {{x, DoubleMatrix::Zero(rows + 1, 1)}, {x, DoubleMatrix::Zero(rows, 2)}};
  suite.check(
      "scale_rows", [](Tape&, const Vars& v) { return scale_rows(v[0], v[1]); }, {x, suite.matrix(rows, 1)},
      [](const Matrices& v) {
        return build(v[0].rows(), v[0].cols(),
                     [&](Index i, Index j) { return Real{v[0](i, j)} * Real{v[1](i, 0)}; });
      },
      scaling);
  std::vector<Number> factors;
  for (Index i = 0; i < rows; ++i) factors.push_back(0.4 + 0.7 * static_cast<double>(i));
  scaling.refused = {{DoubleMatrix::Zero(rows + 1, x.cols())}};
  suite.check(
      "scale_rows by constants", [factors](Tape&, const Vars& v) { return scale_rows(v[0], factors); }, {x},
      [factors](const Matrices& v) {
        return build(v[0].rows(), v[0].cols(), [&](Index i, Index j) {
          return Real{v[0](i, j)} * Real{factors[static_cast<std::size_t>(i)]};
        });
      },
      scaling);
}

/// Parts of a matrix: columns, rows, both exchanged.
void check_selections(Suite& suite, const DoubleMatrix& x) {
  const Index rows = x.rows(), cols = x.cols();
  const Index begin = cols / 3;
  const Index count = cols - begin - cols / 5;
  CheckOptions slicing;
  slicing.refused = {{DoubleMatrix::Zero(rows, begin + count - 1)}};
  suite.check(
      "slice_columns", [=](Tape&, const Vars& v) { return slice_columns(v[0], begin, count); }, {x},
      [=](const Matrices& v) {
        return build(v[0].rows(), count, [&](Index i, Index j) { return v[0](i, begin + j); });
      },
      slicing);

  suite.check(
      "transpose", [](Tape&, const Vars& v) { return transpose(v[0]); }, {x},
      [](const Matrices& v) {
        return build(v[0].cols(), v[0].rows(), [&](Index i, Index j) { return v[0](j, i); });
      });

  // Some rows more than once and, where there are many, some not at all.
  const int last = static_cast<int>(rows) - 1;
  const std::vector<int> chosen = {last, 0, last / 2, last};
  CheckOptions options;
  options.refused = {{DoubleMatrix::Zero(last, cols)}};
  suite.check(
      "gather_rows", [chosen](Tape&, const Vars& v) { return gather_rows(v[0], chosen); }, {x},
      [chosen](const Matrices& v) {
        return build(4, v[0].cols(),
                     [&](Index i, Index j) { return v[0](chosen[static_cast<std::size_t>(i)], j); });
      },
      options);

  const auto last_column = static_cast<int>(cols) - 1;
  const std::vector<int> columns = {last_column, 0, last_column};
  options.refused.clear();  // a matrix of no columns is none
  if (cols > 1) options.refused.push_back({DoubleMatrix::Zero(rows, last_column)});
  suite.check(
      "gather_columns", [columns](Tape&, const Vars& v) { return gather_columns(v[0], columns); }, {x},
      [columns](const Matrices& v) {
        return build(v[0].rows(), 3,
                     [&](Index i, Index j) { return v[0](i, columns[static_cast<std::size_t>(j)]); });
      },
      options);

  std::vector<int> targets;
  for (Index i = 0; i < rows; ++i) targets.push_back(static_cast<int>(i * i % 3));
  options.refused = {{DoubleMatrix::Zero(rows + 1, cols)}};
  suite.check(
      "scatter_rows", [targets](Tape&, const Vars& v) { return scatter_rows(v[0], targets, 4); }, {x},
      [targets](const Matrices& v) {
        return build(4, v[0].cols(), [&](Index r, Index j) {
          Real total = 0;
          for (Index i = 0; i < v[0].rows(); ++i) {
            if (targets[static_cast<std::size_t>(i)] == r) total += v[0](i, j);
          }
          return total;
        });
      },
      options);
}

void check_picks(Suite& suite, const DoubleMatrix& x) {
  const Index rows = x.rows(), cols = x.cols();
  std::vector<int> columns;
  for (Index i = 0; i < rows; ++i) columns.push_back(static_cast<int>((3 * i + cols - 1) % cols));
  CheckOptions options;
  options.refused = {{DoubleMatrix::Zero(rows + 1, cols)}, {DoubleMatrix::Zero(rows, 0)}};
  suite.check(
      "pick", [columns](Tape&, const Vars& v) { return pick(v[0], columns); }, {x},
      [columns](const Matrices& v) {
        return build(v[0].rows(), 1,
                     [&](Index i, Index) { return v[0](i, columns[static_cast<std::size_t>(i)]); });
      },
      options);

  // The first part comes twice, so that its gradient has two sources.
  options.refused = {{x, DoubleMatrix::Zero(rows, cols + 1)}};
  suite.check(
      "concat_rows",
      [](Tape&, const Vars& v) {
        return concat_rows({v[0], v[1], v[0]});
      },
      {x, suite.matrix(2, cols)},
      [](const Matrices& v) {
        return build(2 * v[0].rows() + 2, v[0].cols(), [&](Index i, Index j) {
          const Index first = v[0].rows();
          return i < first ? v[0](i, j) : i < first + 2 ? v[1](i - first, j) : v[0](i - first - 2, j);
        });
      },
      options);
}

}  // namespace

void check_elementwise_ops(Suite& suite) {
  for (const Unary& op : kUnaries) {
    for (const auto& [rows, cols] : kShapes) {
      CheckOptions options;
      options.length_scales = {0.5};  // these functions bend within one unit, wherever x is
      suite.check(
          op.name, [&op](Tape&, const Vars& x) { return op.f(x[0]); },
          {suite.matrix(rows, cols, op.low, op.high)},
          [&op](const Matrices& x) {
            return build(x[0].rows(), x[0].cols(), [&](Index i, Index j) { return op.expected(x[0](i, j)); });
          },
          options);
    }
  }
  for (const Binary& op : kBinaries) {
    for (const auto& [rows, cols] : kShapes) {
      const DoubleMatrix a = suite.matrix(rows, cols);
      CheckOptions options;
      options.refused = {{a, DoubleMatrix::Zero(rows + 1, cols)}, {a, DoubleMatrix::Zero(rows, cols + 1)}};
      suite.check(
          op.name, [&op](Tape&, const Vars& x) { return op.f(x[0], x[1]); },
          {a, away_from(a, suite.matrix(rows, cols))},
          [&op](const Matrices& x) {
            return build(x[0].rows(), x[0].cols(),
                         [&](Index i, Index j) { return op.expected(x[0](i, j), x[1](i, j)); });
          },
          options);
    }
  }
  for (const auto& [rows, cols] : kShapes) {
    // Entries below, between and above the limits -1 and 2, and none within 0.2 of them.
    const DoubleMatrix x =
        build(rows, cols, [](Index i, Index j) { return Real{-1.7} + Real{0.9} * ((i + 3 * j) % 6); });
    suite.check(
        "clip", [](Tape&, const Vars& v) { return clip(v[0], -1.0, 2.0); }, {x},
        [](const Matrices& v) { return DoubleMatrix(v[0].cwiseMax(-1.0).cwiseMin(2.0)); });
    suite.check(
        "a value used three times", [](Tape&, const Vars& v) { return mul(add(v[0], v[0]), v[0]); },
        {suite.matrix(rows, cols)},
        [](const Matrices& v) { return DoubleMatrix(2.0 * v[0].array().square()); });
  }
}

void check_matrix_ops(Suite& suite) {
  check_products(suite);
  for (const auto& [rows, cols] : kShapes) {
    const DoubleMatrix x = suite.matrix(rows, cols);
    check_row_sums(suite, x);
    check_selections(suite, x);
    check_picks(suite, x);
  }
}

}  // namespace streambp::STREAMBP_REFERENCE
