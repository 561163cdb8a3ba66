// Checks of the embedding, the norm, the rotary embedding, the softmax and its logarithms, and attention.
#include <algorithm>
#include <cmath>
#include <complex>

#include "reference/check/check_suite.h"
#include "reference/ops/ops.h"

namespace streambp::STREAMBP_REFERENCE {
namespace {

DoubleMatrix rms_norm_value(const DoubleMatrix& x, const DoubleMatrix& weight, double epsilon) {
  const Index n = weight.cols();
  return build(x.rows(), x.cols(), [&](Index i, Index j) {
    Real squares = 0;
    for (Index l = j / n * n; l < (j / n + 1) * n; ++l) squares += Real{x(i, l)} * Real{x(i, l)};
    return Real{x(i, j)} / std::sqrt(squares / n + Real{epsilon}) * Real{weight(0, j % n)};
  });
}

/// A pair is a complex number, and the rotation a multiplication by c e^(i angle).
DoubleMatrix rope_value(const DoubleMatrix& x, const std::vector<double>& positions,
                        const RopeOptions& options, Index head_dim) {
  const std::vector<Number>& frequencies = options.inverse_frequencies;
  const auto half = static_cast<Index>(frequencies.size());
  return build(x.rows(), x.cols(), [&](Index t, Index j) {
    const Index head = j / head_dim * head_dim;
    if (j - head >= 2 * half) return Real{x(t, j)};
    const bool neighbours = options.interleaved;
    const Index i = neighbours ? (j - head) / 2 : (j - head) % half;
    const Index first = neighbours ? 2 * i : i, second = neighbours ? 2 * i + 1 : half + i;
    const Number angle = positions[static_cast<std::size_t>(t)] * frequencies[static_cast<std::size_t>(i)];
    const auto rotated = std::complex<Real>(x(t, head + first), x(t, head + second)) *
                         std::polar<Real>(options.attention_factor, angle);
    return j - head == first ? rotated.real() : rotated.imag();
  });
}

/// The options with frequencies times e^alpha.
RopeOptions scaled(RopeOptions options, const DoubleMatrix& alpha) {
  for (std::size_t i = 0; i < options.inverse_frequencies.size(); ++i)
    options.inverse_frequencies[i] *= std::exp(Number{alpha(0, static_cast<Index>(i))});
  return options;
}

/// ln sum e^(x - origin) of a row without its largest entry taken out: extended precision has room for
/// e^11000. With an entry of the row as origin it is minus that entry's log-softmax.
Real logsumexp_value(const DoubleMatrix& x, Index row, Real origin) {
  Real total = 0;
  for (Index j = 0; j < x.cols(); ++j) total += std::exp(Real{x(row, j)} - origin);
  return std::log(total);
}

/// Every key is looked at, and those that are not visible weigh nothing. `sinks` has no columns where there
/// are none.
DoubleMatrix attention_value(const DoubleMatrix& q, const DoubleMatrix& k, const DoubleMatrix& v,
                             const DoubleMatrix& sinks, const AttentionOptions& options) {
  const Index head_dim = q.cols() / options.query_heads;
  const Index value_dim = v.cols() / options.key_value_heads;
  const Index group = options.query_heads / options.key_value_heads;
  return build(q.rows(), options.query_heads * value_dim, [&](Index i, Index column) {
    const Index head = column / value_dim;
    const Index start = head / group * head_dim;
    Real total = sinks.cols() == 0 ? Real{0} : std::exp(Real{sinks(0, head)});
    Real mixed = 0;
    for (Index j = 0; j < k.rows(); ++j) {
      const bool visible = j <= i && (options.window == 0 || i - j < options.window);
      Real score = 0;
      for (Index l = 0; l < head_dim; ++l) score += Real{q(i, head * head_dim + l)} * Real{k(j, start + l)};
      score *= Real{options.scale};
      if (options.softcap > 0.0) score = Real{options.softcap} * std::tanh(score / Real{options.softcap});
      const Real weight = visible ? std::exp(score) : 0;
      total += weight;
      mixed += weight * Real{v(j, head / group * value_dim + column % value_dim)};
    }
    return mixed / total;
  });
}

/// Behind the rows of the table stands the one that is held constant.
void check_embedding(Suite& suite, Index rows, const std::vector<int>& tokens) {
  const auto padding = static_cast<int>(rows);
  const DoubleMatrix constant = suite.matrix(1, 3);
  suite.check(
      "embedding",
      [tokens, padding, constant](Tape& tape, const Vars& x) {
        return embedding(concat_rows({x[0], tape.leaf(on_tape(constant))}), tokens, padding);
      },
      {suite.matrix(rows, 3)},
      [tokens, padding, constant](const Matrices& x) {
        return build(static_cast<Index>(tokens.size()), 3, [&](Index t, Index j) {
          const int token = tokens[static_cast<std::size_t>(t)];
          return token == padding ? Real{constant(0, j)} : Real{x[0](token, j)};
        });
      });
}

void check_rms_norm(Suite& suite, Index rows, Index groups, Index n, double size) {
  // A group of one entry becomes its sign but for epsilon, which is therefore large enough there to be seen.
  const double epsilon = n == 1 ? 0.5 * size * size : 1e-6;
  CheckOptions options;
  options.length_scales = {size, 1.0};
  const DoubleMatrix x = suite.matrix(rows, groups * n, -1.5 * size, 1.5 * size);
  const DoubleMatrix weight = suite.matrix(1, n);
  options.refused = {{x, DoubleMatrix::Zero(2, n)},
                     {x, DoubleMatrix::Zero(1, 0)},
                     {x, DoubleMatrix::Zero(1, groups * n + 1)}};
  const auto f = [epsilon](Tape&, const Vars& v) { return rms_norm(v[0], v[1], epsilon); };
  const auto expected = [epsilon](const Matrices& v) { return rms_norm_value(v[0], v[1], epsilon); };
  suite.check("rms_norm of numbers to +-" + number_text(1.5 * size), f, {x, weight}, expected, options);
}

void check_attention_case(Suite& suite, Index length, Index head_dim, const AttentionOptions& shape,
                          double largest_score, Index value_dim) {
  AttentionOptions attention = shape;
  attention.scale = largest_score / (1.5 * 1.5 * static_cast<double>(head_dim));
  const DoubleMatrix q = suite.matrix(length, shape.query_heads * head_dim);
  const DoubleMatrix k = suite.matrix(length, shape.key_value_heads * head_dim);
  const DoubleMatrix v = suite.matrix(length, shape.key_value_heads * value_dim);
  CheckOptions options;
  options.length_scales.assign(3, std::min(1.0, 2.0 / largest_score));
  options.refused = {{q, DoubleMatrix::Zero(length + 1, k.cols()), v},
                     {q, k, DoubleMatrix::Zero(length + 1, v.cols())},
                     {q, DoubleMatrix::Zero(length, k.cols() + 1), v}};
  if (shape.key_value_heads > 1) options.refused.push_back({q, k, DoubleMatrix::Zero(length, v.cols() + 1)});
  const std::string name = "causal_attention with " + std::to_string(shape.query_heads) + "/" +
                           std::to_string(shape.key_value_heads) + " heads, window " +
                           std::to_string(shape.window) + ", cap " + number_text(shape.softcap) +
                           ", scores to +-" + number_text(largest_score);
  suite.check(
      name, [attention](Tape&, const Vars& x) { return causal_attention(x[0], x[1], x[2], attention); },
      {q, k, v},
      [attention](const Matrices& x) {
        return attention_value(x[0], x[1], x[2], DoubleMatrix(1, 0), attention);
      },
      options);
  const DoubleMatrix sinks = suite.matrix(1, shape.query_heads);
  options.length_scales.push_back(1.0);
  for (Matrices& inputs : options.refused) inputs.push_back(sinks);
  options.refused.push_back({q, k, v, DoubleMatrix::Zero(1, shape.query_heads + 1)});
  options.refused.push_back({q, k, v, DoubleMatrix::Zero(2, shape.query_heads)});
  suite.check(
      name + ", sinks",
      [attention](Tape&, const Vars& x) { return causal_attention(x[0], x[1], x[2], x[3], attention); },
      {q, k, v, sinks},
      [attention](const Matrices& x) { return attention_value(x[0], x[1], x[2], x[3], attention); }, options);
}

}  // namespace

void check_layer_ops(Suite& suite) {
  check_embedding(suite, 1, {0});
  check_embedding(suite, 4, {3, 4, 0, 3, 4, 3});
  const Index norms[][3] = {{1, 1, 1}, {1, 1, 7}, {5, 1, 4}, {3, 3, 5}, {4, 6, 1}};
  for (const auto& [rows, groups, n] : norms) {
    for (double size : {1.0, 50.0, 1e-3}) check_rms_norm(suite, rows, groups, n, size);
  }

  const std::vector<std::vector<double>> all_positions = {
      {0.0}, {4.0}, {0, 1, 2, 3, 4}, {2, 3, 40, 41, 100000}};
  const std::vector<Number> frequencies = {1.0, 0.31, 0.007};
  const RopeOptions all_options[] = {{frequencies},
                                     {frequencies, 6, 1.3},
                                     {frequencies, 10, 0.7},
                                     {frequencies, 0, 1.0, true},
                                     {frequencies, 10, 0.7, true}};
  for (const std::vector<double>& positions : all_positions) {
    for (const RopeOptions& turn : all_options) {
      const Index head_dim = turn.head_dim == 0 ? 6 : turn.head_dim;
      for (Index heads : {1, 3}) {
        const auto rows = static_cast<Index>(positions.size());
        CheckOptions options;
        options.refused = {{DoubleMatrix::Zero(rows, head_dim * heads + 1)},
                           {DoubleMatrix::Zero(rows + 1, head_dim * heads)}};
        // An angle of 31,000 is known to 4e-12 and less, and so are its sine and cosine.
        if (positions.back() > 1e4) options.limit = 1e-12;
        suite.check(
            "rope", [=](Tape&, const Vars& x) { return rope(x[0], positions, turn); },
            {suite.matrix(rows, head_dim * heads)},
            [=](const Matrices& x) { return rope_value(x[0], positions, turn, head_dim); }, options);
      }
    }
  }
}

void check_trained_rope(Suite& suite) {
  const std::vector<Number> frequencies = {1.0, 0.31, 0.007};
  // Not at angles of thousands, which magnify what rounding leaves of alpha.
  for (const std::vector<double>& positions :
       {std::vector<double>{4.0}, {0, 1, 2, 3, 4}, {2, 3, 40, 41, 90}}) {
    for (const RopeOptions& turn : {RopeOptions{frequencies, 6, 1.3}, {frequencies, 10, 0.7, true}}) {
      const auto rows = static_cast<Index>(positions.size());
      const Index columns = Index{2} * turn.head_dim, head_dim = turn.head_dim;
      CheckOptions options;
      options.refused = {{DoubleMatrix::Zero(rows, columns), DoubleMatrix::Zero(1, 2)}};
      options.length_scales = {1.0, 1.0 / (1.0 + positions.back())};  // of angles as large as these
      suite.check(
          "rope with trained frequencies",
          [=](Tape&, const Vars& x) { return rope(x[0], x[1], positions, turn); },
          {suite.matrix(rows, columns), suite.matrix(1, 3, -0.5, 0.5)},
          [=](const Matrices& x) { return rope_value(x[0], positions, scaled(turn, x[1]), head_dim); },
          options);
    }
  }
}

void check_softmax_ops(Suite& suite) {
  const std::pair<Index, Index> shapes[] = {{1, 1}, {1, 7}, {5, 1}, {4, 9}};
  for (const auto& [rows, cols] : shapes) {
    for (double size : {2.0, 50.0}) {
      const DoubleMatrix x = suite.matrix(rows, cols, -size, size);
      CheckOptions options;
      options.length_scales = {0.5};
      options.refused = {{DoubleMatrix::Zero(rows, 0)}};
      const std::string range = " of numbers to +-" + number_text(size);
      suite.check(
          "logsumexp" + range, [](Tape&, const Vars& v) { return logsumexp(v[0]); }, {x},
          [](const Matrices& v) {
            return build(v[0].rows(), 1, [&](Index i, Index) { return logsumexp_value(v[0], i, 0); });
          },
          options);
      suite.check(
          "log_softmax" + range, [](Tape&, const Vars& v) { return log_softmax(v[0]); }, {x},
          [](const Matrices& v) {
            return build(v[0].rows(), v[0].cols(),
                         [&](Index i, Index j) { return -logsumexp_value(v[0], i, v[0](i, j)); });
          },
          options);
      // The first target is the least probable token: one that is all but certain has a log-probability
      // near 0.
      std::vector<int> targets(static_cast<std::size_t>(rows));
      x.row(0).minCoeff(&targets[0]);
      for (Index i = 1; i < rows; ++i)
        targets[static_cast<std::size_t>(i)] = static_cast<int>((5 * i + 2) % cols);
      suite.check(
          "token_log_probabilities" + range,
          [targets](Tape&, const Vars& v) { return token_log_probabilities(v[0], targets); }, {x},
          [targets](const Matrices& v) {
            return build(v[0].rows(), 1, [&](Index i, Index) {
              return -logsumexp_value(v[0], i, v[0](i, targets[static_cast<std::size_t>(i)]));
            });
          },
          options);
    }
  }
}

void check_divergences(Suite& suite) {
  const std::pair<Index, Index> shapes[] = {{1, 1}, {1, 7}, {5, 1}, {4, 9}};
  for (const auto& [rows, cols] : shapes) {
    // Nothing here needs probabilities that sum to one. All of q is below p, so that the terms do not cancel.
    for (double low : {-2.0, -40.0}) {
      const DoubleMatrix log_p = suite.matrix(rows, cols, low, 0.0);
      const std::string range = " of log-probabilities from " + number_text(low);
      CheckOptions options;
      options.length_scales = {0.5, 0.5};
      suite.check(
          "entropy" + range, [](Tape&, const Vars& x) { return entropy(x[0]); }, {log_p},
          [](const Matrices& x) {
            return build(x[0].rows(), 1, [&](Index i, Index) {
              Real total = 0;
              for (Index j = 0; j < x[0].cols(); ++j) total -= std::exp(Real{x[0](i, j)}) * Real{x[0](i, j)};
              return total;
            });
          },
          options);
      options.refused = {{log_p, DoubleMatrix::Zero(rows, cols + 1)},
                         {log_p, DoubleMatrix::Zero(rows + 1, cols)}};
      suite.check(
          "log_mixture" + range, [](Tape&, const Vars& x) { return log_mixture(x[0], x[1], 0.3); },
          {log_p, suite.matrix(rows, cols, low, 0.0)},
          [](const Matrices& x) {
            return build(x[0].rows(), x[0].cols(), [&](Index i, Index j) {
              return std::log((1 - Real{0.3}) * std::exp(Real{x[0](i, j)}) +
                              Real{0.3} * std::exp(Real{x[1](i, j)}));
            });
          },
          options);
      suite.check(
          "kl_divergence" + range, [](Tape&, const Vars& x) { return kl_divergence(x[0], x[1]); },
          {log_p, suite.matrix(rows, cols, 2.0 * low, low)},
          [](const Matrices& x) {
            return build(x[0].rows(), 1, [&](Index i, Index) {
              Real total = 0;
              for (Index j = 0; j < x[0].cols(); ++j) {
                total += std::exp(Real{x[0](i, j)}) * (Real{x[0](i, j)} - Real{x[1](i, j)});
              }
              return total;
            });
          },
          options);
    }
  }
}

void check_attention(Suite& suite) {
  const std::pair<int, int> heads[] = {{1, 1}, {2, 2}, {2, 1}, {3, 1}, {4, 1}, {4, 2}, {6, 2}};
  for (const auto& [query_heads, key_value_heads] : heads) {
    AttentionOptions shape;
    shape.query_heads = query_heads;
    shape.key_value_heads = key_value_heads;
    for (Index length : {1, 2, 7}) check_attention_case(suite, length, 3, shape, 1.0, 3);
    for (Index value_dim : {1, 5}) check_attention_case(suite, 5, 3, shape, 1.0, value_dim);
  }
  for (int window : {0, 1, 3, 7, 20}) {
    AttentionOptions shape;
    shape.query_heads = 2;
    shape.window = window;
    check_attention_case(suite, 7, 1, shape, 1.0, 1);
    check_attention_case(suite, 7, 4, shape, 50.0, 4);
    shape.softcap = 3.0;
    check_attention_case(suite, 7, 4, shape, 6.0, 4);
  }
}

}  // namespace streambp::STREAMBP_REFERENCE
