// The experts of Mixtral, Qwen2-MoE and GPT-OSS and the sinks of the last, by identities that tie them to
// models without them, and a layer written out by hand.
#include <cmath>
#include <gtest/gtest.h>
#include <stdexcept>

#include "reference/check/check.h"
#include "reference/mixture.h"
#include "reference/objectives/objectives.h"
#include "reference/ops/ops.h"
#include "verify/tests/reference/model_testing.h"

namespace streambp::reference {
namespace {

const std::string kMlp = "model.layers.0.mlp.";
const std::string kAttention = "model.layers.0.self_attn.";

/// One layer of experts as wide as a dense MLP.
ModelConfig expert_model(int experts, int chosen) {
  ModelConfig config = small_model();
  config.num_hidden_layers = 1;
  config.mixture = {experts, chosen, config.intermediate_size, true, 0.0, {true}};
  return config;
}

/// Expert e's `count` rows of a matrix of all experts.
Matrix of_expert(const Matrix& all, int e, Index count) {
  return all.middleRows(e * count, count);
}

TEST(ReferenceMixture, NormalisedProbabilitiesAreTheSoftmaxOfTheChosenLogits) {
  MixtureSettings mixture = {6, 3, 1, true, 0.0, {true}};
  Tape tape;
  const Matrix z = random_matrix(5, 6, 301, -9.0, 9.0);
  const Var x = tape.leaf(random_matrix(5, 1, 302, 0.5, 2.0));
  const Var y = mixture_of_experts(mixture, x, exp(log_softmax(tape.leaf(z))),
                                   [](int e, const Var& rows) { return scale(rows, 1.0 + e * e); });
  const auto chosen = largest_columns(z, 3);
  double worst = 0.0;
  for (Index t = 0; t < z.rows(); ++t) {
    double total = 0.0, mixed = 0.0;
    for (int e : chosen[static_cast<std::size_t>(t)]) {
      total += std::exp(z(t, e));
      mixed += std::exp(z(t, e)) * (1.0 + e * e);
    }
    const double expected = mixed / total * x.value()(t, 0);
    worst = std::max(worst, std::abs(y.value()(t, 0) / expected - 1.0));
  }
  std::printf("largest relative difference %.1e\n", worst);
  EXPECT_FALSE(!(worst <= 1e-14)) << worst;
}

TEST(ReferenceSharedExpert, WithoutOthersIsADenseMlpTimesItsGate) {
  ModelConfig config = expert_model(3, 2);
  config.mixture.shared_expert_intermediate_size = config.intermediate_size;
  Weights weights = random_weights(config, 303);
  ASSERT_EQ(weights.at(kMlp + "shared_expert_gate.weight").rows(), 1);
  for (int e = 0; e < 3; ++e) weights.at(kMlp + "experts." + std::to_string(e) + ".down_proj.weight") *= 0.0;

  ModelConfig dense = config;
  dense.mixture = {};
  Weights of_dense;
  for (const auto& [name, shape] : parameter_shapes(dense)) {
    const bool is_mlp = name.starts_with(kMlp);
    of_dense[name] = weights.at(is_mlp ? kMlp + "shared_expert." + name.substr(kMlp.size()) : name);
  }
  // A gate of zeros lets half through.
  Weights half = weights;
  half.at(kMlp + "shared_expert_gate.weight") *= 0.0;
  Weights halved = of_dense;
  halved.at(kMlp + "down_proj.weight") *= 0.5;
  expect_same(scores(config, half), scores(dense, halved));
  EXPECT_GT(largest_difference(scores(config, weights), scores(config, half)), 1e-4);
}

double sigmoid(double x) {
  return 1.0 / (1.0 + std::exp(-x));
}

/// One layer over one token, step by step.
class ExpertsByHand {
 public:
  ExpertsByHand(const ModelConfig& config, const Weights& weights) : config_(config), weights_(weights) {}

  double log_probability(int token, int target) const {
    Vector h = weights_.at("model.embed_tokens.weight").row(token).transpose();
    h += attention(norm("model.layers.0.input_layernorm", h));
    h += experts(norm("model.layers.0.post_attention_layernorm", h));
    const Eigen::ArrayXd p = times("lm_head", norm("model.norm", h)).array().exp();
    return std::log(p(target) / p.sum());
  }

  mutable int clamped = 0;  // entries of gates and ups that the limit has changed

 private:
  using Vector = Eigen::VectorXd;

  Vector norm(const std::string& name, const Vector& x) const {
    const double rms = std::sqrt(x.squaredNorm() / static_cast<double>(x.size()) + config_.rms_norm_eps);
    return (x.array() / rms * weights_.at(name + ".weight").row(0).transpose().array()).matrix();
  }

  Vector times(const std::string& name, const Vector& x) const {
    Vector y = weights_.at(name + ".weight") * x;
    const auto bias = weights_.find(name + ".bias");
    if (bias != weights_.end()) y += bias->second.row(0).transpose();
    return y;
  }

  /// The only token attends to itself and to the sink. Where it stands turns query and key alike.
  Vector attention(const Vector& n) const {
    const Vector q = times(kAttention + "q_proj", n), k = times(kAttention + "k_proj", n);
    const Vector v = times(kAttention + "v_proj", n);
    Vector mixed(q.size());
    const Index size = config_.head_dim;
    for (Index head = 0; head < config_.num_attention_heads; ++head) {
      const Index from = head / (config_.num_attention_heads / config_.num_key_value_heads) * size;
      const double score =
          q.segment(head * size, size).dot(k.segment(from, size)) / std::sqrt(static_cast<double>(size));
      const double seen =
          config_.attention_sinks ? sigmoid(score - weights_.at(kAttention + "sinks")(0, head)) : 1.0;
      mixed.segment(head * size, size) = seen * v.segment(from, size);
    }
    return times(kAttention + "o_proj", mixed);
  }

  Vector experts(const Vector& n) const {
    const MixtureSettings& mixture = config_.mixture;
    const Vector z = times(kMlp + (mixture.biased_interleaved ? "router" : "gate"), n);
    const Eigen::ArrayXd weight = z.array().exp();
    double total = mixture.norm_topk_prob ? 0.0 : weight.sum();
    Vector y = Vector::Zero(n.size());
    const auto chosen = largest_columns(z.transpose(), mixture.num_experts_per_tok);
    for (int e : chosen.front()) {
      if (mixture.norm_topk_prob) total += weight(e);
      y += weight(e) * (mixture.biased_interleaved ? interleaved(e, n)
                                                   : dense(kMlp + "experts." + std::to_string(e) + ".", n));
    }
    y /= total;
    if (mixture.shared_expert_intermediate_size == 0) return y;
    return y + sigmoid(times(kMlp + "shared_expert_gate", n)(0)) * dense(kMlp + "shared_expert.", n);
  }

  Vector dense(const std::string& module, const Vector& n) const {
    Vector inner = times(module + "up_proj", n);
    const Vector gate = times(module + "gate_proj", n);
    for (Index j = 0; j < inner.size(); ++j) inner(j) *= gate(j) * sigmoid(gate(j));
    return times(module + "down_proj", inner);
  }

  Vector interleaved(int e, const Vector& n) const {
    const auto of = [&](const std::string& name) { return weights_.at(kMlp + "experts." + name); };
    const Index width = config_.mixture.moe_intermediate_size;
    const Vector both = of_expert(of("gate_up_proj"), e, n.size()).transpose() * n +
                        of("gate_up_proj_bias").row(e).transpose();
    const double limit = config_.swiglu_limit;
    Vector inner(width);
    for (Index j = 0; j < width; ++j) {
      const double gate = both(2 * j) > limit ? limit : both(2 * j);
      const double up =
          std::abs(both(2 * j + 1)) > limit ? std::copysign(limit, both(2 * j + 1)) : both(2 * j + 1);
      clamped += static_cast<int>(gate != both(2 * j)) + static_cast<int>(up != both(2 * j + 1));
      inner(j) = gate * sigmoid(config_.swiglu_alpha * gate) * (up + 1.0);
    }
    return of_expert(of("down_proj"), e, width).transpose() * inner + of("down_proj_bias").row(e).transpose();
  }

  const ModelConfig& config_;
  const Weights& weights_;
};

void expect_by_hand(const ModelConfig& config, const Weights& weights, const ExpertsByHand& by_hand) {
  double worst = 0.0;
  for (int token = 0; token < config.vocab_size; ++token) {
    const double actual = scores(config, weights, {{{token}, {3}, {9}}})[0];
    worst = std::max(worst, std::abs(actual - by_hand.log_probability(token, 9)));
  }
  std::printf("largest difference %.1e\n", worst);
  EXPECT_FALSE(!(worst <= 1e-13)) << worst;
}

ModelConfig gpt_oss_model() {
  ModelConfig config = expert_model(3, 2);
  config.qk_norm = false;
  config.o_bias = true;
  config.attention_sinks = true;
  config.swiglu_alpha = 1.702;
  config.swiglu_limit = 0.8;
  config.mixture.biased_interleaved = true;
  return config;
}

TEST(ReferenceQwen2Moe, OneLayerWrittenOutForOneToken) {
  ModelConfig config = expert_model(4, 2);
  config.qk_norm = false;
  config.mixture.norm_topk_prob = false;
  config.mixture.shared_expert_intermediate_size = 5;
  const Weights weights = random_weights(config, 304);
  expect_by_hand(config, weights, ExpertsByHand(config, weights));
}

TEST(ReferenceGptOss, OneLayerWrittenOutForOneToken) {
  const ModelConfig config = gpt_oss_model();
  const Weights weights = random_weights(config, 305);
  const ExpertsByHand by_hand(config, weights);
  expect_by_hand(config, weights, by_hand);
  EXPECT_GT(by_hand.clamped, 20);
}

TEST(ReferenceSinks, FarBelowAllScoresAreNone) {
  ModelConfig config = small_model();
  const Weights plain = random_weights(config, 306);
  config.attention_sinks = true;
  Weights weights = plain;
  for (int layer = 0; layer < 2; ++layer) {
    weights[layer_prefix(layer) + "self_attn.sinks"] = Matrix::Constant(1, 4, -900.0);
  }
  const Result actual = evaluate(config, weights, kBatch, sft(8.0));
  ModelConfig without = config;
  without.attention_sinks = false;
  const Result expected = evaluate(without, plain, kBatch, sft(8.0));
  expect_same(actual.log_probabilities, expected.log_probabilities);
  for (const auto& [name, gradient] : expected.gradients) {
    EXPECT_FALSE(!(relative_error(actual.gradients.at(name), gradient) <= 1e-13)) << name;
  }
  for (auto& [name, weight] : weights) {
    if (name.ends_with("sinks")) weight.setConstant(0.5);
  }
  EXPECT_GT(largest_difference(scores(config, weights), expected.log_probabilities), 1e-3);
}

/// The same experts as matrices of their own, gate and up apart.
Weights separated(const ModelConfig& config, const Weights& of) {
  Weights result = of;
  const Index width = config.mixture.moe_intermediate_size;
  const Matrix both = result.extract(kMlp + "experts.gate_up_proj").mapped();
  const Matrix down = result.extract(kMlp + "experts.down_proj").mapped();
  for (const char* name : {"experts.gate_up_proj_bias", "experts.down_proj_bias", "router.bias"}) {
    result.erase(kMlp + name);
  }
  result[kMlp + "gate.weight"] = result.extract(kMlp + "router.weight").mapped();
  for (int e = 0; e < config.mixture.num_experts; ++e) {
    const std::string expert = kMlp + "experts." + std::to_string(e) + ".";
    const Matrix rows = of_expert(both, e, config.hidden_size).transpose();
    Matrix gate(width, config.hidden_size), up = gate;
    for (Index j = 0; j < width; ++j) gate.row(j) = rows.row(2 * j), up.row(j) = rows.row(2 * j + 1);
    result[expert + "gate_proj.weight"] = gate;
    result[expert + "up_proj.weight"] = up;
    result[expert + "down_proj.weight"] = of_expert(down, e, width).transpose();
  }
  return result;
}

TEST(ReferenceInterleavedExperts, WithoutBiasesAreTheOthersInAnotherOrder) {
  ModelConfig config = expert_model(3, 2);
  config.mixture.biased_interleaved = true;
  Weights weights = random_weights(config, 307);
  for (auto& [name, weight] : weights) {
    if (name.starts_with(kMlp) && name.ends_with("bias")) weight.setZero();
  }
  ModelConfig plain = config;
  plain.mixture.biased_interleaved = false;
  const Result actual = evaluate(config, weights, kBatch, sft(8.0));
  const Result expected = evaluate(plain, separated(config, weights), kBatch, sft(8.0));
  expect_same(actual.log_probabilities, expected.log_probabilities);
  expect_same(separated(config, actual.gradients), expected.gradients);
}

TEST(ReferenceInterleavedExperts, AnAdapterIsPartOfTheirWeights) {
  ModelConfig config = gpt_oss_model();
  const int rank = 2, experts = config.mixture.num_experts;
  config.adapters[kMlp + "experts.gate_up_proj"] = {rank, 0.7};
  config.adapters[kMlp + "experts.down_proj"] = {rank, 1.3};
  const Weights weights = random_weights(config, 308);
  Weights merged = weights;
  for (const auto& [module, adapter] : config.adapters) {
    const Matrix a = merged.extract(module + ".lora_A.weight").mapped();
    const Matrix b = merged.extract(module + ".lora_B.weight").mapped();
    Matrix& all = merged.at(module);
    ASSERT_EQ(all.rows(), experts * a.cols());
    ASSERT_EQ(all.cols(), b.rows());
    for (int e = 0; e < experts; ++e) {
      for (int j = 0; j < rank; ++j) {
        all.middleRows(e * a.cols(), a.cols()) +=
            adapter.scale * a.row(e * rank + j).transpose() * b.col(j * experts + e).transpose();
      }
    }
  }
  ModelConfig plain = config;
  plain.adapters.clear();
  expect_same(scores(config, weights), scores(plain, merged));
  for (const auto& [module, adapter] : config.adapters) merged.at(module) = weights.at(module);
  EXPECT_GT(largest_difference(scores(config, weights), scores(plain, merged)), 1e-3);
}

TEST(ReferenceClampedSwiglu, ByHand) {
  Tape tape;
  Matrix gates(1, 4), ups(1, 4);
  gates << 8.0, -20.0, 2.0, 7.0;
  ups << -9.0, 3.0, 7.5, 0.5;
  const Var gate = tape.leaf(gates), up = tape.leaf(ups);
  const Var y = clamped_swiglu(gate, up, 1.5, 7.0);
  tape.backward(y, Matrix::Ones(1, 4));
  // Gates are clamped above only.
  const double expected[] = {7.0 * sigmoid(10.5) * -6.0, -20.0 * sigmoid(-30.0) * 4.0,
                             2.0 * sigmoid(3.0) * 8.0, 7.0 * sigmoid(10.5) * 1.5};
  for (Index j = 0; j < 4; ++j) {
    EXPECT_NEAR(y.value()(0, j), expected[j], 1e-14 * std::abs(expected[j])) << j;
  }
  EXPECT_EQ(gate.gradient()(0, 0), 0.0);
  EXPECT_EQ(up.gradient()(0, 0), 0.0);
  EXPECT_NE(gate.gradient()(0, 1), 0.0);
  EXPECT_EQ(up.gradient()(0, 2), 0.0);
  EXPECT_NE(gate.gradient()(0, 3), 0.0);  // at the limit itself, as torch.clamp has it
  EXPECT_THROW(clamped_swiglu(gate, up, 0.0, 7.0), std::invalid_argument);
}

}  // namespace
}  // namespace streambp::reference
