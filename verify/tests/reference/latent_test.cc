// Latent attention and routers of sigmoids in the reference's decoder: layers and choices written out by
// hand, and identities.
#include <cmath>
#include <complex>
#include <functional>
#include <gtest/gtest.h>
#include <stdexcept>

#include "reference/check/check.h"
#include "reference/mixture.h"
#include "reference/objectives/objectives.h"
#include "verify/tests/reference/model_testing.h"

namespace streambp::reference {
namespace {

const std::string kLatentAttention = "model.layers.0.self_attn.";

/// One layer of four heads: queries through 5 numbers, keys and values through 7, of 3 + 4 entries a key
/// and 2 a value.
ModelConfig latent_model() {
  ModelConfig config = small_model();
  config.num_hidden_layers = 1;
  config.qk_norm = false;
  config.o_bias = true;
  config.rope_interleaved = true;
  config.latent = {5, 7, 3, 4, 2};
  return config;
}

/// The layer over two tokens, entry by entry.
class LatentByHand {
 public:
  LatentByHand(const ModelConfig& config, const Weights& weights) : config_(config), weights_(weights) {}

  double log_probability(const Sequence& sequence) const {
    std::vector<Vector> h, n;
    for (int token : sequence.tokens) {
      h.push_back(weights_.at("model.embed_tokens.weight").row(token).transpose());
      n.push_back(norm("model.layers.0.input_layernorm", h.back(), config_.rms_norm_eps));
    }
    Vector out = h[1] + attention(n, sequence.positions);
    const Vector x = norm("model.layers.0.post_attention_layernorm", out, config_.rms_norm_eps);
    Vector inner = times("model.layers.0.mlp.up_proj", x);
    const Vector gate = times("model.layers.0.mlp.gate_proj", x);
    for (Index j = 0; j < inner.size(); ++j) inner(j) *= gate(j) / (1.0 + std::exp(-gate(j)));
    out += times("model.layers.0.mlp.down_proj", inner);
    const Eigen::ArrayXd p = times("lm_head", norm("model.norm", out, config_.rms_norm_eps)).array().exp();
    return std::log(p(sequence.targets[1]) / p.sum());
  }

 private:
  using Vector = Eigen::VectorXd;

  Vector times(const std::string& name, const Vector& x) const {
    Vector y = weights_.at(name + ".weight") * x;
    const auto bias = weights_.find(name + ".bias");
    if (bias != weights_.end()) y += bias->second.row(0).transpose();
    return y;
  }

  Vector norm(const std::string& name, const Vector& x, double epsilon) const {
    const double rms = std::sqrt(x.squaredNorm() / static_cast<double>(x.size()) + epsilon);
    return (x.array() / rms * weights_.at(name + ".weight").row(0).transpose().array()).matrix();
  }

  /// Four entries, of which neighbours are the two parts of a complex number.
  static Vector rotated(const Vector& x, double position) {
    Vector y(4);
    for (Index i = 0; i < 2; ++i) {
      const std::complex<double> z =
          std::complex<double>(x(2 * i), x(2 * i + 1)) * std::polar(1.0, position * (i == 0 ? 1.0 : 0.01));
      y(2 * i) = z.real();
      y(2 * i + 1) = z.imag();
    }
    return y;
  }

  Vector attention(const std::vector<Vector>& n, const std::vector<double>& positions) const {
    const Vector queries =
        config_.latent.q_lora_rank == 0
            ? times(kLatentAttention + "q_proj", n[1])
            : times(kLatentAttention + "q_b_proj", norm(kLatentAttention + "q_a_layernorm",
                                                        times(kLatentAttention + "q_a_proj", n[1]), 1e-6));
    Vector mixed = Vector::Zero(4 * 2);
    for (Index head = 0; head < 4; ++head) {
      double total = 0.0;
      for (std::size_t t : {0U, 1U}) {
        const Vector both = times(kLatentAttention + "kv_a_proj_with_mqa", n[t]);
        const Vector kv = times(kLatentAttention + "kv_b_proj",
                                norm(kLatentAttention + "kv_a_layernorm", both.head(7), 1e-6));
        const double score =
            queries.segment(head * 7, 3).dot(kv.segment(head * 5, 3)) +
            rotated(queries.segment(head * 7 + 3, 4), positions[1]).dot(rotated(both.tail(4), positions[t]));
        const double weight = std::exp(score / std::sqrt(7.0));
        total += weight;
        mixed.segment(head * 2, 2) += weight * kv.segment(head * 5 + 3, 2);
      }
      mixed.segment(head * 2, 2) /= total;
    }
    return times(kLatentAttention + "o_proj", mixed);
  }

  const ModelConfig& config_;
  const Weights& weights_;
};

TEST(ReferenceLatentAttention, OneLayerWrittenOutForTwoTokens) {
  for (int rank : {5, 0}) {
    ModelConfig config = latent_model();
    config.latent.q_lora_rank = rank;
    const Weights weights = random_weights(config, 501);
    const Sequence sequence = {{4, 7}, {2, 9}, {kNoTarget, 9}};
    const double expected = LatentByHand(config, weights).log_probability(sequence);
    const double error = std::abs(scores(config, weights, {sequence})[1] - expected);
    std::printf("rank %d: difference %.1e\n", rank, error);
    EXPECT_FALSE(!(error <= 1e-13)) << error;
  }
}

/// Rows of `size` that start at `first` in every group: neighbours 2 i and 2 i + 1 to i and i + size / 2.
Matrix halves_of_neighbours(const Matrix& x, Index group, Index first, Index size) {
  Matrix to = x;
  for (Index start = first; start < x.rows(); start += group) {
    for (Index i = 0; i < size / 2; ++i) {
      to.row(start + i) = x.row(start + 2 * i);
      to.row(start + size / 2 + i) = x.row(start + 2 * i + 1);
    }
  }
  return to;
}

TEST(ReferenceLatentAttention, NeighboursAreHalvesInAnotherOrder) {
  ModelConfig config = latent_model();
  config.qkv_bias = false;
  ModelConfig plain = config;
  plain.rope_interleaved = false;
  const auto reorder = [](Weights of) {
    Matrix& q = of.at(kLatentAttention + "q_b_proj.weight");
    q = halves_of_neighbours(q, 7, 3, 4);
    Matrix& k = of.at(kLatentAttention + "kv_a_proj_with_mqa.weight");
    k = halves_of_neighbours(k, 11, 7, 4);
    return of;
  };
  const Weights weights = random_weights(config, 502);
  const Result actual = evaluate(config, weights, kBatch, sft(8.0));
  const Result expected = evaluate(plain, reorder(weights), kBatch, sft(8.0));
  expect_same(actual.log_probabilities, expected.log_probabilities);
  expect_same(reorder(actual.gradients), expected.gradients);
  EXPECT_GT(largest_difference(actual.log_probabilities, scores(plain, weights)), 1e-4);
}

TEST(ReferenceLatentAttention, MscaleOfAllDimensionsScalesScores) {
  ModelConfig config = latent_model();
  config.rope.type = RopeType::kYarn;
  config.rope.factor = 8.0;
  config.rope.original_max_position_embeddings = 4;
  const Weights weights = random_weights(config, 503);
  ModelConfig scaled = config;
  const double stretch = 0.1 * 0.7 * std::log(8.0) + 1.0;
  scaled.attention_scale = stretch * stretch / std::sqrt(7.0);
  config.latent.mscale_all_dim = 0.7;
  expect_same(scores(config, weights), scores(scaled, weights));
  // A rotation that is not stretched has none.
  config.rope = scaled.rope = {};
  scaled.attention_scale = 0.0;
  EXPECT_EQ(scores(config, weights), scores(scaled, weights));
}

TEST(ReferenceSigmoidRouter, ChoosesByCorrectedScoresAmongTheBestGroups) {
  MixtureSettings mixture;
  mixture.num_experts = 6;
  mixture.num_experts_per_tok = 2;
  mixture.sigmoid_scores = mixture.corrected = true;
  Matrix p(1, 6), correction(1, 6);
  p << 0.9, 0.1, 0.5, 0.6, 0.25, 0.7;
  correction << 0.0, 0.0, 0.0, 0.0, 0.0, 0.0;
  const auto chosen = [&] { return chosen_experts(mixture, p, correction).front(); };
  EXPECT_EQ(chosen(), (std::vector<int>{0, 5}));
  correction << 0.0, 0.9, 0.0, 0.0, 0.0, -0.3;
  EXPECT_EQ(chosen(), (std::vector<int>{1, 0}));
  correction.setZero();
  // The sums of three groups of two are 1.0, 1.1 and 0.95: the largest score of all is not in the best group.
  mixture.n_group = 3;
  mixture.topk_group = 1;
  EXPECT_EQ(chosen(), (std::vector<int>{3, 2}));
  mixture.topk_group = 2;
  EXPECT_EQ(chosen(), (std::vector<int>{0, 3}));
  // Two groups of three, with their two best: 1.4 and 1.3, though the sums of all say the opposite.
  mixture.n_group = 2;
  mixture.topk_group = 1;
  EXPECT_EQ(chosen(), (std::vector<int>{0, 2}));
}

TEST(ReferenceSigmoidRouter, CorrectionsWeighNothing) {
  ModelConfig config = small_model();
  config.mixture = {4, 2, 5, true, 0.0, {false, true}};
  config.mixture.sigmoid_scores = config.mixture.corrected = true;
  config.mixture.shared_expert_ungated = true;
  config.mixture.shared_expert_intermediate_size = 3;
  config.mixture.routed_scaling_factor = 2.5;
  Weights weights = random_weights(config, 504);
  const std::string mlp = "model.layers.1.mlp.";
  Matrix& correction = weights.at(mlp + "gate.e_score_correction_bias");
  correction << 3.0, 0.0, 3.5, 0.0;  // beyond any sigmoid: always experts 0 and 2
  const Result first = evaluate(config, weights, kBatch, sft(8.0));
  correction << 4.0, -1.0, 7.0, 0.5;
  const Result second = evaluate(config, weights, kBatch, sft(8.0));
  EXPECT_EQ(first.log_probabilities, second.log_probabilities);
  EXPECT_EQ(first.gradients.at(mlp + "gate.e_score_correction_bias"), Matrix::Zero(1, 4));
  EXPECT_EQ(first.gradients.at(mlp + "experts.1.up_proj.weight"), Matrix::Zero(5, 10));
  EXPECT_GT(first.gradients.at(mlp + "experts.2.up_proj.weight").norm(), 1e-6);

  // A gate of zeros gives both half, or half of one each where they are normalised.
  weights.at(mlp + "gate.weight").setZero();
  const std::vector<double> normalised = scores(config, weights);
  config.mixture.norm_topk_prob = false;
  EXPECT_EQ(scores(config, weights), normalised);
  config.mixture.num_experts_per_tok = 1;
  const std::vector<double> half = scores(config, weights);
  config.mixture.norm_topk_prob = true;
  config.mixture.routed_scaling_factor = 1.25;
  expect_same(scores(config, weights), half);
  EXPECT_GT(largest_difference(half, normalised), 1e-4);
}

TEST(ReferenceSigmoidRouter, WithoutExpertsItsSharedOneIsADenseMlp) {
  ModelConfig config = small_model();
  config.num_hidden_layers = 1;
  config.mixture = {3, 2, 4, true, 0.0, {true}};
  config.mixture.sigmoid_scores = config.mixture.corrected = true;
  config.mixture.shared_expert_ungated = true;
  config.mixture.shared_expert_intermediate_size = config.intermediate_size;
  Weights weights = random_weights(config, 505);
  const std::string mlp = "model.layers.0.mlp.";
  for (int e = 0; e < 3; ++e)
    weights.at(mlp + "experts." + std::to_string(e) + ".down_proj.weight").setZero();
  ModelConfig dense = config;
  dense.mixture = {};
  Weights of_dense;
  for (const auto& [name, shape] : parameter_shapes(dense)) {
    const bool is_mlp = name.starts_with(mlp);
    of_dense[name] = weights.at(is_mlp ? mlp + "shared_experts." + name.substr(mlp.size()) : name);
  }
  expect_same(scores(config, weights), scores(dense, of_dense));
  config.mixture.router_aux_loss_coef = 0.1;
  EXPECT_THROW(scores(config, weights), std::invalid_argument);
}

TEST(ReferenceLatentAttention, RefusesWhatDoesNotGoTogether) {
  const auto refuses = [](const std::function<void(ModelConfig&)>& spoil, const std::string& mentioned) {
    ModelConfig config = latent_model();
    config.mixture = {6, 2, 4, true, 0.0, {true}};
    config.mixture.sigmoid_scores = config.mixture.corrected = true;
    config.mixture.n_group = 2;
    parameter_shapes(config);
    expect_refused(config, spoil, mentioned);
  };
  refuses([](ModelConfig& config) { config.latent.v_head_dim = 0; }, "sizes of latent attention");
  refuses([](ModelConfig& config) { config.latent.q_lora_rank = -1; }, "sizes of latent attention");
  refuses([](ModelConfig& config) { config.latent.qk_rope_head_dim = 3; }, "qk_rope_head_dim");
  refuses([](ModelConfig& config) { config.qk_norm = true; }, "qk_norm");
  refuses([](ModelConfig& config) { config.mixture.n_group = 4; }, "n_group");
  refuses([](ModelConfig& config) { config.mixture.n_group = 6; }, "n_group");
  refuses([](ModelConfig& config) { config.mixture.topk_group = 3; }, "topk_group");
  refuses([](ModelConfig& config) { config.mixture.num_experts_per_tok = 4; }, "topk_group");
  refuses([](ModelConfig& config) { config.mixture.routed_scaling_factor = 0.0; }, "routed_scaling_factor");
  refuses([](ModelConfig& config) { config.mixture.biased_interleaved = true; }, "softmax");
}

}  // namespace
}  // namespace streambp::reference
