// The gated delta rule (Yang, Kautz and Hatamizadeh, 2024, arXiv 2412.06464), the recurrence of Qwen3-Next's
// and Qwen3.5's linear attention. A head's state S [Dk, Dv] maps keys to values; a token first lets it
// decay, then exchanges what the state has for its key for its value, then reads it:
//
//   S = e^(log_decay) S;   S += k (beta (v - S^T k))^T;   o = S^T q
//
// Mamba-2's state space (Dao and Gu, 2024, arXiv 2405.21060) is the same without the exchange, S += k (beta
// v)^T: beta is then the step of time, and C, B and x are queries, keys and values.
//
// Kimi Delta Attention (Kimi Team, 2025, arXiv 2510.26692) is the rule with a decay of its own for each entry
// of a key, S_c = e^(log_decay_c) S_c for row c of the state.
//
// The passes go by blocks of kDeltaRuleBlock tokens, whose updates are one triangular system, solved by
// products of matrices (Yang et al., 2024, arXiv 2406.06484).
#pragma once

#include <vector>

#include <ATen/ATen.h>

namespace streambp {

/// Tokens whose updates are solved at once.
inline constexpr int64_t kDeltaRuleBlock = 64;

/// Heads, and sizes of one head. Value head h goes with key head h / (value_heads / key_heads).
struct DeltaRuleSizes {
  int64_t key_heads = 0;
  int64_t value_heads = 0;
  int64_t key_dim = 0;
  int64_t value_dim = 0;
  /// Whether tokens exchange what the state has for their key. Else they add to it, queries and keys are
  /// taken as they are, and a row is values, keys, queries.
  bool exchanges = true;
  /// Whether each entry of a key has a decay of its own.
  bool channel_gates = false;

  int64_t decays() const { return channel_gates ? value_heads * key_dim : value_heads; }
  int64_t keys() const { return key_heads * key_dim; }
  int64_t values() const { return value_heads * value_dim; }
  /// Of a row of queries, keys and values, and where each of them begins.
  int64_t columns() const { return 2 * keys() + values(); }
  int64_t first_query() const { return exchanges ? 0 : values() + keys(); }
  int64_t first_key() const { return exchanges ? keys() : values(); }
  int64_t first_value() const { return exchanges ? 2 * keys() : 0; }
};

/// What the first rows' sequence has gathered before them.
struct StateBefore {
  at::Tensor
      state;  // [value_heads, key_dim, value_dim], float32, or float64 for float64 rows; undefined: zeros
  at::Tensor gradient;  // of the same shape: what reaches the state is added here; undefined: it is dropped
};

struct DeltaRuleOutput {
  at::Tensor hidden;  // [n, value_heads, value_dim], the rows' dtype
  at::Tensor state;   // that of the last sequence after its last row, float32 or float64, part of the graph
};

/// Queries, keys and values side by side in each row, `mixed` [n, columns]: with an exchange queries and keys
/// of each head are divided by their length (x / sqrt(sum x^2 + 1e-6)), queries then by sqrt(key_dim).
/// log_decay [n, value_heads], or [n, value_heads * key_dim], is at most 0; beta [n, value_heads]. offsets (0
/// first, n last) cut the rows into sequences: the first continues `before`, the others begin with a state of
/// zeros. Computed in float32, or float64 for float64 rows. Throws InputError for shapes, dtypes or offsets
/// that don't fit.
DeltaRuleOutput gated_delta_rule(const at::Tensor& mixed, const at::Tensor& log_decay, const at::Tensor& beta,
                                 const DeltaRuleSizes& sizes, const std::vector<int64_t>& offsets,
                                 const StateBefore& before);

/// The state alone, without a graph: queries are not read and outputs not computed.
at::Tensor delta_rule_state(const at::Tensor& mixed, const at::Tensor& log_decay, const at::Tensor& beta,
                            const DeltaRuleSizes& sizes, const std::vector<int64_t>& offsets,
                            const StateBefore& before);

}  // namespace streambp
