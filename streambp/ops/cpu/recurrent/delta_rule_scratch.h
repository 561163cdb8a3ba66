// Scratch space of one key head's pass. Included by kernels' own .cc files only: see vector.h.
#pragma once

#include "streambp/ops/cpu/recurrent/delta_rule.h"
#include "streambp/ops/cpu/recurrent/delta_rule_tiles.h"

namespace streambp::cpu::STREAMBP_ISA {

/// Matrices of one block: `rows` are its tokens, `keys` and `values` the sizes of a head, padded. The names
/// of the formulas are those of ops/recurrent/delta_rule_group.h.
template <typename T>
struct DeltaRuleScratch : MatrixSpace<T> {
  Matrix<T> q, k;                          // [rows, keys]: directions, of queries times scale()
  Matrix<T> keys_transposed;               // [keys, rows]
  Matrix<T> query_products, key_products;  // [rows, rows]: q k^T and k k^T
  Matrix<T> decays;                        // [rows, rows]: e^(G_t - G_s)
  Matrix<T> system;                        // [rows, rows]: -A
  Matrix<T> attention;                     // [rows, rows]: q k^T times decays
  Matrix<T> updates;                       // [rows, values + keys]: u and -w
  Matrix<T> new_values;                    // [rows, values]: v'
  Matrix<T> states;                        // [groups * keys, values]: states, or their gradients
  Matrix<T> numbers;  // a number a row: lengths of keys and queries, beta, e^G, e^(G_B - G)
  Matrix<T> d_query_products, d_key_products;
  Matrix<T> d_system, d_attention;   // of -A and of P; then of the products
  Matrix<T> dq, dk;                  // of q and k
  Matrix<T> dq_decayed, dk_decayed;  // of q e^G and k e^(G_B - G)
  Matrix<T> v, d_hidden;             // [rows, values]
  Matrix<T> d_updates;               // [rows, values + keys]: of v' and -w, then of beta v and -beta k e^G
  Matrix<T> transposed;              // of whatever is the right factor of a product
  Matrix<T> saved_state{};           // [keys, values]: at the block's begin

  using MatrixSpace<T>::take;
  DeltaRuleScratch(const DeltaRuleHeads& heads, bool backward, T* memory) : MatrixSpace<T>{memory} {
    const int64_t keys = padded<T>(heads.key_dim), values = padded<T>(heads.value_dim);
    take(kDeltaBlock, keys, q, k);
    take(keys, kDeltaBlock, keys_transposed);
    take(kDeltaBlock, kDeltaBlock, query_products, key_products, decays, system, attention);
    take(kDeltaBlock, values + keys, updates);
    take(kDeltaBlock, values, new_values);
    take(heads.groups * keys, values, states);
    take(5, kDeltaBlock, numbers);
    if (!backward) return;
    take(kDeltaBlock, kDeltaBlock, d_query_products, d_key_products, d_system, d_attention);
    take(kDeltaBlock, keys, dq, dk, dq_decayed, dk_decayed);
    take(kDeltaBlock, values, v, d_hidden);
    take(kDeltaBlock, values + keys, d_updates);
    take(1, at_least((values + keys) * kDeltaBlock, keys * values), transposed);
    take(keys, values, saved_state);
  }
};

}  // namespace streambp::cpu::STREAMBP_ISA
