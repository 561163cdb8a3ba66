// The loss of a whole batch that balances the load of a mixture's experts.
#pragma once

#include <functional>

#include <ATen/ATen.h>

namespace streambp {

/// The load-balancing loss of a batch (Fedus et al., 2021, arXiv 2101.03961, equations 4 to 6; transformers'
/// load_balancing_loss_func): coefficient * X * sum_e f_e P_e over the X experts, where f_e is how often
/// expert e was chosen for a token, P_e its mean probability, both over all tokens that count and all sparse
/// layers.
class RouterBalance {
 public:
  /// Replaces numbers [n] by their sums over the ranks of a batch.
  using SumOverRanks = std::function<void(at::Tensor& numbers)>;

  /// `counted` [N] bool says which tokens of the stream count; undefined: all. `sum_over_ranks`: of a stream
  /// that is one rank's part of a batch.
  RouterBalance(double coefficient, int64_t experts, c10::Device device, const at::Tensor& counted = {},
                SumOverRanks sum_over_ranks = {});

  /// Counts a run of tokens from index `begin` of the stream on: their routers' probabilities [n, X] and
  /// choices [n, k]. Does nothing once the count is closed.
  void count(const at::Tensor& probabilities, const at::Tensor& choices, int64_t begin);

  /// Ends the forward pass: layers that run again are not counted again, and all ranks' counts are summed.
  void close();

  /// Of all ranks' tokens.
  double loss() const;

  /// d loss / d probability of each expert for tokens [begin, begin + n) of the stream, [n, X] float64 or
  /// what expands to it: the same for every token that counts and every layer, 0 for the others.
  at::Tensor gradient(int64_t begin, int64_t n) const;

 private:
  double coefficient_;
  SumOverRanks sum_over_ranks_;
  bool open_ = true;
  double rows_ = 0.0;         // that count, of all layers
  at::Tensor counted_;        // [N] bool on the CPU; undefined: all
  at::Tensor weights_;        // the same, [N] float64 on the device
  at::Tensor choices_;        // [X] float64: how often each was chosen
  at::Tensor probabilities_;  // [X] float64: sums
};

}  // namespace streambp
