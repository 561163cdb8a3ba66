// Thin models for long streams, and the decoder of one layer written out in plain loops: what their passes
// are compared with.
#pragma once

#include <algorithm>
#include <cmath>
#include <complex>
#include <cstdint>
#include <iterator>
#include <map>
#include <string>
#include <vector>

#include "streambp/model/batch.h"
#include "streambp/model/config/config.h"
#include "streambp/model/model.h"
#include "verify/long/delta_rule.h"

namespace streambp::verify {

/// What a thin model is: a qwen3, or with a window a mistral; with sinks besides, or recurrent, or with keys
/// and values in common.
struct ThinShape {
  int64_t vocabulary = 37;
  int64_t hidden = 16;
  int64_t heads = 2;  // on one key/value head
  int64_t layers = 1;
  int64_t window = 0;
  bool tied = false;
  bool sinks = false;      // as GPT-OSS has them
  bool recurrent = false;  // every layer has Qwen3.5's delta rule
  bool shared = false;     // layers above the first read its keys and values, as Gemma 4 has it
};

Config thin_config(const ThinShape& shape);

/// A float64 model whose maps are far enough from 0 for every part of the layer to matter.
Model thin_model(const Config& config, uint64_t seed);

/// Parameters by name, row-major.
template <typename Scalar>
using Weights = std::map<std::string, std::vector<Scalar>>;

Weights<double> weights_of(const Model& model);

/// A decoder of one layer of a thin model, or of several with the keys and values of the first, for numbers
/// that are real or, for derivatives by the complex step (Squire and Trapp, 1998), complex: d f / d w = Im
/// f(w + ih) / h without cancellation.
template <typename Scalar>
class WrittenDecoder {
 public:
  using Vector = std::vector<Scalar>;

  /// Keys and values of the tokens that one with a target sees.
  WrittenDecoder(const Config& config, const Weights<Scalar>& weights, const Batch& batch)
      : config_(config),
        weights_(weights),
        tokens_(batch.tokens.const_data_ptr<int64_t>()),
        positions_(batch.positions.const_data_ptr<int64_t>()),
        offsets_(batch.offsets) {
    const int64_t width = config.num_key_value_heads * config.head_dim;
    keys_.resize(static_cast<size_t>(batch.size() * width));
    values_.resize(keys_.size());
    const int64_t* const targets = batch.targets.const_data_ptr<int64_t>();
    if (config.is_recurrent(0)) {
      run_recurrence(targets);
      return;
    }
    int64_t next = 0;
    for (int64_t index = 0; index < batch.size(); ++index) {
      if (targets[index] == kNoTarget) continue;
      for (int64_t seen = std::max(next, first_seen(index)); seen <= index; ++seen) {
        const Vector normed = norm(embedded(seen), of(0, "input_layernorm.weight"), 0, config_.hidden_size);
        const Vector key =
            heads(map(normed, 0, "self_attn.k_proj.weight"), 0, "self_attn.k_norm.weight", seen);
        const Vector value = map(normed, 0, "self_attn.v_proj.weight");
        std::copy(key.begin(), key.end(), keys_.begin() + seen * width);
        std::copy(value.begin(), value.end(), values_.begin() + seen * width);
      }
      next = index + 1;
    }
  }

  /// Log-probability of `target` after the token at `index`.
  Scalar log_probability(int64_t index, int64_t target) const {
    Vector y = embedded(index);
    for (int64_t layer = 0; layer < config_.num_hidden_layers; ++layer) y = output(y, layer, index);
    const Vector last = norm(y, weights_.at("model.norm.weight"), 0, config_.hidden_size);
    const Vector logits =
        product(last, weights_.at(config_.tie_word_embeddings ? kEmbedding : "lm_head.weight"));
    Scalar sum = 0.0;
    for (const Scalar& logit : logits) sum += std::exp(logit);
    return logits[static_cast<size_t>(target)] - std::log(sum);
  }

 private:
  static constexpr const char* kEmbedding = "model.embed_tokens.weight";

  const Vector& of(int64_t layer, const std::string& name) const {
    return weights_.at("model.layers." + std::to_string(layer) + "." + name);
  }

  /// Of a layer for the token at `index`, whose input is x.
  Vector output(const Vector& x, int64_t layer, int64_t index) const {
    Vector middle = add(x, mixed(x, layer, index));
    const Vector inner = norm(middle, of(layer, "post_attention_layernorm.weight"), 0, config_.hidden_size);
    Vector gate_proj = map(inner, layer, "mlp.gate_proj.weight");
    const Vector up_proj = map(inner, layer, "mlp.up_proj.weight");
    for (size_t i = 0; i < gate_proj.size(); ++i)
      gate_proj[i] *= up_proj[i] / (Scalar(1.0) + std::exp(-gate_proj[i]));
    return add(std::move(middle), map(gate_proj, layer, "mlp.down_proj.weight"));
  }

  Vector embedded(int64_t index) const {
    const Vector& all = weights_.at(kEmbedding);
    const auto first = all.begin() + tokens_[index] * config_.hidden_size;
    return Vector(first, first + config_.hidden_size);
  }

  /// What the layer's tokens give before its last projection, where they hand a state on.
  void run_recurrence(const int64_t* targets) {
    const auto parameter = [this](const std::string& name) -> const Vector& {
      return of(0, "linear_attn." + name);
    };
    for (size_t i = 0; i + 1 < offsets_.size(); ++i) {
      WrittenDeltaRule<Scalar> rule(config_.delta_rule, config_.rms_norm_eps, parameter);
      for (int64_t index = offsets_[i]; index < offsets_[i + 1]; ++index) {
        Vector y = rule.next(norm(embedded(index), of(0, "input_layernorm.weight"), 0, config_.hidden_size));
        if (targets[index] != kNoTarget) recurrent_[index] = std::move(y);
      }
    }
  }

  /// What attention or the recurrence adds to x.
  Vector mixed(const Vector& x, int64_t layer, int64_t index) const {
    if (config_.is_recurrent(0)) return map(recurrent_.at(index), 0, "linear_attn.out_proj.weight");
    const Vector normed = norm(x, of(layer, "input_layernorm.weight"), 0, config_.hidden_size);
    const Vector query =
        heads(map(normed, layer, "self_attn.q_proj.weight"), layer, "self_attn.q_norm.weight", index);
    return map(attended(query, layer, index), layer, "self_attn.o_proj.weight");
  }

  static Vector product(const Vector& x, const Vector& matrix) {
    Vector y(matrix.size() / x.size(), Scalar(0.0));
    for (size_t i = 0; i < y.size(); ++i) {
      for (size_t j = 0; j < x.size(); ++j) y[i] += matrix[i * x.size() + j] * x[j];
    }
    return y;
  }

  Vector map(const Vector& x, int64_t layer, const std::string& name) const {
    return product(x, of(layer, name));
  }

  static Vector add(Vector x, const Vector& y) {
    for (size_t i = 0; i < x.size(); ++i) x[i] += y[i];
    return x;
  }

  /// Entries [begin, begin + size) of x, divided by their root mean square, times `weight`.
  Vector norm(const Vector& x, const Vector& weight, int64_t begin, int64_t size) const {
    const auto first = x.begin() + begin;
    Scalar squares = 0.0;
    for (int64_t i = 0; i < size; ++i) squares += first[i] * first[i];
    const Scalar root = std::sqrt(squares / static_cast<double>(size) + config_.rms_norm_eps);
    Vector y(first, first + size);
    for (size_t i = 0; i < y.size(); ++i) y[i] *= weight[i] / root;
    return y;
  }

  /// Each head normed, where the family does that, and rotated by its position.
  Vector heads(Vector x, int64_t layer, const std::string& norm_name, int64_t index) const {
    const int64_t size = config_.head_dim, half = size / 2;
    for (int64_t begin = 0; begin < static_cast<int64_t>(x.size()); begin += size) {
      Vector head = config_.qk_norm ? norm(x, of(layer, norm_name), begin, size)
                                    : Vector(x.begin() + begin, x.begin() + begin + size);
      for (int64_t i = 0; i < half; ++i) {
        const double angle =
            static_cast<double>(positions_[index]) *
            std::pow(config_.rope.theta, -2.0 * static_cast<double>(i) / static_cast<double>(size));
        const double cosine = std::cos(angle), sine = std::sin(angle);
        const auto first = static_cast<size_t>(i), second = static_cast<size_t>(i + half);
        x[static_cast<size_t>(begin) + first] = head[first] * cosine - head[second] * sine;
        x[static_cast<size_t>(begin) + second] = head[second] * cosine + head[first] * sine;
      }
    }
    return x;
  }

  /// The first token that the one at `index` sees.
  int64_t first_seen(int64_t index) const {
    const int64_t begin = *std::prev(std::upper_bound(offsets_.begin(), offsets_.end(), index));
    const int64_t window = config_.windows[0];
    return window == 0 ? begin : std::max(begin, index - window + 1);
  }

  Vector attended(const Vector& query, int64_t layer, int64_t index) const {
    const int64_t size = config_.head_dim, width = config_.num_key_value_heads * size,
                  group = config_.num_attention_heads / config_.num_key_value_heads;
    const int64_t begin = first_seen(index);
    Vector y(query.size(), Scalar(0.0));
    const double scale = 1.0 / std::sqrt(static_cast<double>(size));
    for (int64_t head = 0; head < config_.num_attention_heads; ++head) {
      const auto q = query.begin() + head * size;
      const auto output = y.begin() + head * size;
      Scalar sum = config_.attention_sinks ? std::exp(of(layer, "self_attn.sinks")[static_cast<size_t>(head)])
                                           : Scalar(0.0);
      for (int64_t key = begin; key <= index; ++key) {
        const int64_t row = key * width + head / group * size;
        Scalar score = 0.0;
        for (int64_t e = 0; e < size; ++e) score += q[e] * keys_[static_cast<size_t>(row + e)];
        const Scalar weight = std::exp(score * scale);
        sum += weight;
        for (int64_t e = 0; e < size; ++e) output[e] += weight * values_[static_cast<size_t>(row + e)];
      }
      for (int64_t e = 0; e < size; ++e) output[e] /= sum;
    }
    return y;
  }

  const Config& config_;
  const Weights<Scalar>& weights_;
  const int64_t* tokens_;
  const int64_t* positions_;
  std::vector<int64_t> offsets_;
  Vector keys_;  // [N, K, E]
  Vector values_;
  std::map<int64_t, Vector> recurrent_;  // by the token's index, of those with a target
};

/// d f / d entry `index` of parameter `name`, where f is the mean of -log p over the batch's targets, which
/// should be few.
double written_derivative(const Config& config, const Weights<double>& weights, const Batch& batch,
                          const std::string& name, int64_t index);

/// The log-probabilities of the batch's targets, in stream order.
std::vector<double> written_log_probabilities(const Config& config, const Weights<double>& weights,
                                              const Batch& batch);

}  // namespace streambp::verify
