#include "streambp/ops/cpu/recurrent/delta_rule.h"

#include "streambp/ops/cpu/recurrent/delta_rule_pass.h"
#include "streambp/ops/cpu/recurrent/delta_rule_scratch.h"

namespace streambp::cpu::STREAMBP_ISA {
namespace {

/// One key head and its value heads through one sequence. Products of queries and keys, and in the end their
/// gradients, are the value heads' together.
template <typename S>
class KeyHeadPass : HeadsPass<S> {
  using Base = HeadsPass<S>;
  using Base::bring_directions, Base::bring_rows, Base::head, Base::numbers, Base::put_direction_gradients,
      Base::put_rows, Base::scale, Base::scale_state, Base::state_of;
  using Base::heads_, Base::keys_, Base::row_, Base::rows_, Base::run_, Base::values_;
  using typename Base::T;

 public:
  static int64_t workspace(const DeltaRuleHeads& heads, bool backward) {
    return DeltaRuleScratch<T>(heads, backward, nullptr).size;
  }

  KeyHeadPass(const DeltaRuleRun<S>& run, const DeltaRuleSequence& sequence, int64_t key_head, T* workspace,
              bool backward)
      : Base(run, sequence, key_head * run.heads.groups, run.heads.groups),
        key_head_(key_head),
        m_(run.heads, backward, workspace) {
    Base::states_ = m_.states;
    Base::saved_state_ = m_.saved_state;
  }

  void forward() {
    Base::forward_blocks([&] { bring_block(run_.hidden != nullptr); },
                         [&](int64_t group) { forward_head(group); });
  }

  void backward() {
    Base::backward_blocks(
        [&] {
          bring_block(true);
          fill(m_.d_query_products, rows_, padded<T>(rows_), T{0});
          fill(m_.d_key_products, rows_, padded<T>(rows_), T{0});
          fill(m_.dq, rows_, keys_, T{0});
          fill(m_.dk, rows_, keys_, T{0});
        },
        [&](int64_t group) { backward_head(group); }, [&] { put_key_head(); });
  }

 private:
  const S* mixed_rows(int64_t column) const { return Base::mixed_rows(run_.mixed, column); }
  int64_t query_column() const { return key_head_ * heads_.key_dim; }
  int64_t key_column() const { return (heads_.key_heads + key_head_) * heads_.key_dim; }
  int64_t value_column(int64_t group) const {
    return 2 * heads_.key_heads * heads_.key_dim + head(group) * heads_.value_dim;
  }
  /// What the value heads share of the block that begins with row_.
  void bring_block(bool wants_queries) {
    const int64_t columns = padded<T>(rows_);
    bring_directions(key_column(), T{1}, m_.k, m_.numbers[0]);
    transpose(m_.k, rows_, keys_, m_.keys_transposed);
    multiply<false>(rows_, columns, heads_.key_dim, m_.k, m_.keys_transposed, m_.key_products);
    if (!wants_queries) return;
    bring_directions(query_column(), scale(), m_.q, m_.numbers[1]);
    multiply<false>(rows_, columns, heads_.key_dim, m_.q, m_.keys_transposed, m_.query_products);
  }

  /// The head's numbers, its triangular system and, in m_.updates, u and -w.
  void set_updates(int64_t group, bool wants_queries) {
    const int64_t columns = padded<T>(rows_);
    T log_decay[kDeltaBlock];
    Base::bring_numbers(group, beta(), log_decay);
    set_decays(rows_, log_decay, m_.decays, decay());
    for (int64_t t = 0; t < rows_; ++t) {
      for (int64_t s = 0; s < columns; s += kWidth<T>) {
        const Vector<T> shares = load(m_.decays[t] + s);
        store(m_.system[t] + s, load(m_.key_products[t] + s) * shares * -beta()[t]);
        if (wants_queries) store(m_.attention[t] + s, load(m_.query_products[t] + s) * shares);
      }
      m_.system[t][t] = 0;
      rest()[t] = m_.decays[rows_ - 1][t];
    }
    bring_rows(mixed_rows(value_column(group)), heads_.columns(), heads_.value_dim, m_.updates,
               [&](int64_t t) { return beta()[t]; });
    for (int64_t t = 0; t < rows_; ++t) {
      const T factor = -beta()[t] * decay()[t];
      for (int64_t e = 0; e < keys_; e += kWidth<T>)
        store(m_.updates[t] + values_ + e, load(m_.k[t] + e) * factor);
    }
    solve(rows_, values_ + keys_, m_.system, m_.updates);
  }

  /// v' = u - w S.
  void set_new_values(Matrix<T> state) const {
    for (int64_t t = 0; t < rows_; ++t)
      __builtin_memcpy(m_.new_values[t], m_.updates[t], sizeof(T) * static_cast<size_t>(values_));
    multiply<true>(rows_, values_, heads_.key_dim, m_.updates.column(values_), state, m_.new_values);
  }

  void forward_head(int64_t group) {
    const Matrix<T> state = state_of(group);
    set_updates(group, run_.hidden != nullptr);
    set_new_values(state);
    if (run_.hidden != nullptr) {
      const Matrix<T> hidden = m_.updates;  // which are read no more
      multiply<false>(rows_, values_, heads_.key_dim, m_.q, state, hidden);
      scale_rows(hidden, rows_, values_, decay());
      multiply<true>(rows_, values_, rows_, m_.attention, m_.new_values, hidden);
      put_rows(hidden, heads_.value_dim, Base::vectors(run_.hidden, group), heads_.values());
    }
    scale_rows(m_.new_values, rows_, values_, rest());
    scale_state(state, decay()[rows_ - 1]);
    multiply_transposed<true>(heads_.key_dim, values_, rows_, m_.k, m_.new_values, state);
  }

  /// From the gradient of the head's state after the block, in state_of(), to that of the state before it;
  /// adds to what the value heads share.
  void backward_head(int64_t group) {
    const Matrix<T> d_state = state_of(group), state = m_.saved_state;
    set_updates(group, true);
    set_new_values(state);
    bring_rows(mixed_rows(value_column(group)), heads_.columns(), heads_.value_dim, m_.v, Base::one);
    Base::bring_d_hidden(group, m_.d_hidden);
    // dk~ = v' dS^T; what states and their gradients have in common.
    transpose(d_state, heads_.key_dim, values_, transposed(keys_));
    multiply<false>(rows_, keys_, heads_.value_dim, m_.new_values, transposed(keys_), m_.dk_decayed);
    const T of_states = Base::product_of_states(d_state);
    // dv' = k~ dS + P^T do
    multiply<false>(rows_, values_, heads_.key_dim, m_.k, d_state, m_.d_updates);
    scale_rows(m_.d_updates, rows_, values_, rest());
    multiply_transposed<true>(rows_, values_, rows_, m_.attention, m_.d_hidden, m_.d_updates);
    // dq~ = do S^T and, next to dv', -dw = dv' S^T
    transpose(state, heads_.key_dim, values_, transposed(keys_));
    multiply<false>(rows_, keys_, heads_.value_dim, m_.d_hidden, transposed(keys_), m_.dq_decayed);
    multiply<false>(rows_, keys_, heads_.value_dim, m_.d_updates, transposed(keys_),
                    m_.d_updates.column(values_));
    // dP = do v'^T
    transpose(m_.new_values, rows_, values_, transposed(kDeltaBlock));
    multiply<false>(rows_, padded<T>(rows_), heads_.value_dim, m_.d_hidden, transposed(kDeltaBlock),
                    m_.d_attention);
    // dS = e^(G_B) dS - w^T dv' + q~^T do
    scale_state(d_state, decay()[rows_ - 1]);
    multiply_transposed<true>(heads_.key_dim, values_, rows_, m_.updates.column(values_), m_.d_updates,
                              d_state);
    scale_rows(m_.d_hidden, rows_, values_, decay());
    multiply_transposed<true>(heads_.key_dim, values_, rows_, m_.q, m_.d_hidden, d_state);
    // The systems' gradients: d(beta v), -d(beta k e^G), and dA = -(d(beta v) u^T + d(beta k e^G) w^T).
    solve_transposed(rows_, values_ + keys_, m_.system, m_.d_updates);
    transpose(m_.updates, rows_, values_ + keys_, transposed(kDeltaBlock));
    multiply<false>(rows_, padded<T>(rows_), values_ + keys_, m_.d_updates, transposed(kDeltaBlock),
                    m_.d_system);
    put_numbers(group, of_states * decay()[rows_ - 1]);
    add_shared_gradients();
    put_values(group);
  }

  /// Gradients of beta and of the decays. See DeltaRuleTensors's put_decay for the sums.
  void put_numbers(int64_t group, T of_states) {
    const int64_t columns = padded<T>(rows_), heads = heads_.value_heads();
    T later[kDeltaBlock] = {};  // of each s: the sum over pairs (t, s), t from some row on
    T d_log_decay[kDeltaBlock];
    T *const d_log_decays = numbers(run_.d_log_decay, group), *const d_betas = numbers(run_.d_beta, group);
    T from_before = of_states;
    for (int64_t t = rows_ - 1; t >= 0; --t) {
      const T factor = -beta()[t];
      m_.d_system[t][t] = 0;
      const T along_key = -decay()[t] * dot(m_.k[t], m_.d_updates[t] + values_, keys_);
      Vector<T> d_beta = {};
      T of_pairs = 0;
      for (int64_t s = 0; s < columns; s += kWidth<T>) {
        const Vector<T> d_key_product = load(m_.d_system[t] + s) * load(m_.decays[t] + s);
        const Vector<T> d_query_product = load(m_.d_attention[t] + s) * load(m_.decays[t] + s);
        d_beta -= d_key_product * load(m_.key_products[t] + s);
        store(later + s, load(later + s) + d_key_product * load(m_.key_products[t] + s) * factor +
                             d_query_product * load(m_.query_products[t] + s));
        store(m_.d_system[t] + s, d_key_product * factor);
        store(m_.d_attention[t] + s, d_query_product);
      }
      for (int64_t s = 0; s < t; ++s) of_pairs += later[s];
      d_betas[t * heads] = sum_of<T>(d_beta) + along_key + dot(m_.v[t], m_.d_updates[t], values_);
      from_before += decay()[t] * dot(m_.q[t], m_.dq_decayed[t], keys_) + beta()[t] * along_key;
      d_log_decay[t] = of_pairs + from_before;
    }
    T to_after = 0;
    for (int64_t t = 0; t < rows_; ++t) {
      d_log_decays[t * heads] = d_log_decay[t] + to_after;
      to_after += rest()[t] * dot(m_.k[t], m_.dk_decayed[t], keys_);
    }
  }

  /// The head's part of what the value heads share.
  void add_shared_gradients() const {
    const int64_t columns = padded<T>(rows_);
    for (int64_t t = 0; t < rows_; ++t) {
      for (int64_t s = 0; s < columns; s += kWidth<T>) {
        store(m_.d_key_products[t] + s, load(m_.d_key_products[t] + s) + load(m_.d_system[t] + s));
        store(m_.d_query_products[t] + s, load(m_.d_query_products[t] + s) + load(m_.d_attention[t] + s));
      }
    }
    T of_updates[kDeltaBlock];
    for (int64_t t = 0; t < rows_; ++t) of_updates[t] = -beta()[t] * decay()[t];
    add_scaled_rows(m_.dq, rows_, keys_, decay(), m_.dq_decayed);
    add_scaled_rows(m_.dk, rows_, keys_, rest(), m_.dk_decayed);
    add_scaled_rows(m_.dk, rows_, keys_, of_updates, m_.d_updates.column(values_));
  }

  void put_values(int64_t group) const {
    scale_rows(m_.d_updates, rows_, values_, beta());
    put_rows(m_.d_updates, heads_.value_dim, d_mixed_rows(value_column(group)), heads_.columns());
  }

  /// Gradients of the key head's queries and keys, once all value heads are done.
  void put_key_head() const {
    multiply<true>(rows_, keys_, rows_, m_.d_query_products, m_.k, m_.dq);
    multiply_transposed<true>(rows_, keys_, rows_, m_.d_query_products, m_.q, m_.dk);
    multiply<true>(rows_, keys_, rows_, m_.d_key_products, m_.k, m_.dk);
    multiply_transposed<true>(rows_, keys_, rows_, m_.d_key_products, m_.k, m_.dk);
    put_direction_gradients(m_.dq, m_.q, m_.numbers[1], scale(), query_column());
    put_direction_gradients(m_.dk, m_.k, m_.numbers[0], T{1}, key_column());
  }

  S* d_mixed_rows(int64_t column) const { return Base::mixed_rows(run_.d_mixed, column); }
  T* beta() const { return m_.numbers[2]; }
  T* decay() const { return m_.numbers[3]; }
  T* rest() const { return m_.numbers[4]; }
  Matrix<T> transposed(int64_t row) const { return {m_.transposed.data, row}; }

  int64_t key_head_;
  const DeltaRuleScratch<T> m_;
};

}  // namespace

template <typename S>
DeltaRuleKernels<S> delta_rule_kernels();
template <typename S>
DeltaRuleKernels<S> delta_rule_kernels() {
  return kernels_of<KeyHeadPass, S>();
}
template DeltaRuleKernels<float> delta_rule_kernels<float>();
template DeltaRuleKernels<double> delta_rule_kernels<double>();
template DeltaRuleKernels<Bfloat16> delta_rule_kernels<Bfloat16>();

}  // namespace streambp::cpu::STREAMBP_ISA
