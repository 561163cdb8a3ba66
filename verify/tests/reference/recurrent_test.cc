// The gated delta rule and the gates of attention's output in the reference's decoder: a layer written out by
// hand, and identities that tie each setting to a model without it.
#include <cmath>
#include <functional>
#include <gtest/gtest.h>
#include <stdexcept>

#include "reference/check/check.h"
#include "reference/objectives/objectives.h"
#include "reference/ops/ops.h"
#include "verify/tests/reference/model_testing.h"

namespace streambp::reference {
namespace {

const std::string kLinear = "model.layers.0.linear_attn.";

/// One layer, with two heads for every key.
ModelConfig linear_model() {
  ModelConfig config = small_model();
  config.num_hidden_layers = 1;
  config.norm_adds_one = true;
  config.linear_attention = {true};
  config.delta_rule = {2, 4, 3, 5, 3};
  return config;
}

TEST(ReferenceDeltaRule, AValueReplacesTheOneBefore) {
  Tape tape;
  Matrix key(3, 2), query(3, 2), values(3, 2), g = Matrix::Zero(3, 1), beta(3, 1);
  key << 0.6, 0.8, 0.6, 0.8, -0.8, 0.6;
  query << 0.6, 0.8, 0.6, 0.8, 0.6, 0.8;
  values << 3.0, -1.0, 7.0, 2.0, 5.0, 5.0;
  beta << 1.0, 1.0, 1.0;
  const auto run = [&] {
    return gated_delta_rule(tape.leaf(query), tape.leaf(key), tape.leaf(values), tape.leaf(g),
                            tape.leaf(beta), 1)
        .value();
  };
  // The same key twice: the answer to it is the value that was written last. The third key is orthogonal to
  // it, and leaves that answer alone.
  const Matrix replaced = run();
  EXPECT_LE((replaced.row(0) - values.row(0)).norm(), 1e-15);
  EXPECT_LE((replaced.row(1) - values.row(1)).norm(), 1e-14);
  EXPECT_LE((replaced.row(2) - values.row(1)).norm(), 1e-14);
  // Half strength, and three quarters forgotten: first 3 / 2, of which 3 / 8 is left, and half the distance
  // from there to 7; a quarter of that is left at the third token.
  beta << 0.5, 0.5, 0.5;
  g << -9.0, std::log(0.25), std::log(0.25);
  const Matrix mixed = run();
  const double second = 0.375 + 0.5 * (7.0 - 0.375);
  EXPECT_NEAR(mixed(0, 0), 1.5, 1e-15);
  EXPECT_NEAR(mixed(1, 0), second, 1e-14);
  EXPECT_NEAR(mixed(2, 0), 0.25 * second, 1e-14);
}

TEST(ReferenceConvolution, LooksBackOnly) {
  Tape tape;
  const Var x = tape.leaf(row({1.0, 10.0, 100.0, 1000.0}).transpose());
  const Matrix y = causal_convolution(x, tape.leaf(row({5.0, 3.0, 2.0}))).value();
  EXPECT_EQ(y, row({2.0, 23.0, 235.0, 2350.0}).transpose());
}

TEST(ReferenceL2Norm, IsARootMeanSquareNormByTheRootOfItsLength) {
  Tape tape;
  const Var x = tape.leaf(random_matrix(3, 10, 401));
  const Var weight = tape.leaf(Matrix::Constant(1, 5, 1.0 / std::sqrt(5.0)));
  const Matrix same = rms_norm(x, weight, 1e-6 / 5.0).value();
  EXPECT_LE((l2_norm(x, 5, 1e-6).value() - same).norm(), 1e-14);
}

/// One layer of the delta rule over a few tokens, entry by entry.
class RecurrentByHand {
 public:
  RecurrentByHand(const ModelConfig& config, const Weights& weights) : config_(config), weights_(weights) {}

  double log_probability(const std::vector<int>& tokens, int target) const {
    std::vector<Vector> n;
    for (int token : tokens) n.push_back(norm("model.layers.0.input_layernorm", embedding(token)));
    Vector h = embedding(tokens.back()) + mixed(n);
    const Vector x = norm("model.layers.0.post_attention_layernorm", h);
    Vector inner = times("model.layers.0.mlp.up_proj.weight", x);
    const Vector gate = times("model.layers.0.mlp.gate_proj.weight", x);
    for (Index j = 0; j < inner.size(); ++j) inner(j) *= silu(gate(j));
    h += times("model.layers.0.mlp.down_proj.weight", inner);
    const Eigen::ArrayXd p = times("lm_head.weight", norm("model.norm", h)).array().exp();
    return std::log(p(target) / p.sum());
  }

 private:
  using Vector = Eigen::VectorXd;

  static double sigmoid(double x) { return 1.0 / (1.0 + std::exp(-x)); }
  static double silu(double x) { return x * sigmoid(x); }
  const Matrix& weight(const std::string& name) const { return weights_.at(kLinear + name); }
  Vector times(const std::string& name, const Vector& x) const { return weights_.at(name) * x; }
  Vector embedding(int token) const {
    return weights_.at("model.embed_tokens.weight").row(token).transpose();
  }
  Vector norm(const std::string& name, const Vector& x) const {
    const double rms = std::sqrt(x.squaredNorm() / static_cast<double>(x.size()) + config_.rms_norm_eps);
    return (x.array() / rms * (1.0 + weights_.at(name + ".weight").row(0).transpose().array())).matrix();
  }

  /// What the convolution makes of column c at token t.
  double convolved(const std::vector<Vector>& n, std::size_t t, Index c) const {
    const Matrix& taps = weight("conv1d.weight");
    double total = 0.0;
    for (std::size_t ago = 0; ago < 3 && ago <= t; ++ago) {
      total += taps(c, 2 - static_cast<Index>(ago)) * weight("in_proj_qkv.weight").row(c).dot(n[t - ago]);
    }
    return silu(total);
  }

  /// A vector of a head at token t, from column `first` on.
  Vector part(const std::vector<Vector>& n, std::size_t t, Index first, Index size, bool is_unit) const {
    Vector x(size);
    for (Index j = 0; j < size; ++j) x(j) = convolved(n, t, first + j);
    return is_unit ? Vector(x / std::sqrt(x.squaredNorm() + 1e-6)) : x;
  }

  Vector mixed(const std::vector<Vector>& n) const {
    Vector gated(4 * 5);
    for (Index head = 0; head < 4; ++head) {
      // Columns: 2 queries of 3, 2 keys of 3, 4 values of 5.
      const Index key = head / 2 * 3;
      Matrix state = Matrix::Zero(3, 5);
      for (std::size_t t = 0; t < n.size(); ++t) {
        const double a = weight("in_proj_a.weight").row(head).dot(n[t]) + weight("dt_bias")(0, head);
        const double beta = sigmoid(weight("in_proj_b.weight").row(head).dot(n[t]));
        state *= std::exp(-std::exp(weight("A_log")(0, head)) * std::log(1.0 + std::exp(a)));
        const Vector k = part(n, t, 6 + key, 3, true), v = part(n, t, 12 + head * 5, 5, false);
        // (I - beta k k^T) S + beta k v^T, as the paper has it.
        state = (Matrix::Identity(3, 3) - beta * k * k.transpose()) * state + beta * k * v.transpose();
      }
      const Vector o = state.transpose() * part(n, n.size() - 1, key, 3, true) / std::sqrt(3.0);
      const double rms = std::sqrt(o.squaredNorm() / 5.0 + config_.rms_norm_eps);
      for (Index j = 0; j < 5; ++j) {
        const double z = weight("in_proj_z.weight").row(head * 5 + j).dot(n.back());
        gated(head * 5 + j) = o(j) / rms * weight("norm.weight")(0, j) * silu(z);
      }
    }
    return weight("out_proj.weight") * gated;
  }

  const ModelConfig& config_;
  const Weights& weights_;
};

TEST(ReferenceDeltaRule, OneLayerWrittenOutForOneToFourTokens) {
  const ModelConfig config = linear_model();
  const Weights weights = random_weights(config, 402);
  const RecurrentByHand by_hand(config, weights);
  const std::vector<int> tokens = {4, 7, 7, 2};
  double worst = 0.0;
  for (std::size_t length = 1; length <= 4; ++length) {
    Sequence sequence = {{tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(length)}, {}, {}};
    sequence.positions.assign(length, 0.0);
    sequence.targets.assign(length, kNoTarget);
    sequence.targets.back() = 9;
    const double actual = scores(config, weights, {sequence}).back();
    worst = std::max(worst, std::abs(actual - by_hand.log_probability(sequence.tokens, 9)));
  }
  std::printf("largest difference %.1e\n", worst);
  EXPECT_FALSE(!(worst <= 1e-13)) << worst;
}

/// Both kinds of layers.
ModelConfig hybrid_model() {
  ModelConfig config = small_model();
  config.num_hidden_layers = 3;
  config.norm_adds_one = true;
  config.attention_output_gate = true;
  config.rotary_dim = 2;
  config.linear_attention = {true, false, true};
  config.delta_rule = {2, 4, 3, 5, 3};
  return config;
}

TEST(ReferenceDeltaRule, EveryDocumentStartsWithNothingInMemory) {
  const ModelConfig config = hybrid_model();
  const Weights weights = random_weights(config, 403);
  std::vector<double> alone = scores(config, weights, {kSequence});
  const std::vector<double> other = scores(config, weights, {kOther});
  alone.insert(alone.end(), other.begin(), other.end());
  EXPECT_EQ(scores(config, weights, {kSequence, kOther}), alone);
  // As one document they are something else, already at the second's first token with a target.
  Sequence joined = kSequence;
  joined.tokens.insert(joined.tokens.end(), kOther.tokens.begin(), kOther.tokens.end());
  joined.positions.insert(joined.positions.end(), kOther.positions.begin(), kOther.positions.end());
  joined.targets.insert(joined.targets.end(), kOther.targets.begin(), kOther.targets.end());
  const std::vector<double> together = scores(config, weights, {joined});
  for (std::size_t t = 0; t < 7; ++t) EXPECT_NEAR(together[t], alone[t], 1e-13) << t;
  for (std::size_t t : {8U, 9U}) EXPECT_GT(std::abs(together[t] - alone[t]), 1e-4) << t;
}

TEST(ReferenceDeltaRule, ATokenDoesNotKnowLaterOnes) {
  const ModelConfig config = hybrid_model();
  const Weights weights = random_weights(config, 404);
  const std::vector<double> before = scores(config, weights, {kSequence});
  Sequence changed = kSequence;
  changed.tokens[3] = 11;
  const std::vector<double> after = scores(config, weights, {changed});
  for (std::size_t t : {0U, 1U, 2U}) EXPECT_EQ(before[t], after[t]) << t;
  for (std::size_t t : {3U, 4U, 5U}) EXPECT_GT(std::abs(before[t] - after[t]), 1e-6) << t;
}

TEST(ReferenceDeltaRule, DoesNotAskWhereATokenStands) {
  const ModelConfig config = linear_model();
  const Weights weights = random_weights(config, 405);
  Sequence moved = kSequence;
  for (double& position : moved.positions) position = 3.0 * position + 8.0;
  EXPECT_EQ(scores(config, weights, {moved}), scores(config, weights, {kSequence}));
}

TEST(ReferenceDeltaRule, ThatForgetsAllKnowsWhatTheConvolutionSees) {
  ModelConfig config = linear_model();
  Weights weights = random_weights(config, 406);
  weights.at(kLinear + "A_log").setConstant(9.0);  // e^9 times a softplus of about 0.1 or more
  const std::vector<double> all = scores(config, weights, {kSequence});
  for (std::size_t t = 2; t < 6; ++t) {
    const auto from = static_cast<std::ptrdiff_t>(t - 2);
    const std::vector<int> tokens(kSequence.tokens.begin() + from, kSequence.tokens.begin() + from + 3);
    const Sequence seen = {tokens, {0, 1, 2}, {kNoTarget, kNoTarget, kSequence.targets[t]}};
    EXPECT_NEAR(scores(config, weights, {seen})[2], all[t], 1e-13) << t;
  }
  weights.at(kLinear + "A_log").setConstant(-2.0);
  EXPECT_GT(largest_difference(scores(config, weights, {kSequence}), all), 1e-3);
}

/// Every key head's rows below one another: `sizes` rows of each part.
Matrix interleave(const std::vector<Matrix>& parts, const std::vector<Index>& sizes, Index heads) {
  Index rows = 0;
  for (const Matrix& part : parts) rows += part.rows();
  Matrix result(rows, parts.front().cols());
  Index next = 0;
  for (Index head = 0; head < heads; ++head) {
    for (std::size_t i = 0; i < parts.size(); ++i) {
      result.middleRows(next, sizes[i]) = parts[i].middleRows(head * sizes[i], sizes[i]);
      next += sizes[i];
    }
  }
  return result;
}

TEST(ReferenceQwen3Next, FusedProjectionsAreTheOthersInAnotherOrder) {
  const ModelConfig plain = hybrid_model();
  ModelConfig config = plain;
  config.delta_rule.fused_projections = true;
  const auto fuse = [&](Weights of) {
    for (int layer : {0, 2}) {
      const std::string module = layer_prefix(layer) + "linear_attn.";
      const auto take = [&](const std::string& name) -> Matrix {
        return of.extract(module + name + ".weight").mapped();
      };
      const Matrix qkv = take("in_proj_qkv"), z = take("in_proj_z");
      of[module + "in_proj_qkvz.weight"] =
          interleave({qkv.topRows(6), qkv.middleRows(6, 6), qkv.bottomRows(20), z}, {3, 3, 10, 10}, 2);
      const Matrix b = take("in_proj_b"), a = take("in_proj_a");
      of[module + "in_proj_ba.weight"] = interleave({b, a}, {2, 2}, 2);
    }
    return of;
  };
  const Weights weights = random_weights(plain, 407);
  const Result actual = evaluate(config, fuse(weights), kBatch, sft(8.0));
  const Result expected = evaluate(plain, weights, kBatch, sft(8.0));
  expect_same(actual.log_probabilities, expected.log_probabilities);
  expect_same(actual.gradients, fuse(expected.gradients));
}

TEST(ReferenceOutputGate, OfZerosLetsHalfThrough) {
  const ModelConfig plain = small_model();
  ModelConfig config = plain;
  config.attention_output_gate = true;
  const Weights weights = random_weights(config, 408);
  // Every head's queries, and what comes after them set to zero.
  const auto queries = [](const Matrix& wide) {
    const bool is_row = wide.rows() == 1;
    const Matrix from = is_row ? Matrix(wide.transpose()) : wide;
    Matrix to(from.rows() / 2, from.cols());
    for (Index head = 0; head < 4; ++head) to.middleRows(6 * head, 6) = from.middleRows(12 * head, 6);
    return is_row ? Matrix(to.transpose()) : to;
  };
  Weights gated = weights, halved = weights;
  for (auto& [name, weight] : gated) {
    if (name.find("q_proj") == std::string::npos) continue;
    halved.at(name) = queries(weight);
    for (Index head = 0; head < 4; ++head) {
      if (weight.rows() == 1) {
        weight.middleCols(12 * head + 6, 6).setZero();
      } else {
        weight.middleRows(12 * head + 6, 6).setZero();
      }
    }
  }
  for (auto& [name, weight] : halved) {
    if (name.find("o_proj") != std::string::npos) weight *= 0.5;
  }
  const Result actual = evaluate(config, gated, kBatch, sft(8.0));
  const Result expected = evaluate(plain, halved, kBatch, sft(8.0));
  expect_same(actual.log_probabilities, expected.log_probabilities);
  for (const auto& [name, gradient] : expected.gradients) {
    const Matrix& same = actual.gradients.at(name);
    const bool is_query = name.find("q_proj") != std::string::npos;
    const double factor = name.find("o_proj") != std::string::npos ? 2.0 : 1.0;
    const double error = relative_error(factor * (is_query ? queries(same) : same), gradient);
    EXPECT_FALSE(!(error <= 1e-13)) << name << " reached " << error;
  }
  EXPECT_GT(largest_difference(scores(config, weights), actual.log_probabilities), 1e-3);
}

TEST(ReferenceRecurrence, RefusesWhatDoesNotGoTogether) {
  const auto refuses = [](const std::function<void(ModelConfig&)>& spoil, const std::string& mentioned) {
    expect_refused(hybrid_model(), spoil, mentioned);
  };
  refuses([](ModelConfig& config) { config.linear_attention = {true}; }, "whether it is linear");
  refuses([](ModelConfig& config) { config.delta_rule = {}; }, "sizes of the delta rule");
  refuses([](ModelConfig& config) { config.delta_rule.conv_kernel = 0; }, "sizes of the delta rule");
  refuses([](ModelConfig& config) { config.delta_rule.key_heads = 3; }, "4 and 3");
  refuses([](ModelConfig& config) { config.fused_projections = true; }, "gate");
  refuses([](ModelConfig& config) { config.intermediate_size = 0; }, "intermediate_size");
}

}  // namespace
}  // namespace streambp::reference
