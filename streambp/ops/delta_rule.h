// The gated delta rule (Yang, Kautz and Hatamizadeh, 2024, arXiv 2412.06464), the recurrence of Qwen3-Next's
// and Qwen3.5's linear attention. A head's state S [Dk, Dv] maps keys to values; a token first lets it
// decay, then exchanges what the state has for its key for its value, then reads it:
//
//   S = e^(log_decay) S;   S += k (beta (v - S^T k))^T;   o = S^T q
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

  /// Of a row of queries, keys and values.
  int64_t columns() const { return 2 * key_heads * key_dim + value_heads * value_dim; }
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

/// Queries, keys and values side by side in each row, `mixed` [n, columns]: queries and keys of each head are
/// divided by their length (x / sqrt(sum x^2 + 1e-6)), queries then by sqrt(key_dim). log_decay [n,
/// value_heads] is at most 0; beta [n, value_heads]. offsets (0 first, n last) cut the rows into sequences:
/// the first continues `before`, the others begin with a state of zeros. Computed in float32, or float64 for
/// float64 rows. Throws InputError for shapes, dtypes or offsets that don't fit.
DeltaRuleOutput gated_delta_rule(const at::Tensor& mixed, const at::Tensor& log_decay, const at::Tensor& beta,
                                 const DeltaRuleSizes& sizes, const std::vector<int64_t>& offsets,
                                 const StateBefore& before);

/// The state alone, without a graph: queries are not read and outputs not computed.
at::Tensor delta_rule_state(const at::Tensor& mixed, const at::Tensor& log_decay, const at::Tensor& beta,
                            const DeltaRuleSizes& sizes, const std::vector<int64_t>& offsets,
                            const StateBefore& before);

}  // namespace streambp
