// The log-probability of one target a row of logits, and its gradient written over the logits:
// ops/cpu/softmax.cc for the GPU. A block takes a row and reads it once.
#pragma once

#include "streambp/ops/cuda/numbers.cuh"

namespace streambp::cuda {

/// The largest of the numbers so far, and the sum of exp((x - largest) * scale) over them.
template <typename T>
struct ExpSum {
  T largest;
  double sum;

  STREAMBP_DEVICE void add(const ExpSum& other, double scale) {
    const T most = largest > other.largest ? largest : other.largest;
    // The difference of two equal largest numbers is nothing, infinite ones aside: these leave a NaN.
    sum = sum * exp((static_cast<double>(largest) - static_cast<double>(most)) * scale) +
          other.sum * exp((static_cast<double>(other.largest) - static_cast<double>(most)) * scale);
    largest = most;
  }
};

/// The log-odds of a target against all other words: ops/cpu/log_odds.h.
STREAMBP_DEVICE double log_odds_of(double target, const double* others, double scale) {
  if (target > kLargest<double>) return target - target;  // NaN, as a softmax has it
  return (target - others[0]) * scale - others[1];
}

template <typename S, int kCount>
STREAMBP_GLOBAL void target_softmax_forward(TargetSoftmax<S> op, double* log_probabilities, int64_t rows) {
  using T = Wide<S>;
  auto* const of_warps = shared_memory<ExpSum<T>>();
  const T scale = static_cast<T>(op.scale);
  for (int64_t row = block_index(); row < rows; row += block_count()) {
    const S* const logits = op.logits + row * op.size;
    // Finite from the start, so that no difference of two infinities arises where all logits so far are -inf.
    T largest = -kLargest<T>, sum = 0;
    const int64_t target = op.targets[row];  // is left out
    for (int64_t i = thread_index() * kCount; i < op.size; i += kThreads * kCount) {
      T x[kCount];
      load(logits + i, x);
      T most = largest;
      STREAMBP_UNROLL
      for (int k = 0; k < kCount; ++k) most = x[k] > most && i + k != target ? x[k] : most;
      if (most > largest) {
        sum *= exp((largest - most) * scale);
        largest = most;
      }
      STREAMBP_UNROLL
      for (int k = 0; k < kCount; ++k) sum += i + k == target ? T{0} : exp((x[k] - largest) * scale);
    }
    ExpSum<T> all{largest, static_cast<double>(sum)};
    STREAMBP_UNROLL
    for (int mask = kWarp / 2; mask > 0; mask /= 2)
      all.add({shuffle_xor(all.largest, mask), shuffle_xor(all.sum, mask)}, op.scale);
    if (thread_index() % kWarp == 0) of_warps[thread_index() / kWarp] = all;
    barrier();
    if (thread_index() == 0) {
      for (int warp = 1; warp < kThreads / kWarp; ++warp) all.add(of_warps[warp], op.scale);
      op.sums[2 * row] = static_cast<double>(all.largest);
      op.sums[2 * row + 1] = log(all.sum);
      const double log_odds =
          log_odds_of(static_cast<double>(widen(logits[target])), op.sums + 2 * row, op.scale);
      log_probabilities[row] = log_odds > 0 ? -log1p(exp(-log_odds)) : log_odds - log1p(exp(log_odds));
    }
    barrier();  // the next row's warps write there
  }
}

template <typename S, int kCount>
STREAMBP_GLOBAL void target_softmax_backward(TargetSoftmax<S> op, const double* d_target, int64_t rows) {
  using T = Wide<S>;
  const T scale = static_cast<T>(op.scale);
  for (int64_t row = block_index(); row < rows; row += block_count()) {
    S* const logits = op.logits + row * op.size;
    const T largest = static_cast<T>(op.sums[2 * row]);
    const bool alone =
        op.sums[2 * row + 1] < -1e300;  // the others are nothing, or impossible: none gets anything
    const T log_sum = alone ? T{0} : static_cast<T>(op.sums[2 * row + 1]);
    const int64_t target = op.targets[row];
    const double log_odds =
        log_odds_of(static_cast<double>(widen(logits[target])), op.sums + 2 * row, op.scale);
    const T d = static_cast<T>(d_target[row] * op.scale / (1 + exp(log_odds)));
    barrier();  // all have read the target's logit
    for (int64_t i = thread_index() * kCount; i < op.size; i += kThreads * kCount) {
      T x[kCount];
      load(logits + i, x);
      STREAMBP_UNROLL
      for (int k = 0; k < kCount; ++k) {
        x[k] = i + k == target ? d : exp((x[k] - largest) * scale - log_sum) * -d;
      }
      store(logits + i, x);
    }
  }
}

template <typename S>
Failure target_softmax(const Queue& queue, const TargetSoftmax<S>& op, double* log_probabilities,
                       int64_t rows) {
  const auto run = [&](auto kernel) {
    return launch(queue, kernel, blocks_for(rows, 1), kThreads, (kThreads / kWarp) * sizeof(ExpSum<Wide<S>>),
                  op, log_probabilities, rows);
  };
  return moves_in_packs<S>(op.logits, op.size) ? run(target_softmax_forward<S, kPack<S>>)
                                               : run(target_softmax_forward<S, 1>);
}

template <typename S>
Failure target_softmax_gradient(const Queue& queue, const TargetSoftmax<S>& op, const double* d_target,
                                int64_t rows) {
  const auto run = [&](auto kernel) {
    return launch(queue, kernel, blocks_for(rows, 1), kThreads, 0, op, d_target, rows);
  };
  return moves_in_packs<S>(op.logits, op.size) ? run(target_softmax_backward<S, kPack<S>>)
                                               : run(target_softmax_backward<S, 1>);
}

}  // namespace streambp::cuda
