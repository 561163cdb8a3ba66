#include "verify/rollout/rollout.h"

#include <cmath>
#include <utility>

#include "streambp/error.h"
#include "streambp/model/scored.h"
#include "streambp/objective/terms.h"
#include "verify/diagnose/parts/slopes.h"

namespace streambp::verify {
namespace {

constexpr double kLargestLogRatio = 700.0;
constexpr double kDegrees = 180.0 / M_PI;

/// `a` against `b`. The angle by half of it: of equal gradients it is 0, not the root of a rounding error.
Turn turn_of(const Tensors& a, const Tensors& b) {
  double squares_a = 0.0, squares_b = 0.0;
  for (const auto& [name, gradient] : a) {
    squares_a += at::dot(gradient.flatten(), gradient.flatten()).item<double>();
    squares_b += at::dot(b.at(name).flatten(), b.at(name).flatten()).item<double>();
  }
  if (squares_a == 0.0 || squares_b == 0.0) return {std::sqrt(squares_a / squares_b), kNaN};
  double apart = 0.0, together = 0.0;
  for (const auto& [name, gradient] : a) {
    const at::Tensor x = gradient / std::sqrt(squares_a), y = b.at(name) / std::sqrt(squares_b);
    apart += (x - y).square().sum().item<double>();
    together += (x + y).square().sum().item<double>();
  }
  return {std::sqrt(squares_a / squares_b),
          2.0 * std::atan2(std::sqrt(apart), std::sqrt(together)) * kDegrees};
}

double length_of(const Tensors& gradients) {
  double squares = 0.0;
  for (const auto& [name, gradient] : gradients) squares += std::pow(norm_of(gradient), 2);
  return std::sqrt(squares);
}

double root_mean_square(const at::Tensor& values) {
  return values.numel() == 0 ? 0.0 : values.square().mean().sqrt().item<double>();
}

/// What rounding in 16 bits may leave of the logarithm of a probability of 1.
constexpr double kMostOfRounding = 0.5;

class Measuring {
 public:
  Measuring(Truth& truth, const CompareOptions& options, const RatioBounds& bounds)
      : options_(options), given_(objective_options(options)), batch_(uncorrected(truth.batch)) {
    if (options.objective != "grpo")
      throw InputError("{}: only grpo's rows are sampled by an engine that reports log-probabilities",
                       options.objective);
    if (const auto type = given_.find("loss_type"); type != given_.end() && type->second == "vespo")
      throw InputError(
          "loss_type vespo: its weights are functions of the ratios, with no gradient to correct");
    if (!batch_.token_inputs.contains(inputs::kSamplingLogProbabilities))
      throw InputError("{}: no sampling_per_token_logps in it, which the engine that sampled reported",
                       options.tokens);
    if (!(bounds.least >= 0.0 && bounds.least < bounds.most))
      throw InputError("--clip-min {}, --clip-max {}: expected 0 or more, and more than that", bounds.least,
                       bounds.most);
    if (scored_indices(batch_).size(0) == 0)
      throw InputError("{}: no token is scored: completion_mask is 0 everywhere", options.tokens);
    const auto objective = make_objective("grpo", batch_, given_);
    linear_.emplace(truth.model, batch_, *objective, nullptr);
    result_.bounds = bounds;
    find_ratios();
    if (truth.batch.token_inputs.contains(inputs::kImportanceSamplingRatio))
      as_given_ = at_scored(truth.batch, inputs::kImportanceSamplingRatio);
  }

  Rollout run() {
    add("unbiased", whole_);
    add("uncorrected", at::ones_like(tokens_));
    const double least = result_.bounds.least, most = result_.bounds.most;
    const auto cut = [&](const at::Tensor& ratios) { return ratios.clamp(least, most); };
    const auto masked = [&](const at::Tensor& ratios) {
      return ratios.masked_fill(ratios.lt(least) | ratios.gt(most), 0.0);
    };
    add("token_truncate", cut(tokens_), tokens_);
    add("token_mask", masked(tokens_), tokens_);
    add("sequence_truncate", cut(whole_), whole_);
    add("sequence_mask", masked(whole_), whole_);
    if (as_given_.defined()) add("as in the batch", as_given_);
    Batch by_sampling = batch_;
    by_sampling.token_inputs[inputs::kOldLogProbabilities] = spread(sampling_);
    add("sampling as old", by_sampling, 0);
    compare_all();
    compare_rows();
    return std::move(result_);
  }

 private:
  static Batch uncorrected(const Batch& batch) {
    Batch plain = batch;
    plain.token_inputs.erase(inputs::kImportanceSamplingRatio);
    plain.sequence_inputs.erase(inputs::kImportanceSamplingRatio);
    return plain;
  }

  static at::Tensor at_scored(const Batch& batch, const char* input) {
    return batch.token_inputs.at(input).to(at::kDouble).index_select(0, scored_indices(batch));
  }

  /// Values of the scored tokens in the stream.
  at::Tensor spread(const at::Tensor& values) const {
    return at::zeros({batch_.size()}, at::kDouble).index_copy(0, scored_indices(batch_), values);
  }

  void find_ratios() {
    const at::Tensor& truth = linear_->values().columns[0];
    const bool has_old = batch_.token_inputs.contains(inputs::kOldLogProbabilities);
    const at::Tensor own = has_old ? at_scored(batch_, inputs::kOldLogProbabilities) : truth;
    const at::Tensor given = at_scored(batch_, inputs::kSamplingLogProbabilities);
    const at::Tensor known = given.isnan().logical_not();
    if (!known.any().item<bool>())
      throw InputError(
          "{}: sampling_per_token_logps knows no scored token (all are NaN), which shows nothing",
          options_.tokens);
    if (const at::Tensor beyond = given.masked_select(given.gt(kMostOfRounding)); beyond.size(0) > 0)
      throw InputError(
          "{}: sampling_per_token_logps has {:.6g}: expected logarithms of probabilities, 0 or less",
          options_.tokens, beyond[0].item<double>());
    sampling_ = at::where(known, given, own);
    const at::Tensor difference = own - sampling_;
    result_.tokens = given.size(0);
    result_.unknown = result_.tokens - known.sum().item<int64_t>();
    result_.sampling_error = root_mean_square((sampling_ - truth).masked_select(known));
    if (has_old) result_.trainer_error = root_mean_square(own - truth);
    tokens_ = difference.exp();
    whole_ = at::ones_like(difference);
    double sum = 0.0, squares = 0.0;
    for (int64_t i = 0; i + 1 < static_cast<int64_t>(batch_.offsets.size()); ++i) {
      const at::Tensor of_row = linear_->of_sequence(i);
      const at::Tensor own_differences = difference.masked_select(of_row);
      RolloutRow row;
      row.tokens = own_differences.size(0);
      if (row.tokens > 0) {
        const double all = own_differences.sum().item<double>();
        if (!(std::abs(all) <= kLargestLogRatio)) {
          throw InputError(
              "row {}: sampling_per_token_logps sum to {:.6g} less than the trainer's log-probabilities, as "
              "those of other tokens would",
              i, all);
        }
        row.difference = all / static_cast<double>(row.tokens);
        row.most = own_differences.abs().max().item<double>();
        row.ratio = std::exp(all);
        sum += row.ratio;
        squares += row.ratio * row.ratio;
        whole_.masked_fill_(of_row, row.ratio);
      }
      result_.rows.push_back(row);
    }
    result_.effective_rows = squares > 0.0 ? sum * sum / squares : 0.0;
  }

  void add(const char* name, const at::Tensor& ratios, const at::Tensor& unbounded = {}) {
    Batch batch = batch_;
    batch.token_inputs[inputs::kImportanceSamplingRatio] = spread(ratios);
    add(name, batch, unbounded.defined() ? ratios.ne(unbounded).sum().item<int64_t>() : 0);
  }

  void add(const char* name, const Batch& batch, int64_t bounded) {
    const auto objective = make_objective("grpo", batch, given_);
    slopes_.push_back(slopes_at(*objective, linear_->values()));
    RolloutGradient gradient;
    gradient.name = name;
    gradient.bounded = bounded;
    result_.gradients.push_back(std::move(gradient));
  }

  void compare_all() {
    const Tensors unbiased = linear_->gradients_of(slopes_[0]), plain = linear_->gradients_of(slopes_[1]);
    length_ = length_of(plain);
    if (length_ == 0.0 || length_of(unbiased) == 0.0)
      throw InputError("{}: all gradients are zero, which shows nothing (advantages of equal rewards are)",
                       options_.tokens);
    for (size_t i = 0; i < slopes_.size(); ++i) {
      const Tensors own = linear_->gradients_of(slopes_[i]);
      result_.gradients[i].of_unbiased = turn_of(own, unbiased);
      result_.gradients[i].of_uncorrected = turn_of(own, plain);
    }
  }

  void compare_rows() {
    for (size_t row = 0; row < result_.rows.size(); ++row) {
      const std::vector<int64_t> alone{static_cast<int64_t>(row)};
      const Tensors plain = linear_->gradients_of(slopes_[1], alone);
      result_.rows[row].share = length_of(plain) / length_;
      for (size_t i = 0; i < slopes_.size(); ++i)
        result_.gradients[i].rows.push_back(turn_of(linear_->gradients_of(slopes_[i], alone), plain));
    }
  }

  const CompareOptions& options_;
  std::map<std::string, std::string> given_;
  Batch batch_;  // without ratios
  std::optional<Linearised> linear_;
  at::Tensor sampling_, tokens_, whole_;  // [M]: log-probabilities, and ratios of tokens and of whole rows
  at::Tensor as_given_;                   // [M]; undefined: the batch has none
  std::vector<ScoredValues> slopes_;      // of each gradient
  double length_ = 0.0;
  Rollout result_;
};

}  // namespace

Rollout measure_rollout(Truth& truth, const CompareOptions& options, const RatioBounds& bounds) {
  return Measuring(truth, options, bounds).run();
}

}  // namespace streambp::verify
