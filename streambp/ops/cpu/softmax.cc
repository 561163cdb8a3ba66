// The log-probability of one target a row, and its gradient written over the logits.
#include "streambp/ops/cpu/elementwise.h"
#include "streambp/ops/cpu/row_loops.h"

namespace streambp::cpu::STREAMBP_ISA {
namespace {

/// Numbers that stay in the first-level cache between the search for their maximum and their sum.
template <typename T>
constexpr int64_t kBlock = 8192 / static_cast<int64_t>(sizeof(T));

template <typename T>
T max_over(const T* x, int64_t size) {
  T largest = x[0];
  int64_t i = 0;
  if (size >= 4 * kWidth<T>) {
    Vector<T> most[4];
    for (int part = 0; part < 4; ++part) most[part] = load<T>(x + part * kWidth<T>);
    for (i = 4 * kWidth<T>; i + 4 * kWidth<T> <= size; i += 4 * kWidth<T>) {
      for (int part = 0; part < 4; ++part) {
        const Vector<T> v = load<T>(x + i + part * kWidth<T>);
        most[part] = most[part] > v ? most[part] : v;
      }
    }
    for (int part = 0; part < 4; ++part) {
      const T one = max_of<T>(most[part]);
      largest = largest > one ? largest : one;
    }
  }
  for (; i < size; ++i) largest = largest > x[i] ? largest : x[i];
  return largest;
}

template <typename T>
void forward(const TargetSoftmax<T>& op, double* log_probabilities, int64_t begin, int64_t end) {
  const T scale = static_cast<T>(op.scale);
  for (int64_t row = begin; row < end; ++row) {
    const T* const logits = op.logits + row * op.size;
    T largest = kLowest<T>;
    double sum = 0;
    for (int64_t first = 0; first < op.size; first += kBlock<T>) {
      const T* const x = logits + first;
      const int64_t count = op.size - first < kBlock<T> ? op.size - first : kBlock<T>;
      const T block_largest = max_over(x, count);
      if (block_largest > largest) {
        sum *= __builtin_exp((static_cast<double>(largest) - static_cast<double>(block_largest)) * op.scale);
        largest = block_largest;
      }
      const int64_t whole = count / kWidth<T> * kWidth<T>;
      T part = sum_over<T>(whole, [&](auto at) { return exp_of<T>((at.load(x) - largest) * scale); });
      for (int64_t i = whole; i < count; ++i) part += exp_of<T>(broadcast<T>((x[i] - largest) * scale))[0];
      sum += static_cast<double>(part);
    }
    const double log_sum = __builtin_log(sum);
    op.sums[2 * row] = static_cast<double>(largest);
    op.sums[2 * row + 1] = log_sum;
    const double target = static_cast<double>(logits[op.targets[row]]);
    log_probabilities[row] = (target - static_cast<double>(largest)) * op.scale - log_sum;
  }
}

template <typename T>
void backward(const TargetSoftmax<T>& op, const double* d_target, int64_t begin, int64_t end) {
  const T scale = static_cast<T>(op.scale);
  for (int64_t row = begin; row < end; ++row) {
    T* const logits = op.logits + row * op.size;
    const T largest = static_cast<T>(op.sums[2 * row]), log_sum = static_cast<T>(op.sums[2 * row + 1]);
    const T d = static_cast<T>(d_target[row] * op.scale);
    over<T>(op.size, [&](auto at) {
      at.store(logits, exp_of<T>((at.load(logits) - largest) * scale - log_sum) * -d);
    });
    logits[op.targets[row]] += d;
  }
}

}  // namespace

template <typename T>
SoftmaxKernels<T> softmax_kernels() {
  return {forward<T>, backward<T>};
}
template SoftmaxKernels<float> softmax_kernels();
template SoftmaxKernels<double> softmax_kernels();

}  // namespace streambp::cpu::STREAMBP_ISA
