#include "verify/diagnose/parts/other_sums.h"

#include <cstdint>
#include <fmt/format.h>
#include <utility>

#include "streambp/error.h"
#include "streambp/objective/terms.h"
#include "verify/diagnose/parts/scored_inputs.h"

namespace streambp::verify {
namespace {

/// Orders of pairs are tried for no more.
constexpr int64_t kMostPairs = 16;

class SumsSearch {
 public:
  SumsSearch(const WrongSubject& subject, const ScoredValues& values)
      : subject_(subject),
        layout_(objective_kind(subject.objective).layout),
        log_p_(values.columns[0]),
        lengths_(scored_lengths(subject.batch)),
        sequences_(static_cast<int64_t>(subject.batch.offsets.size()) - 1),
        of_sequence_(scored_of_sequences(subject.batch)) {}

  std::vector<OtherSums> run() {
    if (has_pairs(layout_) || subject_.batch.sequence_inputs.contains(inputs::kReferenceSums)) means();
    if (has_pairs(layout_) && sequences_ % 2 == 0 && sequences_ / 2 <= kMostPairs) pairs();
    ratios();
    focal();
    return std::move(found_);
  }

 private:
  at::Tensor slopes_of(const Batch& batch, const at::Tensor& log_p) const {
    try {
      const auto objective = make_objective(subject_.objective, batch, subject_.options);
      ScoredValues values;
      values.columns[0] = log_p;
      if (!objective->request().needs_targets_alone() || objective->targets().defined()) return {};
      return slopes_at(*objective, values).columns[0];
    } catch (const InputError&) {
      return {};
    }
  }

  void add(std::string name, std::string sentence, const at::Tensor& slopes) {
    if (slopes.defined()) found_.push_back({std::move(name), std::move(sentence), slopes});
  }

  void means() {
    const at::Tensor of_policy = slopes_of(subject_.batch, log_p_ / lengths_);
    if (of_policy.defined())
      add("policy-means",
          "a completion's log-probability is the mean of its tokens', its reference's the sum",
          of_policy / lengths_);
    if (!subject_.batch.sequence_inputs.contains(inputs::kReferenceSums)) return;
    Batch batch = subject_.batch;
    at::Tensor& sums = batch.sequence_inputs.at(inputs::kReferenceSums);
    sums = sums.clone();
    for (int64_t i = 0; i < std::min<int64_t>(sequences_, sums.size(0)); ++i) {
      const int64_t length = of_sequence_[static_cast<size_t>(i)].numel();
      if (length > 0) sums[i].div_(length);
    }
    const at::Tensor of_both = slopes_of(batch, log_p_ / lengths_);
    if (of_both.defined())
      add("means-for-sums", "log-probabilities of completions are the mean of their tokens', not their sum",
          of_both / lengths_);
  }

  /// The rejected of other pairs, each with its own reference.
  void pairs() {
    const int64_t half = sequences_ / 2;
    for (int64_t by = 1; by < half; ++by) {
      std::vector<int64_t> order;
      std::vector<at::Tensor> tokens;
      for (int64_t i = 0; i < sequences_; ++i) {
        order.push_back(i < half ? i : half + (i - half + by) % half);
        tokens.push_back(of_sequence_[static_cast<size_t>(order.back())]);
      }
      const at::Tensor index = at::cat(tokens);
      const at::Tensor slopes =
          slopes_of(select_sequences(subject_.batch, order), log_p_.index_select(0, index));
      if (!slopes.defined()) continue;
      add(fmt::format("pairs-{}-further", by),
          fmt::format("pairs are matched otherwise: each chosen completion is held against the rejected one "
                      "of the pair {} "
                      "further on",
                      by),
          at::zeros_like(log_p_).index_copy(0, index, slopes));
    }
  }

  /// A focal loss, (1 - p)^gamma times the cross-entropy, whose slope by log p has a part of the factor's
  /// own.
  void focal() {
    if (subject_.objective != "sft") return;
    const at::Tensor own = slopes_of(subject_.batch, log_p_);
    if (!own.defined()) return;
    const at::Tensor p = log_p_.exp(), rest = (1.0 - p).clamp_min(1e-12);
    for (const double gamma : {1.0, 2.0, 0.5, 3.0, 5.0})
      add(fmt::format("focal-{:g}", gamma),
          fmt::format("the loss is a focal one: each token's is multiplied by (1 - p)^{:g}", gamma),
          own * rest.pow(gamma - 1.0) * (rest - p * log_p_ * gamma));
  }

  /// Ratios of whole completions, without the root by their length.
  void ratios() {
    const at::Tensor before = scored_input(subject_.batch, inputs::kOldLogProbabilities);
    const auto level = subject_.options.find("importance_sampling_level");
    if (subject_.objective != "grpo" || !before.defined() || level == subject_.options.end() ||
        level->second != "sequence")
      return;
    const Options options = complete_options(objective_kind("grpo"), subject_.options, subject_.batch);
    if (options.number("beta", 0.0, kInfinity) > 0.0) return;
    const at::Tensor slopes = slopes_of(subject_.batch, before + (log_p_ - before) * lengths_);
    if (slopes.defined())
      add("ratio-of-sums",
          "a completion's ratio is that of its whole probability, without the root by its length (mean of "
          "log-ratios)",
          slopes * lengths_);
  }

  const WrongSubject& subject_;
  Layout layout_;
  at::Tensor log_p_;    // [M]
  at::Tensor lengths_;  // [M]: scored tokens of each one's sequence
  int64_t sequences_;
  std::vector<at::Tensor> of_sequence_;  // the scored tokens of each
  std::vector<OtherSums> found_;
};

}  // namespace

std::vector<OtherSums> other_sums(const WrongSubject& subject, const ScoredValues& values) {
  if (!values.columns[0].defined() || values.columns[0].numel() == 0) return {};
  return SumsSearch(subject, values).run();
}

}  // namespace streambp::verify
