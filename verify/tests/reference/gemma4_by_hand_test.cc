// A layer with all that Gemma 4 can have in the reference's decoder, written out by hand, and its
// frequencies.
#include <algorithm>
#include <cmath>
#include <complex>
#include <gtest/gtest.h>
#include <stdexcept>
#include <vector>

#include "reference/check/check.h"
#include "verify/tests/reference/gemma4_testing.h"

namespace streambp::reference {
namespace {

/// One full layer with all that Gemma 4 can have, over two tokens, entry by entry.
class Gemma4ByHand {
 public:
  explicit Gemma4ByHand(std::uint64_t seed) {
    config_ = plain_gemma4();
    config_.num_hidden_layers = 1;
    config_.windows = {0};
    config_.qkv_bias = true;
    config_.final_logit_softcapping = 1.5;
    config_.gemma4.global_head_dim = 8;
    config_.gemma4.num_global_key_value_heads = 2;
    config_.gemma4.attention_k_eq_v = true;
    config_.gemma4.value_norm = true;
    config_.gemma4.layer_scalar = true;
    with_experts(config_);
    with_per_layer_inputs(config_);
    weights_ = random_weights(config_, seed);
  }

  const ModelConfig& config() const { return config_; }
  const Weights& weights() const { return weights_; }

  double log_probability(const Sequence& sequence) const {
    std::vector<Vector> h, n;
    for (int token : sequence.tokens) {
      h.push_back(1.7 * row("model.embed_tokens.weight", token));
      n.push_back(norm("input_layernorm", h.back()));
    }
    Vector out = h[1] + norm("post_attention_layernorm", attention(n, sequence.positions));
    const Vector fed = norm("post_feedforward_layernorm_1", mlp(norm("pre_feedforward_layernorm", out))) +
                       norm("post_feedforward_layernorm_2", experts(out));
    out += norm("post_feedforward_layernorm", fed);
    const Vector a = per_layer_input(sequence.tokens[1], h[1]);
    const Vector gated = gelu(times("per_layer_input_gate", out)).cwiseProduct(a);
    out += norm("post_per_layer_input_norm", times("per_layer_projection", gated));
    out *= weights_.at(kLayer + "layer_scalar")(0, 0);
    const Vector z = weights_.at("model.embed_tokens.weight") *
                     scaled(out, weights_.at("model.norm.weight").row(0).transpose());
    const Eigen::ArrayXd p = (1.5 * (z.array() / 1.5).tanh()).exp();
    return std::log(p(sequence.targets[1]) / p.sum());
  }

 private:
  using Vector = Eigen::VectorXd;
  const std::string kLayer = "model.layers.0.";

  Vector row(const std::string& name, Index i) const { return weights_.at(name).row(i).transpose(); }

  Vector times(const std::string& module, const Vector& x) const {
    Vector y = weights_.at(kLayer + module + ".weight") * x;
    const auto bias = weights_.find(kLayer + module + ".bias");
    if (bias != weights_.end()) y += bias->second.row(0).transpose();
    return y;
  }

  Vector scaled(const Vector& x, const Vector& weight) const {
    const double mean = x.squaredNorm() / static_cast<double>(x.size());
    return (x / std::sqrt(mean + config_.rms_norm_eps)).cwiseProduct(weight);
  }

  Vector norm(const std::string& module, const Vector& x) const {
    return scaled(x, row(kLayer + module + ".weight", 0));
  }

  static Vector gelu(const Vector& x) {
    Vector y = x;
    for (double& e : y) e *= 0.5 * (1.0 + std::tanh(std::sqrt(2.0 / M_PI) * (e + 0.044715 * e * e * e)));
    return y;
  }

  /// Eight entries: of the pairs i and i + 4 the first two rotate, by 1 and 50^(-2/8) for each position.
  static Vector rotated(const Vector& x, double position) {
    Vector y = x;
    for (Index i = 0; i < 2; ++i) {
      const std::complex<double> z =
          std::complex<double>(x(i), x(i + 4)) * std::polar(1.0, position * std::pow(50.0, -0.25 * i));
      y(i) = z.real();
      y(i + 4) = z.imag();
    }
    return y;
  }

  Vector attention(const std::vector<Vector>& n, const std::vector<double>& positions) const {
    const Vector queries = times("self_attn.q_proj", n[1]);
    Vector mixed = Vector::Zero(4 * 8);
    for (Index head = 0; head < 4; ++head) {
      const Vector q = rotated(norm("self_attn.q_norm", queries.segment(head * 8, 8)), positions[1]);
      double total = 0.0;
      for (std::size_t t : {0U, 1U}) {
        const Vector both = times("self_attn.k_proj", n[t]).segment(head / 2 * 8, 8);
        const double weight = std::exp(q.dot(rotated(norm("self_attn.k_norm", both), positions[t])));
        total += weight;
        mixed.segment(head * 8, 8) += weight * scaled(both, Vector::Ones(8));
      }
      mixed.segment(head * 8, 8) /= total;
    }
    return times("self_attn.o_proj", mixed);
  }

  Vector mlp(const Vector& x) const {
    return times("mlp.down_proj", gelu(times("mlp.gate_proj", x)).cwiseProduct(times("mlp.up_proj", x)));
  }

  Vector experts(const Vector& h) const {
    const Vector x = norm("pre_feedforward_layernorm_2", h);
    const Vector asked = scaled(h, row(kLayer + "router.scale", 0)) / std::sqrt(10.0);
    const Vector p = times("router.proj", asked).array().exp();
    std::vector<Index> best = {0, 1, 2, 3};
    std::sort(best.begin(), best.end(), [&](Index i, Index j) { return p(i) > p(j); });
    Vector y = Vector::Zero(10);
    for (Index e : {best[0], best[1]}) {
      const Vector both = weights_.at(kLayer + "experts.gate_up_proj").middleRows(10 * e, 10) * x;
      const Vector inner = gelu(both.head(5)).cwiseProduct(both.tail(5));
      const double weight = p(e) / (p(best[0]) + p(best[1]));
      y += weight * weights_.at(kLayer + "router.per_expert_scale")(0, e) *
           (weights_.at(kLayer + "experts.down_proj").middleRows(10 * e, 10) * inner);
    }
    return y;
  }

  Vector per_layer_input(int token, const Vector& h) const {
    const Vector projected = weights_.at("model.per_layer_model_projection.weight") * h / std::sqrt(10.0);
    const Vector normed = scaled(projected, row("model.per_layer_projection_norm.weight", 0));
    return (normed + std::sqrt(3.0) * row("model.embed_tokens_per_layer.weight", token)) / std::sqrt(2.0);
  }

  ModelConfig config_;
  Weights weights_;
};

TEST(ReferenceGemma4, OneLayerWrittenOutForTwoTokens) {
  for (std::uint64_t seed : {601, 602, 603}) {
    const Gemma4ByHand by_hand(seed);
    const Sequence sequence = {{4, 7}, {2, 9}, {kNoTarget, 9}};
    const double error = std::abs(scores(by_hand.config(), by_hand.weights(), {sequence})[1] -
                                  by_hand.log_probability(sequence));
    std::printf("difference %.1e\n", error);
    EXPECT_FALSE(!(error <= 1e-13)) << error;
  }
}

TEST(ReferenceGemma4, ProportionalFrequenciesAreThoseOfTheWholeHead) {
  RopeSettings rope;
  rope.type = RopeType::kProportional;
  rope.theta = 81.0;
  rope.factor = 2.0;
  const auto at = [&](double share, int head_dim) {
    rope.partial_rotary_factor = share;
    return rope_inverse_frequencies(rope, head_dim, 1.0);
  };
  const std::vector<double> half = at(0.5, 8), odd = at(0.5, 6), all = at(1.0, 4);
  const std::vector<double> of_half = {0.5, 0.5 / 3.0, 0.0, 0.0};
  const std::vector<double> of_odd = {0.5, 0.0, 0.0};  // one and a half pairs
  const std::vector<double> of_all = {0.5, 0.5 / 9.0};
  expect_same(half, of_half);
  expect_same(odd, of_odd);
  expect_same(all, of_all);
  EXPECT_EQ(at(0.0, 4), (std::vector<double>{0.0, 0.0}));
  for (double share : {-0.1, 1.1, std::nan("")}) EXPECT_THROW(at(share, 4), std::invalid_argument) << share;
}

}  // namespace
}  // namespace streambp::reference
