// The log-probability of one target a row, and its gradient written over the logits.
#include "streambp/ops/cpu/elementwise.h"
#include "streambp/ops/cpu/log_odds.h"
#include "streambp/ops/cpu/row_loops.h"

namespace streambp::cpu::STREAMBP_ISA {
namespace {

/// Numbers that stay in the first-level cache between the search for their maximum and their sum.
template <typename T>
constexpr int64_t kBlock = 8192 / static_cast<int64_t>(sizeof(T));

template <typename S>
Wide<S> max_over(const S* x, int64_t size) {
  using T = Wide<S>;
  T largest = to_wide(x[0]);
  int64_t i = 0;
  if (size >= 4 * kWidth<T>) {
    Vector<T> most[4];
    for (int part = 0; part < 4; ++part) most[part] = widen(x + part * kWidth<T>);
    for (i = 4 * kWidth<T>; i + 4 * kWidth<T> <= size; i += 4 * kWidth<T>) {
      for (int part = 0; part < 4; ++part) {
        const Vector<T> v = widen(x + i + part * kWidth<T>);
        most[part] = most[part] > v ? most[part] : v;
      }
    }
    for (int part = 0; part < 4; ++part) {
      const T one = max_of<T>(most[part]);
      largest = largest > one ? largest : one;
    }
  }
  for (; i < size; ++i) largest = largest > to_wide(x[i]) ? largest : to_wide(x[i]);
  return largest;
}

/// The largest of some logits, and the sum of exp((x - largest) * scale) over them.
template <typename S>
class ExpSum {
  using T = Wide<S>;

 public:
  explicit ExpSum(double scale) : scale_(scale) {}

  void add(const S* logits, int64_t size) {
    for (int64_t first = 0; first < size; first += kBlock<T>)
      add_block(logits + first, size - first < kBlock<T> ? size - first : kBlock<T>);
  }

  double largest() const { return static_cast<double>(largest_); }
  double log_sum() const { return __builtin_log(sum_); }

 private:
  void add_block(const S* x, int64_t count) {
    const T scale = static_cast<T>(scale_);
    const T block_largest = max_over(x, count);
    if (block_largest > largest_) {
      sum_ *= __builtin_exp((largest() - static_cast<double>(block_largest)) * scale_);
      largest_ = block_largest;
    }
    const T most = largest_;
    const int64_t whole = count / kWidth<T> * kWidth<T>;
    T part = sum_over<T>(whole, [&](auto at) { return exp_of<T>((at.load(x) - most) * scale); });
    for (int64_t i = whole; i < count; ++i)
      part += exp_of<T>(broadcast<T>((to_wide(x[i]) - most) * scale))[0];
    sum_ += static_cast<double>(part);
  }

  double scale_;
  T largest_ = kLowest<T>;
  double sum_ = 0;
};

template <typename S>
void forward(const TargetSoftmax<S>& op, double* log_probabilities, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row) {
    const S* const logits = op.logits + row * op.size;
    const int64_t target = op.targets[row];
    ExpSum<S> others(op.scale);
    others.add(logits, target);
    others.add(logits + target + 1, op.size - target - 1);
    op.sums[2 * row] = others.largest();
    op.sums[2 * row + 1] = others.log_sum();
    log_probabilities[row] = log_probability_of(
        log_odds_of(static_cast<double>(to_wide(logits[target])), op.sums + 2 * row, op.scale));
  }
}

template <typename S>
void backward(const TargetSoftmax<S>& op, const double* d_target, int64_t begin, int64_t end) {
  using T = Wide<S>;
  const T scale = static_cast<T>(op.scale);
  for (int64_t row = begin; row < end; ++row) {
    S* const logits = op.logits + row * op.size;
    const T largest = static_cast<T>(op.sums[2 * row]);
    const bool alone =
        op.sums[2 * row + 1] < -1e300;  // the others are nothing, or impossible: none gets anything
    const T log_sum = alone ? T{0} : static_cast<T>(op.sums[2 * row + 1]);
    const double target = static_cast<double>(to_wide(logits[op.targets[row]]));
    const T d = static_cast<T>(d_target[row] * op.scale *
                               complement_of(log_odds_of(target, op.sums + 2 * row, op.scale)));
    over<T>(op.size, [&](auto at) {
      at.store(logits, exp_of<T>((at.load(logits) - largest) * scale - log_sum) * -d);
    });
    TailVector{op.targets[row], 1}.store(logits, broadcast<T>(d));
  }
}

}  // namespace

template <typename S>
SoftmaxKernels<S> softmax_kernels() {
  return {forward<S>, backward<S>};
}
template SoftmaxKernels<float> softmax_kernels();
template SoftmaxKernels<double> softmax_kernels();
template SoftmaxKernels<Bfloat16> softmax_kernels();

}  // namespace streambp::cpu::STREAMBP_ISA
