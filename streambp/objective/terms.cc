#include "streambp/objective/terms.h"

#include <algorithm>
#include <utility>

#include "streambp/error.h"
#include "streambp/model/scored.h"

namespace streambp {
namespace {

/// a where `first` is 1, b where it is 0. Both are finite here, so that a product with 0 is 0.
template <typename Other>
at::Tensor choose(const at::Tensor& first, const at::Tensor& a, const Other& b) {
  const at::Tensor share = first.to(a.scalar_type());
  return a * share + (1.0 - share) * b;
}

}  // namespace

ScoredTokens::ScoredTokens(std::string objective, const Batch& batch)
    : objective_(std::move(objective)), indices_(scored_indices(batch)) {
  const auto of_scored = [&](const at::Tensor& flags) {
    return flags.to(at::kCPU).index_select(0, indices_).to(at::kDouble);
  };
  has_target_ = of_scored(batch.targets.ne(kNoTarget));
  has_value_ = batch.value_mask.defined() ? of_scored(batch.value_mask) : at::zeros_like(has_target_);
  const int64_t* const index = indices_.const_data_ptr<int64_t>();
  int64_t next = 0;
  for (size_t i = 0; i + 1 < batch.offsets.size(); ++i) {
    const int64_t first = next;
    while (next < size() && index[next] < batch.offsets[i + 1]) ++next;
    sizes_.push_back(next - first);
  }
  lengths_ = sums(at::ones_like(has_target_)).clamp_min(1.0);
}

at::Tensor ScoredTokens::ranks() const {
  std::vector<at::Tensor> ranks;
  for (const at::Tensor& row : has_target_.split_with_sizes(sizes_)) ranks.push_back(row.cumsum(0));
  return at::cat(ranks);
}

int64_t ScoredTokens::empty_sequence() const {
  const at::Tensor lengths = sums(at::ones_like(has_target_));
  for (int64_t i = 0; i < sequences(); ++i) {
    if (lengths[i].item<double>() == 0.0) return i;
  }
  return -1;
}

at::Tensor ScoredTokens::checked(const at::Tensor& input, const char* name, int64_t length) const {
  if (input.dim() != 1 || input.size(0) != length) {
    throw InputError("{}: input '{}' has shape [{}], expected [{}]", objective_, name,
                     fmt::join(input.sizes(), ", "), length);
  }
  return input.to(at::kCPU, at::kDouble);
}

at::Tensor ScoredTokens::token_input(const Batch& batch, const char* name, const at::Tensor& mask) const {
  const auto found = batch.token_inputs.find(name);
  if (found == batch.token_inputs.end()) {
    throw InputError("{}: input '{}' is missing, expected one number a token", objective_, name);
  }
  const at::Tensor input =
      checked(found->second, name, batch.size()).index_select(0, indices_).masked_fill(mask.eq(0.0), 0.0);
  const at::Tensor wrong = input.isfinite().logical_not().nonzero();
  if (wrong.size(0) > 0) {
    throw InputError("{}: input '{}' is not a finite number at token {} of the stream", objective_, name,
                     indices_[wrong[0][0].item<int64_t>()].item<int64_t>());
  }
  return input;
}

at::Tensor ScoredTokens::sequence_input(const Batch& batch, const char* name) const {
  const auto found = batch.sequence_inputs.find(name);
  if (found == batch.sequence_inputs.end()) {
    throw InputError("{}: input '{}' is missing, expected one number a sequence", objective_, name);
  }
  const at::Tensor input = checked(found->second, name, sequences());
  const at::Tensor wrong = input.isfinite().logical_not().nonzero();
  if (wrong.size(0) > 0) {
    throw InputError("{}: input '{}' is not a finite number at sequence {}", objective_, name,
                     wrong[0][0].item<int64_t>());
  }
  return input;
}

at::Tensor ScoredTokens::reference_sums(const Batch& batch, const at::Tensor& weights) const {
  if (batch.sequence_inputs.contains(inputs::kReferenceSums)) {
    return sequence_input(batch, inputs::kReferenceSums);
  }
  if (!batch.token_inputs.contains(inputs::kReferenceLogProbabilities)) {
    throw InputError("{}: the reference's log-probabilities are missing, expected '{}' or '{}'", objective_,
                     inputs::kReferenceSums, inputs::kReferenceLogProbabilities);
  }
  const at::Tensor tokens = token_input(batch, inputs::kReferenceLogProbabilities, has_target_);
  return sums(weights.defined() ? tokens * weights : tokens);
}

at::Tensor ScoredTokens::sums(const at::Tensor& values) const {
  // A sum a sequence rather than an indexed addition, whose order a GPU does not keep from run to run.
  std::vector<at::Tensor> rows;
  for (const at::Tensor& row : (values * has_target_.to(values.device())).split_with_sizes(sizes_)) {
    rows.push_back(row.sum());
  }
  return at::stack(rows);
}

at::Tensor ScoredTokens::spread(const at::Tensor& rows) const {
  std::vector<at::Tensor> tokens;
  const std::vector<at::Tensor> entries = rows.unbind();
  for (size_t i = 0; i < sizes_.size(); ++i) tokens.push_back(entries[i].expand({sizes_[i]}));
  return at::cat(tokens);
}

at::Tensor part(const at::Tensor& all, int64_t begin, int64_t end, const at::Tensor& values) {
  // A GPU's queue takes a copy of such numbers at once: the host, which makes a chunk's work, does not wait.
  return all.narrow(0, begin, end - begin).to(values.device(), /*non_blocking=*/true);
}

at::Tensor at_most(const at::Tensor& x, double most) {
  return choose(x.le(most), x, most);
}

at::Tensor at_least(const at::Tensor& x, double least) {
  return choose(x.ge(least), x, least);
}

at::Tensor between(const at::Tensor& x, double least, double most) {
  return at_most(at_least(x, least), most);
}

at::Tensor smaller(const at::Tensor& a, const at::Tensor& b) {
  return choose(a.le(b), a, b);
}

at::Tensor larger(const at::Tensor& a, const at::Tensor& b) {
  return choose(a.ge(b), a, b);
}

at::Tensor stable_log_sigmoid(const at::Tensor& z) {
  // Above 40, log(1 + e^x) is x to the last bit; at torch's own threshold of 20 it is not.
  return at::softplus(z.neg(), /*beta=*/1, /*threshold=*/40).neg();
}

at::Tensor exp_clamped(const at::Tensor& x) {
  return at_most(x, kLargestExponent).exp();
}

at::Tensor k3(const at::Tensor& reference, const at::Tensor& log_probabilities) {
  const at::Tensor d = at_most(reference - log_probabilities, kLargestExponent);
  return d.exp() - d - 1.0;
}

at::Tensor kl_estimate(const std::string& estimator, const at::Tensor& reference,
                       const at::Tensor& log_probabilities) {
  if (estimator == "k1") return log_probabilities - reference;
  if (estimator == "k2") return (log_probabilities - reference).square() * 0.5;
  return k3(reference, log_probabilities);
}

Option kl_estimator_option() {
  return {"kl_estimator", "k3", "how a token's KL divergence is estimated", {"k1", "k2", "k3"}};
}

at::Tensor clipped_surrogate(const at::Tensor& ratio, const at::Tensor& advantages, const ClipRange& range) {
  const at::Tensor clipped = between(ratio, 1.0 - range.low, 1.0 + range.high);
  const at::Tensor cut = range.most < kInfinity ? at_most(ratio, range.most) : ratio;
  const at::Tensor surrogate = smaller(cut * advantages, clipped * advantages);
  // Where the advantage is not negative the surrogate is not either, and this bound 0.
  return range.dual < kInfinity ? larger(surrogate, at_most(advantages, 0.0) * range.dual) : surrogate;
}

Option reduction_option() {
  return {"reduction", "mean", "mean over the labels of the whole batch, or their sum", {"mean", "sum"}};
}

Option divisor_option() {
  return {"divisor", "", "divide the sum by this instead (num_items_in_batch)"};
}

double token_divisor(const std::string& objective, const Options& options, const Counts& whole) {
  const bool is_sum = options.word("reduction") == "sum";
  if (options.given("divisor")) {
    if (is_sum) throw InputError("{}: divisor is given, expected reduction mean with it", objective);
    return options.positive("divisor");
  }
  // A batch without any target has loss 0 whatever it is divided by.
  return is_sum ? 1.0 : static_cast<double>(std::max<int64_t>(whole.scored, 1));
}

int64_t number_of_pairs(const std::string& objective, int64_t sequences) {
  if (sequences % 2 != 0) {
    throw InputError("{}: {} sequences, expected an even number: the chosen ones, then the rejected ones",
                     objective, sequences);
  }
  return sequences / 2;
}

}  // namespace streambp
