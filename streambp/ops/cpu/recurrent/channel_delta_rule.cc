// The gated delta rule with a decay for each entry of a key. The formulas stand in
// ops/recurrent/delta_rule_group.h and ops/recurrent/channel_decays.h.
//
// What is left of a key, k_s e^(G_t - G_s), is multiplied by the decays of one token after another: products
// of numbers up to 1, of which none overflows and what is gone is 0.
#include "streambp/ops/cpu/recurrent/delta_rule_pass.h"

namespace streambp::cpu::STREAMBP_ISA {
namespace {

/// Matrices of one block: `rows` are its tokens, `keys` and `values` the sizes of a head, padded.
template <typename T>
struct ChannelScratch : MatrixSpace<T> {
  Matrix<T> q, k;                  // [rows, keys]: directions, of queries times scale()
  Matrix<T> decays, since, until;  // [rows, keys]: e^g, e^G and e^(G_B - G)
  Matrix<T> decayed;               // [rows, keys]: of q or k
  Matrix<T> products;              // [rows, rows]: A without beta
  Matrix<T> system, attention;     // [rows, rows]: -A, and P
  Matrix<T> updates;               // [rows, values + keys]: u and -w
  Matrix<T> new_values;            // [rows, values]: v'
  Matrix<T> states;                // [keys, values]: the state, or its gradient
  Matrix<T> left;                  // [1, keys]: of one key
  Matrix<T> numbers;               // a number a row: lengths of keys and queries, beta
  Matrix<T> d_system, d_attention, of_system, of_attention;  // [rows, rows]; the last two [s, t]
  Matrix<T> dq, dk, d_log_decay, dq_decayed, dk_decayed;     // [rows, keys]
  Matrix<T> v, d_hidden;                                     // [rows, values]
  Matrix<T> d_updates;      // [rows, values + keys]: of v' and -w, then of beta v and -beta k e^G
  Matrix<T> transposed;     // of whatever is the right factor of a product
  Matrix<T> saved_state{};  // [keys, values]: at the block's begin

  using MatrixSpace<T>::take;
  ChannelScratch(const DeltaRuleHeads& heads, bool backward, T* memory) : MatrixSpace<T>{memory} {
    const int64_t keys = padded<T>(heads.key_dim), values = padded<T>(heads.value_dim);
    take(kDeltaBlock, keys, q, k, decays, since, until, decayed);
    take(kDeltaBlock, kDeltaBlock, products, system, attention);
    take(kDeltaBlock, values + keys, updates);
    take(kDeltaBlock, values, new_values);
    take(keys, values, states);
    take(1, keys, left);
    take(3, kDeltaBlock, numbers);
    if (!backward) return;
    take(kDeltaBlock, kDeltaBlock, d_system, d_attention, of_system, of_attention);
    take(kDeltaBlock, keys, dq, dk, d_log_decay, dq_decayed, dk_decayed);
    take(kDeltaBlock, values, v, d_hidden);
    take(kDeltaBlock, values + keys, d_updates);
    take(1, at_least((values + keys) * kDeltaBlock, keys * values), transposed);
    take(keys, values, saved_state);
  }
};

/// One head through one sequence.
template <typename S>
class ChannelPass : HeadsPass<S> {
  using Base = HeadsPass<S>;
  using Base::bring_rows, Base::head, Base::numbers, Base::put_rows, Base::state_of, Base::scale;
  using Base::heads_, Base::keys_, Base::row_, Base::rows_, Base::run_, Base::values_;
  using typename Base::T;

 public:
  static int64_t workspace(const DeltaRuleHeads& heads, bool backward) {
    return ChannelScratch<T>(heads, backward, nullptr).size;
  }

  ChannelPass(const DeltaRuleRun<S>& run, const DeltaRuleSequence& sequence, int64_t head, T* workspace,
              bool backward)
      : Base(run, sequence, head, 1), m_(run.heads, backward, workspace) {
    Base::states_ = m_.states;
    Base::saved_state_ = m_.saved_state;
  }

  void forward() {
    Base::forward_blocks([&] { bring_block(run_.hidden != nullptr); }, [&](int64_t) { forward_head(); });
  }

  void backward() {
    Base::backward_blocks([&] { bring_block(true); }, [&](int64_t) { backward_head(); }, [] {});
  }

 private:
  int64_t query_column() const { return head(0) * heads_.key_dim; }
  int64_t key_column() const { return (heads_.key_heads + head(0)) * heads_.key_dim; }
  int64_t value_column() const { return 2 * heads_.key_heads * heads_.key_dim + head(0) * heads_.value_dim; }
  /// The head's columns of the decays' logarithms or of their gradient, `decay_stride` apart.
  template <typename N>
  N* decay_rows(N* all) const {
    return all + row_ * decay_stride() + head(0) * heads_.key_dim;
  }
  int64_t decay_stride() const { return heads_.key_heads * heads_.key_dim; }

  void bring_block(bool wants_queries) {
    Base::bring_directions(key_column(), T{1}, m_.k, m_.numbers[0]);
    if (wants_queries) Base::bring_directions(query_column(), scale(), m_.q, m_.numbers[1]);
    const T *const betas = numbers(run_.beta, 0), *const logarithms = decay_rows(run_.log_decay);
    for (int64_t t = 0; t < rows_; ++t) {
      beta()[t] = betas[t * heads_.value_heads()];
      over<T>(heads_.key_dim, [&](auto at) {
        store(m_.decays[t] + at.i, exp_of<T>(at.load(logarithms + t * decay_stride())));
      });
    }
    for (int64_t e = 0; e < keys_; e += kWidth<T>) {
      Vector<T> total = broadcast(T{1});
      for (int64_t t = 0; t < rows_; ++t) store(m_.since[t] + e, total = total * load(m_.decays[t] + e));
      total = broadcast(T{1});
      for (int64_t t = rows_ - 1; t >= 0; --t) {
        store(m_.until[t] + e, total);
        total = total * load(m_.decays[t] + e);
      }
    }
    set_products(wants_queries);
    set_updates();
  }

  /// A without beta, -A and P, zeros above their diagonals.
  void set_products(bool wants_queries) {
    const int64_t columns = padded<T>(rows_);
    fill(m_.products, rows_, columns, T{0});
    fill(m_.system, rows_, columns, T{0});
    fill(m_.attention, rows_, columns, T{0});
    T* const left = m_.left[0];
    for (int64_t s = 0; s < rows_; ++s) {
      __builtin_memcpy(left, m_.k[s], sizeof(T) * static_cast<size_t>(keys_));
      if (wants_queries) m_.attention[s][s] = dot(m_.q[s], left, keys_);
      for (int64_t t = s + 1; t < rows_; ++t) {
        Vector<T> of_key = {}, of_query = {};
        for (int64_t e = 0; e < keys_; e += kWidth<T>) {
          const Vector<T> rest = load(left + e) * load(m_.decays[t] + e);
          store(left + e, rest);
          of_key += rest * load(m_.k[t] + e);
          if (wants_queries) of_query += rest * load(m_.q[t] + e);
        }
        m_.products[t][s] = sum_of<T>(of_key);
        m_.system[t][s] = -beta()[t] * m_.products[t][s];
        if (wants_queries) m_.attention[t][s] = sum_of<T>(of_query);
      }
    }
  }

  void set_updates() {
    bring_rows(Base::mixed_rows(run_.mixed, value_column()), heads_.columns(), heads_.value_dim, m_.updates,
               [&](int64_t t) { return beta()[t]; });
    for (int64_t t = 0; t < rows_; ++t)
      for (int64_t e = 0; e < keys_; e += kWidth<T>)
        store(m_.updates[t] + values_ + e, load(m_.k[t] + e) * load(m_.since[t] + e) * -beta()[t]);
    solve(rows_, values_ + keys_, m_.system, m_.updates);
  }

  /// v' = u - w S.
  void set_new_values(Matrix<T> state) const {
    for (int64_t t = 0; t < rows_; ++t)
      __builtin_memcpy(m_.new_values[t], m_.updates[t], sizeof(T) * static_cast<size_t>(values_));
    multiply<true>(rows_, values_, heads_.key_dim, m_.updates.column(values_), state, m_.new_values);
  }

  /// m_.decayed = a times b, entry by entry.
  void set_decayed(Matrix<T> a, Matrix<T> b) const {
    for (int64_t t = 0; t < rows_; ++t)
      for (int64_t e = 0; e < keys_; e += kWidth<T>)
        store(m_.decayed[t] + e, load(a[t] + e) * load(b[t] + e));
  }

  void forward_head() {
    const Matrix<T> state = state_of(0);
    set_new_values(state);
    if (run_.hidden != nullptr) {
      const Matrix<T> hidden = m_.updates;  // which are read no more
      set_decayed(m_.q, m_.since);
      multiply<false>(rows_, values_, heads_.key_dim, m_.decayed, state, hidden);
      multiply<true>(rows_, values_, rows_, m_.attention, m_.new_values, hidden);
      put_rows(hidden, heads_.value_dim, Base::vectors(run_.hidden, 0), heads_.values());
    }
    scale_rows(state, heads_.key_dim, values_, m_.since[rows_ - 1]);
    set_decayed(m_.k, m_.until);
    multiply_transposed<true>(heads_.key_dim, values_, rows_, m_.decayed, m_.new_values, state);
  }

  /// From the gradient of the state after the block, in state_of(0), to that of the state before it.
  void backward_head() {
    const Matrix<T> d_state = state_of(0), state = m_.saved_state;
    const T* const whole = m_.since[rows_ - 1];
    set_new_values(state);
    bring_rows(Base::mixed_rows(run_.mixed, value_column()), heads_.columns(), heads_.value_dim, m_.v,
               Base::one);
    Base::bring_d_hidden(0, m_.d_hidden);
    // dk~ = v' dS^T; what states and their gradients have in common.
    transpose(d_state, heads_.key_dim, values_, transposed(keys_));
    multiply<false>(rows_, keys_, heads_.value_dim, m_.new_values, transposed(keys_), m_.dk_decayed);
    for (int64_t e = 0; e < keys_; ++e)
      m_.left[0][e] = e < heads_.key_dim ? whole[e] * dot(state[e], d_state[e], values_) : T{0};
    // dv' = k~ dS + P^T do
    set_decayed(m_.k, m_.until);
    multiply<false>(rows_, values_, heads_.key_dim, m_.decayed, d_state, m_.d_updates);
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
    scale_rows(d_state, heads_.key_dim, values_, whole);
    multiply_transposed<true>(heads_.key_dim, values_, rows_, m_.updates.column(values_), m_.d_updates,
                              d_state);
    set_decayed(m_.q, m_.since);
    multiply_transposed<true>(heads_.key_dim, values_, rows_, m_.decayed, m_.d_hidden, d_state);
    // The systems' gradients: d(beta v), -d(beta k e^G), and dA = -(d(beta v) u^T + d(beta k e^G) w^T).
    solve_transposed(rows_, values_ + keys_, m_.system, m_.d_updates);
    transpose(m_.updates, rows_, values_ + keys_, transposed(kDeltaBlock));
    multiply<false>(rows_, padded<T>(rows_), values_ + keys_, m_.d_updates, transposed(kDeltaBlock),
                    m_.d_system);
    put_betas();
    transpose(m_.d_attention, rows_, padded<T>(rows_), m_.of_attention);
    transpose(m_.d_system, rows_, padded<T>(rows_), m_.of_system);
    for (int64_t e = 0; e < keys_; e += kWidth<T>) {
      set_gradients_outside_pairs(e);
      for (int64_t s = 0; s < rows_; ++s) add_gradients_of_pairs(s, e);
    }
    Base::put_direction_gradients(m_.dq, m_.q, m_.numbers[1], scale(), query_column());
    Base::put_direction_gradients(m_.dk, m_.k, m_.numbers[0], T{1}, key_column());
    put_rows(m_.d_log_decay, heads_.key_dim, decay_rows(run_.d_log_decay), decay_stride());
    scale_rows(m_.d_updates, rows_, values_, beta());
    put_rows(m_.d_updates, heads_.value_dim, Base::mixed_rows(run_.d_mixed, value_column()),
             heads_.columns());
  }

  /// The gradient of beta; m_.d_system becomes that of m_.products.
  void put_betas() {
    T* const d_betas = numbers(run_.d_beta, 0);
    for (int64_t t = 0; t < rows_; ++t) {
      T of_pairs = 0;
      for (int64_t s = 0; s < t; ++s) of_pairs -= m_.d_system[t][s] * m_.products[t][s];
      const T along_key = sum_over<T>(keys_, [&](auto at) {
        return at.load(m_.k[t]) * at.load(m_.since[t]) * at.load(m_.d_updates[t] + values_);
      });
      d_betas[t * heads_.value_heads()] = of_pairs - along_key + dot(m_.v[t], m_.d_updates[t], values_);
      for (int64_t s = 0; s < t; ++s) m_.d_system[t][s] *= -beta()[t];
    }
  }

  /// Of entries from e on: what states and updates give to queries, keys and decays. Token r's decay is in
  /// e^G of all tokens from r on, in e^(G_B - G) of all before r, and in the whole block's.
  void set_gradients_outside_pairs(int64_t e) const {
    Vector<T> total = load(m_.left[0] + e);
    for (int64_t t = rows_ - 1; t >= 0; --t) {
      const Vector<T> since = load(m_.since[t] + e), k = load(m_.k[t] + e);
      const Vector<T> dq = load(m_.dq_decayed[t] + e) * since;
      const Vector<T> dk = load(m_.d_updates[t] + values_ + e) * since * -beta()[t];
      total += load(m_.q[t] + e) * dq + k * dk;
      store(m_.dq[t] + e, dq);
      store(m_.dk[t] + e, dk);
      store(m_.d_log_decay[t] + e, total);
    }
    total = Vector<T>{};
    for (int64_t t = 0; t < rows_; ++t) {
      const Vector<T> dk = load(m_.dk_decayed[t] + e) * load(m_.until[t] + e);
      store(m_.d_log_decay[t] + e, load(m_.d_log_decay[t] + e) + total);
      store(m_.dk[t] + e, load(m_.dk[t] + e) + dk);
      total += load(m_.k[t] + e) * dk;
    }
  }

  /// Of entries from e on: what the pairs of key s with tokens from s on give. Forwards with what is left of
  /// the key, backwards with what later tokens want of it: token r's decay is between both.
  void add_gradients_of_pairs(int64_t s, int64_t e) const {
    const T *const of_attention = m_.of_attention[s], *const of_system = m_.of_system[s];
    Vector<T> left[kDeltaBlock];
    left[s] = load(m_.k[s] + e);
    store(m_.dq[s] + e, load(m_.dq[s] + e) + left[s] * of_attention[s]);
    for (int64_t t = s + 1; t < rows_; ++t) {
      left[t] = left[t - 1] * load(m_.decays[t] + e);
      store(m_.dq[t] + e, load(m_.dq[t] + e) + left[t] * of_attention[t]);
      store(m_.dk[t] + e, load(m_.dk[t] + e) + left[t] * of_system[t]);
    }
    Vector<T> wanted = {};
    for (int64_t t = rows_ - 1; t > s; --t) {
      wanted += load(m_.q[t] + e) * of_attention[t] + load(m_.k[t] + e) * of_system[t];
      store(m_.d_log_decay[t] + e, load(m_.d_log_decay[t] + e) + left[t] * wanted);
      wanted *= load(m_.decays[t] + e);
    }
    wanted += load(m_.q[s] + e) * of_attention[s];
    store(m_.dk[s] + e, load(m_.dk[s] + e) + wanted);
  }

  T* beta() const { return m_.numbers[2]; }
  Matrix<T> transposed(int64_t row) const { return {m_.transposed.data, row}; }

  const ChannelScratch<T> m_;
};

}  // namespace

template <typename S>
DeltaRuleKernels<S> channel_delta_rule_kernels();
template <typename S>
DeltaRuleKernels<S> channel_delta_rule_kernels() {
  return kernels_of<ChannelPass, S>();
}
template DeltaRuleKernels<float> channel_delta_rule_kernels<float>();
template DeltaRuleKernels<double> channel_delta_rule_kernels<double>();
template DeltaRuleKernels<Bfloat16> channel_delta_rule_kernels<Bfloat16>();

}  // namespace streambp::cpu::STREAMBP_ISA
