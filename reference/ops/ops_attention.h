// Causal attention over one sequence.
#pragma once

#include <vector>

#include "reference/tape.h"

namespace streambp::STREAMBP_REFERENCE {

struct AttentionOptions {
  int query_heads = 1;      // H
  int key_value_heads = 1;  // K, a divisor of H: query head h looks at key/value head h / (H / K)
  Number scale = 1.0;       // 1 / sqrt(head_dim) in most models
  int window = 0;           // how many tokens a query sees, itself included; 0: all up to itself
  Number softcap = 0.0;     // scores stay between -softcap and softcap; 0: they are not capped
  std::vector<std::vector<int>> seen = {};  // of each query the keys it sees, instead; empty: no such lists
};

/// Attention of a sequence of T tokens on itself (Vaswani et al. 2017, https://arxiv.org/abs/1706.03762;
/// grouped heads: Ainslie et al. 2023, https://arxiv.org/abs/2305.13245). q [T, H * E], k [T, K * E] and v
/// [T, K * D] -> [T, H * D]. With lists there may be more keys than tokens: those behind are no token's own.
/// For every head and every query i, over the keys j with j <= i and, with a window, i - j < window, or over
/// those that are listed:
///     r_j = scale q_i . k_j,   s_j = c tanh(r_j / c) with a cap c, else r_j,
///     p = softmax(s),   o_i = sum_j p_j v_j
/// and backwards
///     dv_j += p_j do_i,   dp_j = do_i . v_j,   ds_j = p_j (dp_j - sum_l p_l dp_l),
///     dr_j = ds_j (1 - tanh^2(r_j / c)) with a cap, else ds_j,
///     dq_i += scale sum_j dr_j k_j,   dk_j += scale dr_j q_i
/// Keys that a query does not see are left out of its sums, so that not even a NaN there can reach it.
/// Throws std::invalid_argument if the shapes do not fit the options, K does not divide H, window < 0,
/// softcap < 0, or queries have lists that are not one for each, or of keys of tokens behind them.
Var causal_attention(const Var& q, const Var& k, const Var& v, const AttentionOptions& options);

/// The same with a sink in every head (transformers, modeling_gpt_oss.py): one more score a_h of each of its
/// queries, sinks [1, H], uncapped, whose key has the value 0. With Z = e^{a_h} + sum_j e^{s_j}
///     p_j = e^{s_j} / Z,   o_i = sum_j p_j v_j,   da_h = -sum_i (e^{a_h} / Z) sum_j p_j dp_j
/// and all else as above.
Var causal_attention(const Var& q, const Var& k, const Var& v, const Var& sinks,
                     const AttentionOptions& options);

}  // namespace streambp::STREAMBP_REFERENCE
