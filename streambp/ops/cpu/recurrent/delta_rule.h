// The gated delta rule on the CPU, with a decay for each head or each channel, and the state space without
// its exchange: value heads of one key head through one sequence, block by block. The formulas stand in
// ops/recurrent/delta_rule_group.h.
#pragma once

#include <cstdint>

#include "streambp/ops/cpu/number.h"

namespace streambp::cpu {

/// Tokens of a block; a sequence's last may have fewer.
inline constexpr int64_t kDeltaBlock = 64;

struct DeltaRuleHeads {
  int64_t key_heads = 0;
  int64_t groups = 0;  // value heads of a key head
  int64_t key_dim = 0;
  int64_t value_dim = 0;
  bool exchanges = true;
  bool channel_gates = false;  // a decay for each entry of a key, and groups 1

  int64_t value_heads() const { return key_heads * groups; }
  int64_t values() const { return value_heads() * value_dim; }
  int64_t columns() const { return 2 * key_heads * key_dim + values(); }
  int64_t state_size() const { return key_dim * value_dim; }
  /// Runs of the value heads of a key head, each of which is a task of its own: a state space often has one
  /// key head for all, and a run's share of what the heads have in common is small beside their own.
  int64_t slices() const {
    constexpr int64_t kHeads = 8;
    return exchanges ? 1 : (groups + kHeads - 1) / kHeads;
  }
  int64_t tasks() const { return key_heads * slices(); }
};

/// Rows of all sequences, without gaps. States are [value_heads, key_dim, value_dim].
template <typename S>
struct DeltaRuleRun {
  DeltaRuleHeads heads;
  const S* mixed = nullptr;               // [n, columns]: queries, keys, values
  const Wide<S>* log_decay = nullptr;     // [n, value_heads], or of each entry of their keys
  const Wide<S>* beta = nullptr;          // [n, value_heads]
  const Wide<S>* state_before = nullptr;  // of the first sequence; null: zeros
  S* hidden = nullptr;       // [n, value_heads, value_dim]; null: not wanted, nor are queries read
  Wide<S>* state = nullptr;  // after the last row
  Wide<S>* states =
      nullptr;  // at the beginning of each block: forward writes them, null: not; backward reads
  // Of the backward pass.
  const S* d_hidden = nullptr;        // null: zeros
  const Wide<S>* d_state = nullptr;   // null: zeros
  S* d_mixed = nullptr;               // as mixed
  Wide<S>* d_log_decay = nullptr;     // as log_decay
  Wide<S>* d_beta = nullptr;          // [n, value_heads]
  Wide<S>* d_state_before = nullptr;  // is added to; null: not wanted
  /// Of a state space, [slices, n, 2 * key_heads * key_dim]: what each slice gives to keys and queries, whose
  /// columns of d_mixed are left alone.
  Wide<S>* d_keys_queries = nullptr;
  int64_t d_rows = 0;  // n
};

struct DeltaRuleSequence {
  int64_t begin, end;   // rows
  int64_t first_block;  // among those of all sequences
  bool is_first, is_last;
};

template <typename S>
struct DeltaRuleKernels {
  /// Numbers of scratch space that one call needs.
  int64_t (*workspace)(const DeltaRuleHeads& heads, bool backward);
  /// Of one of the heads' tasks: those of a key head are next to each other.
  void (*forward)(const DeltaRuleRun<S>& run, const DeltaRuleSequence& sequence, int64_t task,
                  Wide<S>* workspace);
  void (*backward)(const DeltaRuleRun<S>& run, const DeltaRuleSequence& sequence, int64_t task,
                   Wide<S>* workspace);
};

}  // namespace streambp::cpu
