// What passes of the gated delta rule and of state spaces have in common: value heads of one key head through
// one sequence, their states, and rows in and out. Included by kernels' own .cc files only: see vector.h.
#pragma once

#include "streambp/ops/cpu/recurrent/delta_rule.h"
#include "streambp/ops/cpu/recurrent/delta_rule_tiles.h"

namespace streambp::cpu::STREAMBP_ISA {

/// Matrices of a block and states have padded rows.
template <typename S>
class HeadsPass {
 protected:
  using T = Wide<S>;

  /// `count` value heads from `first_head` on.
  HeadsPass(const DeltaRuleRun<S>& run, const DeltaRuleSequence& sequence, int64_t first_head, int64_t count)
      : run_(run),
        sequence_(sequence),
        first_head_(first_head),
        count_(count),
        heads_(run.heads),
        keys_(padded<T>(run.heads.key_dim)),
        values_(padded<T>(run.heads.value_dim)) {}

  /// Calls bring_block() and then forward_head(i) for each head, block after block.
  template <typename BringBlock, typename ForwardHead>
  void forward_blocks(BringBlock bring_block, ForwardHead forward_head) {
    for (int64_t i = 0; i < count_; ++i)
      bring_state(sequence_.is_first ? run_.state_before : nullptr, head(i), state_of(i));
    int64_t block = sequence_.first_block;
    for (row_ = sequence_.begin; row_ < sequence_.end; row_ += kDeltaBlock, ++block) {
      rows_ = at_most(kDeltaBlock, sequence_.end - row_);
      bring_block();
      for (int64_t i = 0; i < count_; ++i) {
        if (run_.states != nullptr) put_state(state_of(i), state_in(run_.states, block, head(i)));
        forward_head(i);
      }
    }
    if (!sequence_.is_last) return;
    for (int64_t i = 0; i < count_; ++i) put_state(state_of(i), state_in(run_.state, 0, head(i)));
  }

  /// Calls bring_block(), backward_head(i, state before the block) and put_block(), last block first.
  template <typename BringBlock, typename BackwardHead, typename PutBlock>
  void backward_blocks(BringBlock bring_block, BackwardHead backward_head, PutBlock put_block) {
    for (int64_t i = 0; i < count_; ++i)
      bring_state(sequence_.is_last ? run_.d_state : nullptr, head(i), state_of(i));
    const int64_t blocks = (sequence_.end - sequence_.begin + kDeltaBlock - 1) / kDeltaBlock;
    for (int64_t block = blocks - 1; block >= 0; --block) {
      row_ = sequence_.begin + block * kDeltaBlock;
      rows_ = at_most(kDeltaBlock, sequence_.end - row_);
      bring_block();
      for (int64_t i = 0; i < count_; ++i) {
        bring_state(state_in(run_.states, sequence_.first_block + block, 0), head(i), saved_state_);
        backward_head(i);
      }
      put_block();
    }
    if (!sequence_.is_first || run_.d_state_before == nullptr) return;
    for (int64_t i = 0; i < count_; ++i) {
      T* const to = state_in(run_.d_state_before, 0, head(i));
      for (int64_t k = 0; k < heads_.key_dim; ++k)
        for (int64_t e = 0; e < heads_.value_dim; ++e) to[k * heads_.value_dim + e] += state_of(i)[k][e];
    }
  }

  int64_t head(int64_t i) const { return first_head_ + i; }
  Matrix<T> state_of(int64_t i) const { return {states_[i * keys_], values_}; }
  /// The head's numbers of the block's rows, value_heads() apart.
  template <typename N>
  N* numbers(N* all, int64_t i) const {
    return all + row_ * heads_.value_heads() + head(i);
  }
  /// Its vectors of `hidden` or of its gradient, values() apart.
  template <typename N>
  N* vectors(N* all, int64_t i) const {
    return all + row_ * heads_.values() + head(i) * heads_.value_dim;
  }
  /// The block's rows of `mixed` or of its gradient, columns() apart.
  template <typename N>
  N* mixed_rows(N* mixed, int64_t column) const {
    return mixed + row_ * heads_.columns() + column;
  }

  /// Of queries.
  T scale() const { return static_cast<T>(1 / __builtin_sqrt(static_cast<double>(heads_.key_dim))); }

  /// Vectors divided by their lengths, times `scale`; `rstd` gets what they were divided by.
  void bring_directions(int64_t column, T scale, Matrix<T> to, T* rstd) const {
    const S* const from = mixed_rows(run_.mixed, column);
    bring_rows(from, heads_.columns(), heads_.key_dim, to, [&](int64_t t) {
      const S* const row = from + t * heads_.columns();
      const T squares = sum_over<T>(heads_.key_dim, [&](auto at) { return at.load(row) * at.load(row); });
      rstd[t] = static_cast<T>(1 / __builtin_sqrt(static_cast<double>(squares + static_cast<T>(1e-6))));
      return rstd[t] * scale;
    });
  }
  /// From the gradients of `scale` times directions, which are in `scaled`, to those of the vectors.
  void put_direction_gradients(Matrix<T> d, Matrix<T> scaled, const T* rstd, T scale, int64_t column) const {
    S* const to = mixed_rows(run_.d_mixed, column);
    for (int64_t t = 0; t < rows_; ++t) {
      const T along = dot(d[t], scaled[t], keys_) / (scale * scale);
      over<T>(heads_.key_dim, [&](auto at) {
        at.store(to + t * heads_.columns(),
                 (load(d[t] + at.i) - load(scaled[t] + at.i) * along) * (rstd[t] * scale));
      });
    }
  }

  /// The head's beta and logarithms of decays of the block's rows.
  void bring_numbers(int64_t i, T* beta, T* log_decay) const {
    const T *const betas = numbers(run_.beta, i), *const log_decays = numbers(run_.log_decay, i);
    for (int64_t t = 0; t < rows_; ++t) {
      beta[t] = betas[t * heads_.value_heads()];
      log_decay[t] = log_decays[t * heads_.value_heads()];
    }
  }
  /// The gradient of the head's outputs; zeros where nobody has one.
  void bring_d_hidden(int64_t i, Matrix<T> to) const {
    if (run_.d_hidden == nullptr) return fill(to, rows_, values_, T{0});
    bring_rows(vectors(run_.d_hidden, i), heads_.values(), heads_.value_dim, to, one);
  }
  /// Of saved_state_ and the gradient of the state after the block, entry by entry.
  T product_of_states(Matrix<T> d_state) const {
    T sum = 0;
    for (int64_t k = 0; k < heads_.key_dim; ++k) sum += dot(saved_state_[k], d_state[k], values_);
    return sum;
  }

  template <typename N>
  N* state_in(N* states, int64_t block, int64_t value_head) const {
    return states + (block * heads_.value_heads() + value_head) * heads_.state_size();
  }

  /// A state of all heads' `states`, null: zeros, into padded rows.
  void bring_state(const T* states, int64_t value_head, Matrix<T> to) const {
    fill(to, keys_, values_, T{0});
    if (states == nullptr) return;
    const T* const from = state_in(states, 0, value_head);
    for (int64_t k = 0; k < heads_.key_dim; ++k)
      __builtin_memcpy(to[k], from + k * heads_.value_dim, sizeof(T) * static_cast<size_t>(heads_.value_dim));
  }
  void put_state(Matrix<T> state, T* to) const {
    for (int64_t k = 0; k < heads_.key_dim; ++k)
      __builtin_memcpy(to + k * heads_.value_dim, state[k],
                       sizeof(T) * static_cast<size_t>(heads_.value_dim));
  }
  void scale_state(Matrix<T> state, T factor) const {
    for (int64_t k = 0; k < keys_; ++k)
      for (int64_t e = 0; e < values_; e += kWidth<T>) store(state[k] + e, load(state[k] + e) * factor);
  }

  /// The block's rows of S, `size` numbers each, into padded rows, each times a factor.
  template <typename Factor>
  void bring_rows(const S* from, int64_t stride, int64_t size, Matrix<T> to, Factor factor) const {
    for (int64_t t = 0; t < rows_; ++t) {
      const T times = factor(t);
      over<T>(size, [&](auto at) { store(to[t] + at.i, at.load(from + t * stride) * times); });
    }
  }
  static T one(int64_t) { return T{1}; }
  template <typename N>
  void put_rows(Matrix<T> from, int64_t size, N* to, int64_t stride) const {
    for (int64_t t = 0; t < rows_; ++t)
      over<T>(size, [&](auto at) { at.store(to + t * stride, load(from[t] + at.i)); });
  }

  const DeltaRuleRun<S>& run_;
  const DeltaRuleSequence& sequence_;
  int64_t first_head_, count_;
  const DeltaRuleHeads& heads_;
  int64_t keys_, values_;               // sizes of a head, padded
  Matrix<T> states_{}, saved_state_{};  // [count * keys, values]: states, or gradients; [keys, values]
  int64_t row_ = 0, rows_ = 0;          // of the block
};

/// The kernels of a pass, whose constructor takes run, sequence, task, workspace and whether it goes back.
template <template <typename> class Pass, typename S>
DeltaRuleKernels<S> kernels_of() {
  return {Pass<S>::workspace,
          [](const DeltaRuleRun<S>& run, const DeltaRuleSequence& sequence, int64_t task,
             Wide<S>* workspace) { Pass<S>(run, sequence, task, workspace, /*backward=*/false).forward(); },
          [](const DeltaRuleRun<S>& run, const DeltaRuleSequence& sequence, int64_t task,
             Wide<S>* workspace) { Pass<S>(run, sequence, task, workspace, /*backward=*/true).backward(); }};
}

}  // namespace streambp::cpu::STREAMBP_ISA
