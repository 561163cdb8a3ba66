// The operations of a recurrent layer: a short convolution over time, vectors of length 1, the gated delta
// rule, and Mamba-2's state space.
#pragma once

#include "reference/tape.h"

namespace streambp::STREAMBP_REFERENCE {

/// Every column's own causal convolution over the K = weight.cols() last rows, x [T, C] and weight [C, K] ->
/// [T, C], the last tap that of the row itself (transformers' causal_conv1d_fn, without a bias):
///     y_tc = sum_j w_cj x_{t - (K - 1) + j, c}   over the j from 0 to K - 1 whose row is not before the
///     first dx_{t - (K - 1) + j, c} += dy_tc w_cj,   dw_cj += dy_tc x_{t - (K - 1) + j, c}
/// Throws std::invalid_argument if there is not one row of weights for every column, or no tap.
Var causal_convolution(const Var& x, const Var& weight);

/// Each group of n neighbouring entries in a row divided by its length (transformers' l2norm), [rows,
/// groups * n] -> the same:
///     r = 1 / sqrt(sum x^2 + epsilon),   y = x r,   dx = r (dy - y sum_l dy_l y_l)
/// Throws std::invalid_argument if n does not divide x.cols().
Var l2_norm(const Var& x, Index n, Number epsilon);

/// The gated delta rule (Yang et al. 2024, https://arxiv.org/abs/2412.06464; transformers'
/// torch_recurrent_gated_delta_rule): a memory S [E, D] of each of H heads, which starts as zeros, forgets by
/// e^g, and then replaces what it answers to a key by a value, as far as beta says. q and k [T, K * E], v [T,
/// H * D], g and beta [T, H] -> [T, H * D]; head h has the queries and keys of head h / (H / K). For every
/// head, token by token,
///     R_t = e^{g_t} S_{t-1},   u_t = beta_t (v_t - R_t^T k_t),   S_t = R_t + k_t u_t^T,   o_t = S_t^T q_t
/// and backwards, with dS_t what later tokens and o_t want of S_t,
///     dS_t += q_t do_t^T,   dq_t = S_t do_t,   du_t = dS_t^T k_t,   de_t = beta_t du_t
///     dbeta_t = du_t . (v_t - R_t^T k_t),   dv_t = de_t,   dk_t = dS_t u_t - R_t de_t
///     dR_t = dS_t - k_t de_t^T,   dg_t = sum of dR_t R_t,   dS_{t-1} = e^{g_t} dR_t
/// Throws std::invalid_argument if the shapes do not fit together or K does not divide H.
Var gated_delta_rule(const Var& q, const Var& k, const Var& v, const Var& g, const Var& beta, int key_heads);

/// Kimi Delta Attention (Kimi Team 2025, https://arxiv.org/abs/2510.26692; transformers'
/// recurrent_kimi_delta_attention): the gated delta rule with a g for every entry of a key, g [T, H * E],
/// which row of the memory forgets,
///     R_t = diag(e^{g_t}) S_{t-1},   dg_t = sum over columns of dR_t R_t,   dS_{t-1} = diag(e^{g_t}) dR_t
Var channel_gated_delta_rule(const Var& q, const Var& k, const Var& v, const Var& g, const Var& beta,
                             int key_heads);

/// Mamba-2's state space (Dao & Gu 2024, https://arxiv.org/abs/2405.21060; transformers' mamba2_chunk_scan):
/// a memory that forgets in the same way, and adds to what it answers instead of replacing it. With q = C, k
/// = B, v = x, g = A dt and beta = dt, shapes and heads as above,
///     S_t = e^{g_t} S_{t-1} + k_t (beta_t v_t)^T,   o_t = S_t^T q_t
/// and backwards as above without R_t^T k_t in du and dbeta, and without de in dk and dR.
Var state_space(const Var& q, const Var& k, const Var& v, const Var& g, const Var& beta, int key_heads);

}  // namespace streambp::STREAMBP_REFERENCE
