// Mamba-2's state space: the delta rule without its exchange. The formulas stand in
// ops/recurrent/delta_rule_group.h, where A is then 0.
#include "streambp/ops/cpu/recurrent/delta_rule_pass.h"

namespace streambp::cpu::STREAMBP_ISA {
namespace {

/// Matrices of one block: `rows` are its tokens, `keys` and `values` the sizes of a head, padded.
template <typename T>
struct StateSpaceScratch : MatrixSpace<T> {
  Matrix<T> k, q;                         // [rows, keys]
  Matrix<T> keys_transposed;              // [keys, rows]
  Matrix<T> products, decays, attention;  // [rows, rows]: q k^T, e^(G_t - G_s), and both multiplied
  Matrix<T> updates, hidden;              // [rows, values]: beta v; and outputs, or their gradient
  Matrix<T> states;                       // [heads * keys, values]: states, or their gradients
  Matrix<T> numbers;                      // a number a row: beta, e^G, e^(G_B - G)
  Matrix<T> queries_transposed;           // [keys, rows]
  Matrix<T> d_products, d_attention;      // [rows, rows]
  Matrix<T> d_keys, d_queries, of_state;  // [keys, rows]: transposed gradients, and what states give to them
  Matrix<T> v, d_updates;                 // [rows, values]
  Matrix<T> hidden_transposed, transposed;  // [values, rows]: of d_hidden and of updates
  Matrix<T> saved_state{};                  // [keys, values]: at the block's begin

  using MatrixSpace<T>::take;
  StateSpaceScratch(const DeltaRuleHeads& heads, bool backward, T* memory) : MatrixSpace<T>{memory} {
    const int64_t keys = padded<T>(heads.key_dim), values = padded<T>(heads.value_dim);
    take(kDeltaBlock, keys, k, q);
    take(keys, kDeltaBlock, keys_transposed);
    take(kDeltaBlock, kDeltaBlock, products, decays, attention);
    take(kDeltaBlock, values, updates, hidden);
    take((heads.groups + heads.slices() - 1) / heads.slices() * keys, values, states);
    take(3, kDeltaBlock, numbers);
    if (!backward) return;
    take(keys, kDeltaBlock, queries_transposed, d_keys, d_queries, of_state);
    take(kDeltaBlock, kDeltaBlock, d_products, d_attention);
    take(kDeltaBlock, values, v, d_updates);
    take(values, kDeltaBlock, hidden_transposed, transposed);
    take(keys, values, saved_state);
  }
};

/// A slice of a key head's value heads through one sequence. Products of queries and keys, and in the end
/// their gradients, are the slice's together.
template <typename S>
class SlicePass : HeadsPass<S> {
  using Base = HeadsPass<S>;
  using Base::bring_rows, Base::head, Base::numbers, Base::put_rows, Base::scale_state, Base::state_of;
  using Base::heads_, Base::keys_, Base::row_, Base::rows_, Base::run_, Base::values_;
  using typename Base::T;

 public:
  static int64_t workspace(const DeltaRuleHeads& heads, bool backward) {
    return StateSpaceScratch<T>(heads, backward, nullptr).size;
  }

  SlicePass(const DeltaRuleRun<S>& run, const DeltaRuleSequence& sequence, int64_t task, T* workspace,
            bool backward)
      : SlicePass(run, sequence, task / run.heads.slices(), task % run.heads.slices(), workspace, backward) {}

  void forward() {
    Base::forward_blocks([&] { bring_block(run_.hidden != nullptr); }, [&](int64_t i) { forward_head(i); });
  }

  void backward() {
    Base::backward_blocks(
        [&] {
          bring_block(true);
          transpose(m_.q, rows_, keys_, m_.queries_transposed);
          fill(m_.d_products, rows_, padded<T>(rows_), T{0});
          fill(m_.d_keys, keys_, padded<T>(rows_), T{0});
          fill(m_.d_queries, keys_, padded<T>(rows_), T{0});
        },
        [&](int64_t i) { backward_head(i); }, [&] { put_keys_queries(); });
  }

 private:
  SlicePass(const DeltaRuleRun<S>& run, const DeltaRuleSequence& sequence, int64_t key_head, int64_t slice,
            T* workspace, bool backward)
      : Base(run, sequence, key_head * run.heads.groups + run.heads.groups * slice / run.heads.slices(),
             run.heads.groups * (slice + 1) / run.heads.slices() -
                 run.heads.groups * slice / run.heads.slices()),
        key_head_(key_head),
        slice_(slice),
        m_(run.heads, backward, workspace) {
    Base::states_ = m_.states;
    Base::saved_state_ = m_.saved_state;
  }

  int64_t key_width() const { return heads_.key_heads * heads_.key_dim; }
  void bring(int64_t column, int64_t size, Matrix<T> to) const {
    bring_rows(Base::mixed_rows(run_.mixed, column), heads_.columns(), size, to, Base::one);
  }

  /// What the slice shares of the block.
  void bring_block(bool wants_queries) {
    const int64_t key_column = heads_.values() + key_head_ * heads_.key_dim;
    bring(key_column, heads_.key_dim, m_.k);
    if (!wants_queries) return;
    bring(key_column + key_width(), heads_.key_dim, m_.q);
    transpose(m_.k, rows_, keys_, m_.keys_transposed);
    multiply<false>(rows_, padded<T>(rows_), heads_.key_dim, m_.q, m_.keys_transposed, m_.products);
  }

  /// The head's numbers and updates and, for outputs, its attention.
  void set_updates(int64_t i, bool wants_attention) {
    const int64_t columns = padded<T>(rows_);
    T log_decay[kDeltaBlock];
    Base::bring_numbers(i, beta(), log_decay);
    T after = 0, all = 0;
    for (int64_t t = rows_ - 1; t >= 0; --t) {
      rest()[t] = after;
      after += log_decay[t];
    }
    for (int64_t t = 0; t < rows_; ++t) decay()[t] = all += log_decay[t];
    for (int64_t t = rows_; t < columns; ++t) decay()[t] = rest()[t] = 0;
    for (int64_t t = 0; t < columns; t += kWidth<T>) {
      store(decay() + t, exp_of<T>(load(decay() + t)));
      store(rest() + t, exp_of<T>(load(rest() + t)));
    }
    bring_rows(Base::mixed_rows(run_.mixed, head(i) * heads_.value_dim), heads_.columns(), heads_.value_dim,
               m_.updates, [&](int64_t t) { return beta()[t]; });
    if (!wants_attention) return;
    set_decays(rows_, log_decay, m_.decays, decay());
    for (int64_t t = 0; t < rows_; ++t)
      for (int64_t s = 0; s < columns; s += kWidth<T>)
        store(m_.attention[t] + s, load(m_.products[t] + s) * load(m_.decays[t] + s));
  }

  void forward_head(int64_t i) {
    const Matrix<T> state = state_of(i);
    set_updates(i, run_.hidden != nullptr);
    if (run_.hidden != nullptr) {
      multiply<false>(rows_, values_, heads_.key_dim, m_.q, state, m_.hidden);
      scale_rows(m_.hidden, rows_, values_, decay());
      multiply_lower<true>(rows_, values_, m_.attention, m_.updates, m_.hidden);
      put_rows(m_.hidden, heads_.value_dim, Base::vectors(run_.hidden, i), heads_.values());
    }
    scale_rows(m_.updates, rows_, values_, rest());
    scale_state(state, decay()[rows_ - 1]);
    multiply_transposed<true>(heads_.key_dim, values_, rows_, m_.k, m_.updates, state);
  }

  /// From the gradient of the head's state after the block, in state_of(), to that of the state before it;
  /// adds to what the slice shares.
  void backward_head(int64_t i) {
    const Matrix<T> d_state = state_of(i), state = m_.saved_state;
    const int64_t columns = padded<T>(rows_);
    set_updates(i, true);
    bring(head(i) * heads_.value_dim, heads_.value_dim, m_.v);
    Base::bring_d_hidden(i, m_.hidden);
    transpose(m_.hidden, rows_, values_, m_.hidden_transposed);
    transpose(m_.updates, rows_, values_, m_.transposed);
    const T of_states = Base::product_of_states(d_state);
    // dk e^(G_B - G) = v' dS^T and dq e^G = do S^T, transposed.
    T of_state_after[kDeltaBlock], of_state_before[kDeltaBlock];
    multiply<false>(heads_.key_dim, columns, heads_.value_dim, d_state, m_.transposed, m_.of_state);
    add_of_state(m_.keys_transposed, rest(), m_.d_keys, of_state_after);
    multiply<false>(heads_.key_dim, columns, heads_.value_dim, state, m_.hidden_transposed, m_.of_state);
    add_of_state(m_.queries_transposed, decay(), m_.d_queries, of_state_before);
    // dv' = e^(G_B - G) k dS + P^T do, dP = do v'^T
    multiply<false>(rows_, values_, heads_.key_dim, m_.k, d_state, m_.d_updates);
    scale_rows(m_.d_updates, rows_, values_, rest());
    multiply_upper<true>(rows_, values_, m_.attention, m_.hidden, m_.d_updates);
    multiply<false>(rows_, columns, heads_.value_dim, m_.hidden, m_.transposed, m_.d_attention);
    // dS = e^(G_B) dS + q^T e^G do
    scale_state(d_state, decay()[rows_ - 1]);
    scale_rows(m_.hidden, rows_, values_, decay());
    multiply_transposed<true>(heads_.key_dim, values_, rows_, m_.q, m_.hidden, d_state);
    put_numbers(i, of_states * decay()[rows_ - 1], of_state_before, of_state_after);
    scale_rows(m_.d_updates, rows_, values_, beta());
    put_rows(m_.d_updates, heads_.value_dim, Base::mixed_rows(run_.d_mixed, head(i) * heads_.value_dim),
             heads_.columns());
  }

  /// sum += of_state with a factor for each token, and each token's product of that with x.
  void add_of_state(Matrix<T> x, const T* factors, Matrix<T> sum, T* products) const {
    for (int64_t t = 0; t < rows_; t += kWidth<T>) {
      const Vector<T> factor = load(factors + t);
      Vector<T> product = {};
      for (int64_t k = 0; k < heads_.key_dim; ++k) {
        const Vector<T> d = load(m_.of_state[k] + t) * factor;
        product += load(x[k] + t) * d;
        store(sum[k] + t, load(sum[k] + t) + d);
      }
      store(products + t, product);
    }
  }

  /// Gradients of beta and of the decays, and those of the slice's products. See DeltaRuleTensors's put_decay
  /// for the sums.
  void put_numbers(int64_t i, T of_states, const T* of_state_before, const T* of_state_after) {
    const int64_t heads = heads_.value_heads();
    T later[kDeltaBlock] = {};  // of each s: the sum over pairs (t, s), t from some row on
    T d_log_decay[kDeltaBlock];
    T *const d_log_decays = numbers(run_.d_log_decay, i), *const d_betas = numbers(run_.d_beta, i);
    T from_before = of_states;
    for (int64_t t = rows_ - 1; t >= 0; --t) {
      for (int64_t s = 0; s <= t; s += kWidth<T>) {
        const Vector<T> d_product = load(m_.d_attention[t] + s) * load(m_.decays[t] + s);
        store(later + s, load(later + s) + d_product * load(m_.products[t] + s));
        store(m_.d_products[t] + s, load(m_.d_products[t] + s) + d_product);
      }
      d_betas[t * heads] = dot(m_.v[t], m_.d_updates[t], values_);
      from_before += of_state_before[t];
      d_log_decay[t] = sum_over<T>(t, [&](auto at) { return at.load(later); }) + from_before;
    }
    T to_after = 0;
    for (int64_t t = 0; t < rows_; ++t) {
      d_log_decays[t * heads] = d_log_decay[t] + to_after;
      to_after += of_state_after[t];
    }
  }

  /// Gradients of the block's keys and queries, once all of the slice's heads are done.
  void put_keys_queries() const {
    const Matrix<T> d_keys = m_.k, d_queries = m_.q;  // in whose place they come
    const Matrix<T> k = m_.keys_transposed, q = m_.queries_transposed;
    const int64_t rows = run_.d_rows, columns = padded<T>(rows_);
    transpose(m_.d_products, rows_, columns, m_.attention);
    multiply<true>(heads_.key_dim, columns, rows_, k, m_.attention, m_.d_queries);
    multiply<true>(heads_.key_dim, columns, rows_, q, m_.d_products, m_.d_keys);
    transpose(m_.d_keys, heads_.key_dim, rows_, d_keys);
    transpose(m_.d_queries, heads_.key_dim, rows_, d_queries);
    T* const to = run_.d_keys_queries + (slice_ * rows + row_) * 2 * key_width() + key_head_ * heads_.key_dim;
    put_rows(d_keys, heads_.key_dim, to, 2 * key_width());
    put_rows(d_queries, heads_.key_dim, to + key_width(), 2 * key_width());
  }

  T* beta() const { return m_.numbers[0]; }
  T* decay() const { return m_.numbers[1]; }
  T* rest() const { return m_.numbers[2]; }

  int64_t key_head_, slice_;
  const StateSpaceScratch<T> m_;
};

}  // namespace

template <typename S>
DeltaRuleKernels<S> state_space_kernels();
template <typename S>
DeltaRuleKernels<S> state_space_kernels() {
  return kernels_of<SlicePass, S>();
}
template DeltaRuleKernels<float> state_space_kernels<float>();
template DeltaRuleKernels<double> state_space_kernels<double>();
template DeltaRuleKernels<Bfloat16> state_space_kernels<Bfloat16>();

}  // namespace streambp::cpu::STREAMBP_ISA
