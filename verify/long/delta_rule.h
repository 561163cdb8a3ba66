// The gated delta rule written out, token by token, for the decoder of models.h.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "streambp/model/config/config.h"

namespace streambp::verify {

/// One layer's rule over one sequence: what it gives before its last projection. Scalar: see WrittenDecoder.
template <typename Scalar>
class WrittenDeltaRule {
 public:
  using Vector = std::vector<Scalar>;
  /// The layer's parameter of a name below linear_attn, row-major.
  using Parameters = std::function<const Vector&(const std::string&)>;

  WrittenDeltaRule(const DeltaRuleSettings& sizes, double norm_eps, Parameters parameter)
      : sizes_(sizes),
        norm_eps_(norm_eps),
        parameter_(std::move(parameter)),
        inputs_(static_cast<size_t>(sizes.conv_kernel), Vector(size(sizes.channels()), Scalar(0.0))),
        state_(size(sizes.value_heads * sizes.key_head_dim * sizes.value_head_dim), Scalar(0.0)) {}

  /// The next token's, for its normed hidden state.
  Vector next(const Vector& x) {
    const Vector mixed = convolved(product(x, "in_proj_qkv.weight"));
    const Vector z = product(x, "in_proj_z.weight"), b = product(x, "in_proj_b.weight"),
                 a = product(x, "in_proj_a.weight");
    Vector y(z.size());
    for (int64_t head = 0; head < sizes_.value_heads; ++head) {
      const auto h = size(head);
      const Scalar softplus = std::log(Scalar(1.0) + std::exp(a[h] + parameter_("dt_bias")[h]));
      const Scalar decay = std::exp(-std::exp(parameter_("A_log")[h]) * softplus);
      read(head, mixed, decay, Scalar(1.0) / (Scalar(1.0) + std::exp(-b[h])), y);
    }
    gate(z, y);
    return y;
  }

 private:
  static size_t size(int64_t n) { return static_cast<size_t>(n); }
  static Scalar silu(const Scalar& x) { return x / (Scalar(1.0) + std::exp(-x)); }

  Vector product(const Vector& x, const std::string& name) const {
    const Vector& matrix = parameter_(name);
    Vector y(matrix.size() / x.size(), Scalar(0.0));
    for (size_t i = 0; i < y.size(); ++i) {
      for (size_t j = 0; j < x.size(); ++j) y[i] += matrix[i * x.size() + j] * x[j];
    }
    return y;
  }

  /// Takes the token's inputs to those of the tokens before it.
  Vector convolved(Vector inputs) {
    std::rotate(inputs_.begin(), inputs_.begin() + 1, inputs_.end());
    inputs_.back() = std::move(inputs);
    const Vector& weight = parameter_("conv1d.weight");
    Vector y(inputs_.back().size(), Scalar(0.0));
    for (size_t channel = 0; channel < y.size(); ++channel) {
      for (size_t tap = 0; tap < inputs_.size(); ++tap)
        y[channel] += weight[channel * inputs_.size() + tap] * inputs_[tap][channel];
      y[channel] = silu(y[channel]);
    }
    return y;
  }

  /// Entries [begin, begin + key_head_dim) of a unit vector.
  Vector unit(const Vector& mixed, int64_t begin) const {
    const auto first = mixed.begin() + begin;
    Scalar squares = 1e-6;
    for (int64_t i = 0; i < sizes_.key_head_dim; ++i) squares += first[i] * first[i];
    Vector y(first, first + sizes_.key_head_dim);
    for (Scalar& entry : y) entry /= std::sqrt(squares);
    return y;
  }

  /// S = decay S;  S += k (beta (v - S^T k))^T;  y = S^T q / sqrt(Dk)
  void read(int64_t head, const Vector& mixed, const Scalar& decay, const Scalar& beta, Vector& y) {
    const int64_t keys = sizes_.key_head_dim, values = sizes_.value_head_dim;
    const int64_t key_head = head / (sizes_.value_heads / sizes_.key_heads);
    const Vector q = unit(mixed, key_head * keys), k = unit(mixed, sizes_.keys() + key_head * keys);
    Scalar* const state = state_.data() + head * keys * values;
    for (int64_t i = 0; i < keys * values; ++i) state[i] *= decay;
    for (int64_t j = 0; j < values; ++j) {
      Scalar held = 0.0, output = 0.0;
      for (int64_t i = 0; i < keys; ++i) held += state[i * values + j] * k[size(i)];
      const Scalar change = beta * (mixed[size(2 * sizes_.keys() + head * values + j)] - held);
      for (int64_t i = 0; i < keys; ++i) {
        state[i * values + j] += k[size(i)] * change;
        output += state[i * values + j] * q[size(i)];
      }
      y[size(head * values + j)] = output / std::sqrt(static_cast<double>(keys));
    }
  }

  /// Each head normed, times its gate.
  void gate(const Vector& z, Vector& y) const {
    const int64_t values = sizes_.value_head_dim;
    for (int64_t begin = 0; begin < sizes_.values(); begin += values) {
      Scalar squares = 0.0;
      for (int64_t j = 0; j < values; ++j) squares += y[size(begin + j)] * y[size(begin + j)];
      const Scalar root = std::sqrt(squares / static_cast<double>(values) + norm_eps_);
      for (int64_t j = 0; j < values; ++j)
        y[size(begin + j)] *= parameter_("norm.weight")[size(j)] / root * silu(z[size(begin + j)]);
    }
  }

  DeltaRuleSettings sizes_;
  double norm_eps_;
  Parameters parameter_;
  std::vector<Vector> inputs_;  // of the convolution, the token's own last
  Vector state_;                // [Hv, Dk, Dv]
};

}  // namespace streambp::verify
