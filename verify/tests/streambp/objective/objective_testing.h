// What the tests of objectives share: token values with gradients, and how a loss is taken of them.
#pragma once

#include <algorithm>
#include <cmath>
#include <fmt/ranges.h>
#include <gtest/gtest.h>
#include <map>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include "streambp/model/scored.h"
#include "streambp/objective/objective.h"
#include "streambp/objective/terms.h"

namespace streambp {

inline at::Tensor doubles(const std::vector<double>& values) {
  return at::tensor(at::ArrayRef<double>(values), at::kDouble);
}

inline void expect_near(double got, double expected, const std::string& what, double limit = 1e-13) {
  const double error = std::abs(got - expected) / std::max(std::abs(expected), 1e-3);
  EXPECT_TRUE(error <= limit) << what << ": " << got << ", expected " << expected << ", relative error "
                              << error;
}

inline void expect_near(const at::Tensor& got, const at::Tensor& expected, const std::string& what,
                        double limit = 1e-13) {
  ASSERT_EQ(got.sizes(), expected.sizes()) << what;
  const double error = ((got - expected).norm() / (expected.norm() + 1e-3)).item<double>();
  EXPECT_TRUE(error <= limit) << what << ": relative error " << error << ", limit " << limit;
}

/// Four sequences of 3, 2, 4 and 2 scored tokens, or two pairs of them: log-probabilities, their sums, and
/// the reference's.
inline constexpr int64_t kToyVocabulary = 13;
inline const std::vector<double> kLogP{-0.3, -1.2, -0.7, -2.1, -0.4, -0.9, -1.5, -0.2, -3.0, -0.8, -1.1};
inline const std::vector<double> kSums{-2.2, -2.5, -5.6, -1.9};
inline const std::vector<double> kReference{-2.0, -3.1, -5.0, -2.2};
inline const std::vector<double> kLengths{3, 2, 4, 2};

inline Batch toy() {
  Batch batch = random_batch({4, 3, 5, 3}, kToyVocabulary, 1);
  batch.sequence_inputs[inputs::kReferenceSums] = doubles(kReference);
  return batch;
}

inline double softplus(double x) {
  return std::log1p(std::exp(x));
}

inline double sigmoid(double x) {
  return 1.0 / (1.0 + std::exp(-x));
}

/// An objective with options, as the tests run through all of them.
struct Variant {
  std::string name;
  std::map<std::string, std::string> options;

  std::string text() const { return fmt::format("{} {}", name, fmt::join(options, " ")); }
};

/// Every loss that the objectives know.
inline std::vector<Variant> all_variants() {
  std::vector<Variant> variants{{"sft", {}},
                                {"sft", {{"reduction", "sum"}, {"label_smoothing", "0.1"}}},
                                {"sft", {{"divisor", "7"}}},
                                {"dpo", {{"cdpo_label_smoothing", "0.2"}}},
                                {"dpo", {{"loss_type", "hinge"}, {"beta", "0.7"}}},
                                {"dpo", {{"loss_type", "ipo"}}},
                                {"dpo", {{"loss_type", "robust"}, {"label_smoothing", "0.1"}}},
                                {"dpo", {{"reference_free", "true"}}},
                                {"cpo", {{"label_smoothing", "0.1"}}},
                                {"cpo", {{"loss_type", "hinge"}, {"cpo_alpha", "0"}}},
                                {"cpo", {{"loss_type", "ipo"}, {"alpha", "0.25"}}},
                                {"simpo", {{"label_smoothing", "0.1"}}},
                                {"orpo", {{"nll", "completion"}}},
                                {"kto", {{"loss_type", "apo_zero_unpaired"}}},
                                {"kto", {{"desirable_weight", "1.5"}, {"undesirable_weight", "0.6"}}},
                                {"ppo", {{"entropy_coef", "0.02"}, {"kl_coef", "0.1"}, {"vf_coef", "0.5"}}},
                                {"ppo", {{"vf_coef", "0"}}},
                                {"distill", {{"temperature", "2"}, {"alpha", "0.3"}}},
                                {"distill", {{"divergence", "reverse"}}}};
  for (const char* type : {"sigmoid_norm", "nca_pair", "bco_pair", "sppo_hard", "apo_zero", "apo_down", "sft",
                           "sigmoid+bco_pair+sft"}) {
    variants.push_back({"dpo", {{"loss_type", type}, {"beta", "0.4"}}});
  }
  variants.push_back({"dpo", {{"loss_type", "exo_pair"}, {"label_smoothing", "0.05"}, {"beta", "0.4"}}});
  variants.push_back({"dpo", {{"loss_type", "discopop"}, {"discopop_tau", "0.5"}}});
  variants.push_back({"dpo", {{"ld_alpha", "0.3"}}});
  for (const char* divergence : {"forward_kl", "js_divergence", "alpha_divergence"})
    variants.push_back({"dpo", {{"f_divergence_type", divergence}, {"beta", "0.4"}}});
  for (const char* type : {"grpo", "bnpo", "dr_grpo", "dapo"}) {
    for (const char* level : {"token", "sequence"}) {
      variants.push_back({"grpo",
                          {{"loss_type", type},
                           {"importance_sampling_level", level},
                           {"beta", "0.04"},
                           {"epsilon_high", "0.28"},
                           {"delta", "1.5"},
                           {"max_completion_length", "9"}}});
    }
  }
  const std::vector<Variant> policy{
      {"sft", {{"loss_type", "dft"}}},
      {"rloo", {{"epsilon_high", "0.6"}}},
      {"ppo", {{"kl_coef", "0.1"}, {"kl_estimator", "k1"}, {"clip_ratio_c", "1.3"}}},
      {"grpo", {{"loss_type", "cispo"}, {"epsilon_high", "0.1"}, {"beta", "0.1"}, {"kl_estimator", "k2"}}},
      {"grpo", {{"loss_type", "sapo"}, {"sapo_temperature_neg", "2"}, {"entropy_coef", "0.05"}}},
      {"grpo", {{"loss_type", "luspo"}, {"importance_sampling_level", "sequence"}, {"clip_ratio_c", "1.2"}}},
      {"grpo", {{"loss_type", "vespo"}, {"beta", "0.1"}, {"use_bias_correction_kl", "true"}}},
      {"grpo", {{"off_policy_mask_threshold", "0.05"}, {"loss_type", "dapo"}}},
      {"grpo", {{"top_entropy_quantile", "0.3"}, {"entropy_coef", "0.05"}, {"loss_type", "bnpo"}}}};
  variants.insert(variants.end(), policy.begin(), policy.end());
  return variants;
}

/// Whether its normalisers count tokens that only the whole batch can name.
inline bool wants_whole_batch(const Variant& variant) {
  return variant.options.contains("top_entropy_quantile");
}

/// Whether it holds a function of the values constant, so that differences are not its gradient.
inline bool holds_values_constant(const Variant& variant) {
  const auto type = variant.options.find("loss_type");
  return type != variant.options.end() && (type->second == "vespo" || type->second == "dft");
}

/// A seeded token's values of every kind, [m] each, ready for a gradient. Log-probabilities are 0 where
/// `has_target` is not.
inline TokenValues random_values(const at::Tensor& has_target, double typical_log_probability,
                                 uint64_t seed) {
  at::Generator generator = at::detail::createCPUGenerator(seed);
  const auto normal = [&] { return at::randn(has_target.sizes(), generator, at::kDouble); };
  TokenValues values;
  values.log_probabilities = (normal() * 0.3 + typical_log_probability).clamp_max(-0.01) * has_target;
  values.entropies = normal().abs();
  values.mean_log_probabilities = normal() - 3.0;
  values.values = normal();
  values.divergences = normal().abs();
  for (at::Tensor* each : {&values.log_probabilities, &values.entropies, &values.mean_log_probabilities,
                           &values.values, &values.divergences}) {
    each->requires_grad_();
  }
  return values;
}

/// The columns in the order of TokenValues.
inline std::vector<at::Tensor> columns(const TokenValues& values) {
  return {values.log_probabilities, values.entropies, values.mean_log_probabilities, values.values,
          values.divergences};
}

inline TokenValues from_columns(const std::vector<at::Tensor>& each) {
  return {each[0], each[1], each[2], each[3], each[4], /*log_sum_squares=*/{}};
}

/// Tokens [begin, end) of each column.
inline TokenValues slice(const TokenValues& values, int64_t begin, int64_t end) {
  std::vector<at::Tensor> parts;
  for (const at::Tensor& each : columns(values)) parts.push_back(each.slice(0, begin, end));
  return from_columns(parts);
}

/// [5, m]: the gradient of `loss` for each column, 0 where it does not depend on it.
inline at::Tensor gradients(const at::Tensor& loss, const TokenValues& values) {
  std::vector<at::Tensor> result = torch::autograd::grad({loss}, columns(values), {}, /*retain_graph=*/true,
                                                         /*create_graph=*/false, /*allow_unused=*/true);
  for (at::Tensor& each : result) {
    if (!each.defined()) each = at::zeros_like(values.log_probabilities);
  }
  return at::stack(result).detach();
}

/// The loss of the whole batch.
inline at::Tensor whole_loss(const Objective& objective, const TokenValues& values) {
  return objective.loss(values, 0, values.log_probabilities.size(0));
}

}  // namespace streambp
