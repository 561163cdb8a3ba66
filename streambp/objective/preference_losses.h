// Losses of pairs of completions: what DPO, CPO and SimPO make of how much likelier the chosen one has become
// than the rejected one.
#pragma once

#include <functional>
#include <map>
#include <string>

#include <ATen/ATen.h>

#include "streambp/objective/objective.h"

namespace streambp {

struct PairLossSettings {
  double beta = 0.1;
  double label_smoothing = 0.0;
  double sigmoid_smoothing = 0.0;  // of sigmoid, which TRL's CPO smooths and its DPO leaves alone
  double discopop_tau = 0.05;
};

/// What is known of the n pairs of a batch, [n] each.
struct PairScores {
  at::Tensor chosen_ratios, rejected_ratios;     // log-probabilities of the completions less the reference's
  at::Tensor margins;                            // of the chosen one's score and the rejected one's
  at::Tensor mean_margins;                       // the same of their scores over their tokens
  at::Tensor policy_margins, reference_margins;  // of the log-probabilities
  at::Tensor chosen_nll;  // a number: the mean over the chosen completions' tokens of -log p, for each pair
};

/// A loss and what it can be asked for.
struct PairLoss {
  std::function<at::Tensor(const PairScores&, const PairLossSettings&)> terms;  // [n]
  bool needs_beta = false;                                                      // divides by it
  bool smooths = false;                                                         // knows label_smoothing
  bool takes_divergence = false;  // is one of margins, and so knows f_divergence_type
  bool sorts = false;             // mixes the pairs of a batch
};

/// DPO's by the names of TRL's loss_type.
const std::map<std::string, PairLoss>& pair_losses();

/// Throws InputError unless `smoothing` is one that the loss `name` knows.
void check_smoothing(const std::string& objective, const std::string& name, double smoothing);

/// -(1 - e) log sigma(z) - e log sigma(-z)
at::Tensor smoothed_sigmoid_loss(const at::Tensor& z, double e);

}  // namespace streambp
