#include "streambp/ops/mlp/router_balance.h"

#include <utility>

#include "streambp/ops/dry_run.h"

namespace streambp {

RouterBalance::RouterBalance(double coefficient, int64_t experts, c10::Device device,
                             const at::Tensor& counted, SumOverRanks sum_over_ranks)
    : coefficient_(coefficient),
      sum_over_ranks_(std::move(sum_over_ranks)),
      counted_(counted),
      choices_(at::zeros({experts}, at::TensorOptions().dtype(at::kDouble).device(device))),
      probabilities_(at::zeros_like(choices_)) {
  if (counted.defined()) weights_ = counted.to(choices_.options());
}

void RouterBalance::count(const at::Tensor& probabilities, const at::Tensor& choices, int64_t begin) {
  if (!open_) return;
  const int64_t n = choices.size(0);
  rows_ += counted_.defined() ? counted_.narrow(0, begin, n).sum().item<double>() : static_cast<double>(n);
  if (!has_values(choices)) return;
  const at::Tensor weights =
      weights_.defined() ? weights_.narrow(0, begin, n).unsqueeze(1) : at::ones({1, 1}, choices_.options());
  // Whole numbers: the sum is exact in any order, and the host does not wait as it would for bincount.
  choices_.scatter_add_(0, choices.flatten(), weights.expand(choices.sizes()).flatten());
  probabilities_.add_(weights_.defined() ? (probabilities * weights).sum(0)
                                         : probabilities.sum(0, /*keepdim=*/false, at::kDouble));
}

void RouterBalance::close() {
  if (!std::exchange(open_, false) || !sum_over_ranks_) return;
  at::Tensor numbers = at::cat({choices_, probabilities_, at::full({1}, rows_, choices_.options())});
  sum_over_ranks_(numbers);
  const int64_t experts = choices_.size(0);
  choices_ = numbers.narrow(0, 0, experts);
  probabilities_ = numbers.narrow(0, experts, experts);
  if (has_values(numbers)) rows_ = numbers[2 * experts].item<double>();
}

double RouterBalance::loss() const {
  if (rows_ == 0.0) return 0.0;
  const auto experts = static_cast<double>(choices_.size(0));
  return coefficient_ * experts * item_or_zero((choices_ * probabilities_).sum()) / (rows_ * rows_);
}

at::Tensor RouterBalance::gradient(int64_t begin, int64_t n) const {
  if (rows_ == 0.0) return at::zeros_like(choices_);  // nothing counts
  const at::Tensor of_token =
      choices_ * (coefficient_ * static_cast<double>(choices_.size(0)) / (rows_ * rows_));
  return weights_.defined() ? weights_.narrow(0, begin, n).unsqueeze(1) * of_token : of_token;
}

}  // namespace streambp
