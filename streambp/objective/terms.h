// What objectives are made of: the scored tokens of a batch with their inputs, sums over its sequences, and
// functions that stay finite and differentiable at extreme arguments. Only ops that every device has, meta
// included, and that give the same bits in every run.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include <ATen/ATen.h>

#include "streambp/objective/objective.h"

namespace streambp {

inline constexpr double kInfinity = std::numeric_limits<double>::infinity();

namespace inputs {
// Of Batch::token_inputs, each at the token whose logits predict what it is about.
inline constexpr const char* kAdvantages = "advantages";
inline constexpr const char* kOldLogProbabilities = "old_log_probabilities";
inline constexpr const char* kReferenceLogProbabilities = "reference_log_probabilities";
inline constexpr const char* kOldValues = "old_values";
inline constexpr const char* kReturns = "returns";
inline constexpr const char* kImportanceSamplingRatio = "importance_sampling_ratio";
inline constexpr const char* kSamplingLogProbabilities = "sampling_log_probabilities";
// Of Batch::sequence_inputs; advantages are among them where each sequence has a single one.
inline constexpr const char* kOldSums = "old_sums";              // sums of the old log-probabilities
inline constexpr const char* kReferenceSums = "reference_sums";  // sums of the reference's log-probabilities
inline constexpr const char* kMargin = "margin";                 // reward: of a pair, at both its sequences
inline constexpr const char* kCompletionTokens =
    "completion_tokens";  // DPO: of completion_mask, the first column's included, which nothing predicts
inline constexpr const char* kRole = "role";  // KTO: 1 desirable, 0 undesirable, 2 for the KL estimate
}  // namespace inputs

/// The M scored tokens of a batch of S sequences. Keeps nothing of the batch.
class ScoredTokens {
 public:
  ScoredTokens(std::string objective, const Batch& batch);

  int64_t size() const { return indices_.size(0); }
  int64_t sequences() const { return static_cast<int64_t>(sizes_.size()); }

  /// [M] float64, 1 or 0: whether a token has a target, whether it is asked for a value.
  const at::Tensor& has_target() const { return has_target_; }
  const at::Tensor& has_value() const { return has_value_; }
  /// [S] float64: tokens with a target in each sequence, 1 where there are none, so that it may divide.
  const at::Tensor& lengths() const { return lengths_; }
  /// [M] float64: which of its sequence's tokens with a target a token is, counted from 1 (one without has
  /// the number of the one before it).
  at::Tensor ranks() const;
  /// The first sequence without a token that has a target; -1 where there is none.
  int64_t empty_sequence() const;

  /// Token input `name` at the scored tokens, [M] float64, 0 where `mask` [M] is. Throws InputError if it is
  /// missing or has the wrong length, and for a number that is not finite where the mask is not 0.
  at::Tensor token_input(const Batch& batch, const char* name, const at::Tensor& mask) const;
  /// `of_tokens` [N] at the scored tokens, [M].
  at::Tensor at_scored(const at::Tensor& of_tokens) const { return of_tokens.index_select(0, indices_); }
  /// Sequence input `name`, [S] float64. Throws InputError as token_input does.
  at::Tensor sequence_input(const Batch& batch, const char* name) const;
  /// The reference's log-probabilities summed over each sequence, [S]: given as such, or per token, then each
  /// times its entry of `weights` [M] (undefined: 1). Throws InputError if neither is there.
  at::Tensor reference_sums(const Batch& batch, const at::Tensor& weights = {}) const;

  /// Sums of `values` [M] over each sequence's tokens with a target, [S].
  at::Tensor sums(const at::Tensor& values) const;
  /// Each token's entry of `rows` [S], [M].
  at::Tensor spread(const at::Tensor& rows) const;

 private:
  at::Tensor checked(const at::Tensor& input, const char* name, int64_t length) const;

  std::string objective_;
  at::Tensor indices_;          // [M]
  std::vector<int64_t> sizes_;  // [S]: scored tokens of each sequence, a run of the stream
  at::Tensor has_target_;
  at::Tensor has_value_;
  at::Tensor lengths_;
};

/// Elements [begin, end) of an objective's own `all` [M], on the device of `values`.
at::Tensor part(const at::Tensor& all, int64_t begin, int64_t end, const at::Tensor& values);

/// x cut at a bound or two, gradient 0 beyond; and the smaller or the larger of two tensors, the first where
/// they are equal. Torch's own clamp, relu, minimum and maximum go backward through an op that has no Meta
/// kernel.
at::Tensor at_most(const at::Tensor& x, double most);
at::Tensor at_least(const at::Tensor& x, double least);
at::Tensor between(const at::Tensor& x, double least, double most);
at::Tensor smaller(const at::Tensor& a, const at::Tensor& b);
at::Tensor larger(const at::Tensor& a, const at::Tensor& b);

/// log sigma(z), exact to rounding for every finite z.
at::Tensor stable_log_sigmoid(const at::Tensor& z);

/// The largest exponent that exp_clamped takes: e^80 is 5.5e34, so that squares and sums over a batch stay
/// finite.
inline constexpr double kLargestExponent = 80.0;

/// exp(x) for x up to kLargestExponent; beyond, its value there with gradient 0.
at::Tensor exp_clamped(const at::Tensor& x);

/// The estimate exp(d) - d - 1 of the KL divergence from a reference, d = log p_reference - log p (Schulman,
/// Approximating KL Divergence, 2020: k3). d is cut at kLargestExponent, with gradient 0 beyond.
at::Tensor k3(const at::Tensor& reference, const at::Tensor& log_probabilities);

/// An estimate of the KL divergence from a reference by its name (Schulman, the same): with d = log
/// p_reference
/// - log p, "k1" is -d, "k2" is d^2 / 2 and "k3" is the function above.
at::Tensor kl_estimate(const std::string& estimator, const at::Tensor& reference,
                       const at::Tensor& log_probabilities);

/// The option that names it.
Option kl_estimator_option();

/// How far ratios count: clipped from 1 - low to 1 + high, the one that is left unclipped cut at `most`, and
/// under a negative advantage at `dual` whatever came before.
struct ClipRange {
  double low = 0.0;
  double high = 0.0;
  double most = kInfinity;
  double dual = kInfinity;
};

/// The clipped surrogate min(min(r, most) A, clip(r, 1 - low, 1 + high) A), to be maximised (PPO, arXiv
/// 1707.06347, equation 7); where A < 0 no less than dual A (dual clip, arXiv 1912.09729, equation 5).
at::Tensor clipped_surrogate(const at::Tensor& ratio, const at::Tensor& advantages, const ClipRange& range);

/// How a sum over tokens with a target becomes a loss: options that objectives share, and what they divide
/// by. Throws InputError for a divisor that is not above 0, or is given with reduction sum.
Option reduction_option();
Option divisor_option();
double token_divisor(const std::string& objective, const Options& options, const Counts& whole);

/// Half of the sequences of pairs. Throws InputError for an odd number of them.
int64_t number_of_pairs(const std::string& objective, int64_t sequences);

}  // namespace streambp
