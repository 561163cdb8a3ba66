// A mixture of experts: several small MLPs, of which every token takes those that a router likes best.
#pragma once

#include <functional>
#include <vector>

#include "reference/config.h"
#include "reference/tape.h"

namespace streambp::STREAMBP_REFERENCE {

/// Experts of each token; none for a token: those that its router chooses.
using ExpertsOfTokens = std::vector<std::vector<int>>;

/// The columns of the `count` largest entries of every row, the largest first and the first of equals before
/// the others; a NaN counts as larger than any number, as in PyTorch. Throws std::invalid_argument unless 0 <
/// count <= cols. A plain function, not an operation of the tape: a choice has no gradient.
std::vector<std::vector<int>> largest_columns(const Matrix& x, int count);

/// The experts of each token, given the router's p [tokens, num_experts]: the num_experts_per_tok largest,
/// the best one first. A corrected router (DeepSeek-V3, 2024, https://arxiv.org/abs/2412.19437; transformers,
/// modeling_deepseek_v3.py, modeling_ernie4_5_moe.py) chooses by c = p + correction, [1, num_experts], and
/// only among the experts of the topk_group groups of neighbours whose two largest c have the largest sums.
/// A plain function, like largest_columns. Throws std::invalid_argument if the correction has another shape.
std::vector<std::vector<int>> chosen_experts(const MixtureSettings& mixture, const Matrix& p,
                                             const Matrix& correction);

/// The output of the experts that a router has chosen (Shazeer et al. 2017, https://arxiv.org/abs/1701.06538;
/// transformers, modeling_qwen3_moe.py). x [tokens, hidden], and p [tokens, num_experts] the softmax of the
/// router's logits. With the num_experts_per_tok largest p_e of a token, divided by their sum if
/// norm_topk_prob,
///     y = sum over the chosen experts of p_e expert(e, x)
/// (The softmax of the logits of the chosen alone, which GPT-OSS takes, is the same as these p_e divided by
/// their sum: the sum over all experts cancels.) Of a sigmoid router p is the sigmoid of the logits. The sum
/// is added_to_sum more and at least least_sum, and y is multiplied by routed_scaling_factor.
/// The gradient goes through the p_e of the chosen; which ones are chosen (chosen_experts) is held constant.
/// Those that are `given`, if any are, stand for the chosen: routing that is replayed (Ma et al. 2025,
/// https://arxiv.org/abs/2510.11370), whose p_e are the router's own.
Var mixture_of_experts(const MixtureSettings& mixture, const Var& x, const Var& p,
                       const std::function<Var(int expert, const Var& rows)>& expert,
                       const Matrix& correction = Matrix(), const ExpertsOfTokens& given = {});

/// GPT-OSS's gate of an expert (transformers, modeling_gpt_oss.py), entry by entry with a limit c > 0:
///     g = min(gate, c),   u = min(max(up, -c), c),   y = (u + 1) g / (1 + e^(-alpha g))
/// Throws std::invalid_argument if the shapes differ, alpha is 0 or c < 0.
Var clamped_swiglu(const Var& gate, const Var& up, Number alpha, Number limit);

/// Step 3.7's product of an activated gate and up (transformers, modeling_step3p7.py), entry by entry with a
/// limit c > 0: min(activated, c) min(max(up, -c), c). Throws std::invalid_argument if the shapes differ or
/// c < 0.
Var limited_swiglu(const Var& activated, const Var& up, Number limit);

/// The loss that keeps experts equally busy (Fedus et al. 2021, https://arxiv.org/abs/2101.03961, equations 4
/// to 6; transformers, load_balancing_loss_func). p [m, E] are the routers' probabilities of all tokens of
/// the batch in all sparse layers, below one another. With f_e the number of the m rows that chose expert e
/// over m, which is held constant, and P_e the mean of p_e over the rows:   E sum_e f_e P_e
/// Gives [1, 1]. Throws std::invalid_argument without a row.
Var load_balancing_loss(Tape& tape, const MixtureSettings& mixture, const Var& p);

}  // namespace streambp::STREAMBP_REFERENCE
