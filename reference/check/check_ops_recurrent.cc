// Checks of the recurrent operations. The gated delta rule is computed a second time without a state: what is
// left of every earlier value at a token, as in an attention whose weights are worked out by hand.
#include <cmath>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "reference/check/check_suite.h"
#include "reference/ops/ops.h"

namespace streambp::STREAMBP_REFERENCE {
namespace {

void check_convolution(Suite& suite, Index length, Index columns, Index taps) {
  CheckOptions options;
  options.refused = {{DoubleMatrix::Zero(length, columns), DoubleMatrix::Zero(columns + 1, taps)},
                     {DoubleMatrix::Zero(length, columns), DoubleMatrix::Zero(columns, 0)}};
  suite.check(
      "causal_convolution", [](Tape&, const Vars& x) { return causal_convolution(x[0], x[1]); },
      {suite.matrix(length, columns), suite.matrix(columns, taps)},
      [](const Matrices& x) {
        return build(x[0].rows(), x[0].cols(), [&](Index t, Index c) {
          Real total = 0;
          for (Index ago = 0; ago < x[1].cols() && ago <= t; ++ago) {
            total += Real{x[0](t - ago, c)} * Real{x[1](c, x[1].cols() - 1 - ago)};
          }
          return total;
        });
      },
      options);
}

void check_l2_norm(Suite& suite, Index rows, Index groups, Index n, double size) {
  // As of rms_norm: a group of one entry becomes its sign but for epsilon.
  const double epsilon = n == 1 ? 0.5 * size * size : 1e-6;
  CheckOptions options;
  options.length_scales = {size};
  if (n > 1) options.refused = {{DoubleMatrix::Zero(rows, groups * n + 1)}};
  suite.check(
      "l2_norm of numbers to +-" + number_text(1.5 * size),
      [n, epsilon](Tape&, const Vars& x) { return l2_norm(x[0], n, epsilon); },
      {suite.matrix(rows, groups * n, -1.5 * size, 1.5 * size)},
      [n, epsilon](const Matrices& x) {
        return build(x[0].rows(), x[0].cols(), [&](Index i, Index j) {
          Real squares = epsilon;
          for (Index l = j / n * n; l < (j / n + 1) * n; ++l) squares += Real{x[0](i, l)} * Real{x[0](i, l)};
          return Real{x[0](i, j)} / std::sqrt(squares);
        });
      },
      options);
}

/// The number of heads, of which each has a column of beta.
Index heads_of(const Matrices& x) {
  return x[4].cols();
}

/// The outputs of one head. What a token writes for its key, u_s, is beta_s times what its value has that the
/// earlier u_r do not already answer:
///     u_s = beta_s (v_s - sum over r < s of e^{g_{r+1} + ... + g_s} (k_r . k_s) u_r)
///     o_t = sum over s <= t of e^{g_{s+1} + ... + g_t} (k_s . q_t) u_s
/// With a g for every entry of a key, each product of two entries has the factor e^{...} of its own.
class DeltaRuleOfAHead {
 public:
  DeltaRuleOfAHead(const Matrices& x, Index head, int key_heads, bool replaces) : x_(x), head_(head) {
    key_size_ = x[0].cols() / key_heads;
    value_size_ = x[2].cols() / heads_of(x);
    at_key_ = head / (heads_of(x) / key_heads) * key_size_;
    by_channels_ = x[3].cols() != heads_of(x);
    for (Index s = 0; s < x[0].rows(); ++s) {
      std::vector<Real> written;
      for (Index j = 0; j < value_size_; ++j) {
        Real missing = x[2](s, head * value_size_ + j);
        for (Index r = 0; replaces && r < s; ++r) missing -= product(x_[1], r, s) * written_[r][j];
        written.push_back(Real{x[4](s, head)} * missing);
      }
      written_.push_back(std::move(written));
    }
  }

  Real output(Index t, Index j) const {
    Real total = 0;
    for (Index s = 0; s <= t; ++s) total += product(x_[0], s, t) * written_[s][j];
    return total;
  }

 private:
  /// What is left at t of what was written at s for entry l of its key.
  Real left(Index s, Index t, Index l) const {
    Real sum = 0;
    for (Index r = s + 1; r <= t; ++r) sum += x_[3](r, by_channels_ ? head_ * key_size_ + l : head_);
    return std::exp(sum);
  }

  /// The key of s, as far as it is left, times row t of `other`.
  Real product(const DoubleMatrix& other, Index s, Index t) const {
    Real sum = 0;
    for (Index l = 0; l < key_size_; ++l)
      sum += left(s, t, l) * Real{x_[1](s, at_key_ + l)} * Real{other(t, at_key_ + l)};
    return sum;
  }

  const Matrices& x_;
  Index head_, key_size_, value_size_, at_key_;
  bool by_channels_;
  std::vector<std::vector<Real>> written_;
};

void check_delta_rule(Suite& suite, Index length, int key_heads, int heads, Index key_size,
                      Index value_size) {
  const DoubleMatrix q = suite.matrix(length, key_heads * key_size),
                     k = suite.matrix(length, q.cols(), -0.8, 0.8);
  const DoubleMatrix v = suite.matrix(length, heads * value_size),
                     g = suite.matrix(length, heads, -2.5, -0.02);
  const DoubleMatrix beta = suite.matrix(length, heads, 0.05, 0.95);
  CheckOptions options;
  const auto spoilt = [&](std::size_t input, Index rows, Index cols) {
    Matrices inputs = {q, k, v, g, beta};
    inputs[input] = DoubleMatrix::Zero(rows, cols);
    options.refused.push_back(std::move(inputs));
  };
  for (std::size_t input : {0U, 1U, 2U, 3U, 4U}) {
    const DoubleMatrix& x = *std::vector<const DoubleMatrix*>{&q, &k, &v, &g, &beta}[input];
    spoilt(input, length + 1, x.cols());
    if (input == 1 || input == 4) spoilt(input, length, x.cols() + 1);
  }
  spoilt(3, length, 0);
  if (heads > 1) spoilt(2, length, v.cols() + 1);
  if (key_heads > 1) spoilt(3, length, heads + 1);
  for (const bool replaces : {true, false}) {
    suite.check((replaces ? "gated_delta_rule with " : "state_space with ") + std::to_string(heads) + "/" +
                    std::to_string(key_heads) + " heads",
                [key_heads, replaces](Tape&, const Vars& x) {
                  return (replaces ? gated_delta_rule : state_space)(x[0], x[1], x[2], x[3], x[4], key_heads);
                },
                {q, k, v, g, beta},
                [key_heads, value_size, replaces](const Matrices& x) {
                  std::vector<DeltaRuleOfAHead> of;
                  for (Index head = 0; head < x[3].cols(); ++head)
                    of.emplace_back(x, head, key_heads, replaces);
                  return build(x[2].rows(), x[2].cols(), [&](Index t, Index j) {
                    return of[static_cast<std::size_t>(j / value_size)].output(t, j % value_size);
                  });
                },
                options);
  }
}

/// The same where every entry of a key has its decay.
void check_channels(Suite& suite, Index length, int key_heads, int heads, Index key_size, Index value_size) {
  const DoubleMatrix q = suite.matrix(length, key_heads * key_size),
                     k = suite.matrix(length, q.cols(), -0.8, 0.8);
  const DoubleMatrix v = suite.matrix(length, heads * value_size),
                     g = suite.matrix(length, heads * key_size, -2.5, -0.02);
  const DoubleMatrix beta = suite.matrix(length, heads, 0.05, 0.95);
  CheckOptions options;
  options.refused = {{q, k, v, DoubleMatrix::Zero(length, g.cols() + 1), beta},
                     {q, k, v, DoubleMatrix::Zero(length + 1, g.cols()), beta}};
  suite.check(
      "channel_gated_delta_rule with " + std::to_string(heads) + "/" + std::to_string(key_heads) + " heads",
      [key_heads](Tape&, const Vars& x) {
        return channel_gated_delta_rule(x[0], x[1], x[2], x[3], x[4], key_heads);
      },
      {q, k, v, g, beta},
      [key_heads, value_size](const Matrices& x) {
        std::vector<DeltaRuleOfAHead> of;
        for (Index head = 0; head < heads_of(x); ++head) of.emplace_back(x, head, key_heads, true);
        return build(x[2].rows(), x[2].cols(), [&](Index t, Index j) {
          return of[static_cast<std::size_t>(j / value_size)].output(t, j % value_size);
        });
      },
      options);
}

}  // namespace

void check_recurrence(Suite& suite) {
  for (Index length : {1, 2, 3, 7}) {
    for (Index taps : {1, 2, 4}) check_convolution(suite, length, 3, taps);
    check_delta_rule(suite, length, 1, 1, 3, 2);
    check_delta_rule(suite, length, 1, 2, 2, 3);
    check_delta_rule(suite, length, 2, 4, 3, 1);
    check_delta_rule(suite, length, 3, 3, 1, 4);
    check_channels(suite, length, 1, 1, 3, 2);
    check_channels(suite, length, 2, 4, 2, 1);
    check_channels(suite, length, 3, 3, 2, 4);
  }
  const Index norms[][3] = {{1, 1, 1}, {1, 1, 7}, {5, 1, 4}, {3, 3, 5}, {4, 6, 1}};
  for (const auto& [rows, groups, n] : norms) {
    for (double size : {1.0, 50.0, 1e-3}) check_l2_norm(suite, rows, groups, n, size);
  }
}

}  // namespace streambp::STREAMBP_REFERENCE
