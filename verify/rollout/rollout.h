// What it does to a policy gradient that another engine has sampled the completions: an inference engine
// reports log-probabilities that are not quite the trainer's. With w the ratio of a whole completion, the
// product of exp(log p - log p_sampling) over its tokens, the gradient with each row's policy term times w is
// unbiased; what trainers compute in its place is held against it, in length and direction, as a whole and
// row by row.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "verify/compare/truth.h"

namespace streambp::verify {

/// TRL's vllm_importance_sampling_clip_min and _max.
struct RatioBounds {
  double least = 0.0;
  double most = 3.0;
};

/// A gradient against another one: how many times as long, and the angle between them; NaN where either is
/// zero.
struct Turn {
  double length = 0.0;
  double degrees = 0.0;
};

/// One way to compute the gradient of this batch.
struct RolloutGradient {
  std::string name;  // unbiased, uncorrected, token_truncate, ...
  Turn of_unbiased;
  Turn of_uncorrected;
  int64_t bounded = 0;     // scored tokens whose ratio was cut or set to 0
  std::vector<Turn> rows;  // of each row's uncorrected gradient
};

struct RolloutRow {
  int64_t tokens = 0;       // scored
  double difference = 0.0;  // the mean of log p - log p_sampling
  double most = 0.0;        // the largest of them, without its sign
  double ratio = 1.0;       // w
  double share = 0.0;       // the length of its uncorrected gradient, of the whole one's
};

struct Rollout {
  std::vector<RolloutGradient> gradients;  // unbiased first, uncorrected second
  std::vector<RolloutRow> rows;
  int64_t tokens = 0;           // scored
  int64_t unknown = 0;          // of these, without a log-probability: their ratio is 1, as TRL has it
  double effective_rows = 0.0;  // (sum of w)^2 / sum of w^2
  double sampling_error =
      0.0;  // root of the mean square of p_sampling's logarithms' distance from the float64 truth
  std::optional<double> trainer_error;  // the same of the trainer's own, where the batch has them
  RatioBounds bounds;
};

/// Of the batch's sampling_per_token_logps, and its old_per_token_logps for the trainer's own, or without
/// them the truth's. `options` are those that `truth`, of grpo, was opened with. Gradients are in float64,
/// without the routers' loss. Throws InputError for a batch without sampling_per_token_logps, loss_type
/// vespo, which has its own use of ratios, ratios that overflow, and gradients that are all zero.
Rollout measure_rollout(Truth& truth, const CompareOptions& options, const RatioBounds& bounds = {});

/// What is printed: a sentence or two, the gradients in a table, then the rows.
std::string rollout_text(const Rollout& rollout);
/// One line of JSON.
std::string rollout_json(const Rollout& rollout);

}  // namespace streambp::verify
