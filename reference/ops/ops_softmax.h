// The softmax and its logarithms. The largest entry is subtracted before any exponential, so that none
// overflows.
#pragma once

#include <vector>

#include "reference/tape.h"

namespace streambp::STREAMBP_REFERENCE {

/// p_j = e^{s_j} / sum_l e^{s_l} of one vector with at least one entry. A plain function, not an operation of
/// the tape.
Vector softmax(const Vector& scores);

/// y_i = ln sum_j e^{x_ij}, [rows, cols] -> [rows, 1].   dx_ij = dy_i p_ij with p the softmax of the row.
/// Throws std::invalid_argument if there are no columns.
Var logsumexp(const Var& x);

/// y_ij = x_ij - ln sum_l e^{x_il}, row by row.   dx_ij = dy_ij - p_ij sum_l dy_il
/// Throws std::invalid_argument if there are no columns.
Var log_softmax(const Var& x);

/// The logarithm of the probability that each row of logits [rows, vocabulary] gives to its target, [rows,
/// 1]. Throws std::invalid_argument if a target is not a token of the vocabulary or there is not one for
/// every row.
Var token_log_probabilities(const Var& logits, const std::vector<int>& targets);

/// The entropy of every row of log-probabilities [rows, vocabulary] -> [rows, 1], with p = e^log_p and
/// 0 ln 0 = 0:
///     y_i = -sum_j p_ij ln p_ij,   d log_p_ij = -dy_i p_ij (ln p_ij + 1)
Var entropy(const Var& log_p);

/// The Kullback-Leibler divergence KL(p || q) of every row of log-probabilities, [rows, vocabulary] twice ->
/// [rows, 1], with p = e^log_p, q = e^log_q and 0 ln 0 = 0:
///     y_i = sum_j p_ij (ln p_ij - ln q_ij)
///     d log_p_ij = dy_i p_ij (ln p_ij - ln q_ij + 1),   d log_q_ij = -dy_i p_ij
/// Infinite where q has no room for what p holds possible. Throws std::invalid_argument if the shapes differ.
Var kl_divergence(const Var& log_p, const Var& log_q);

/// The logarithm of a mixture of two distributions given by theirs, [rows, cols] twice -> the same:
///     m_ij = ln((1 - w) e^log_p_ij + w e^log_q_ij),   d log_p_ij = dm_ij (1 - w) p_ij / e^m_ij, d log_q_ij
///     likewise with w q_ij
/// Throws std::invalid_argument if the shapes differ, or unless 0 < w < 1.
Var log_mixture(const Var& log_p, const Var& log_q, Number w);

}  // namespace streambp::STREAMBP_REFERENCE
