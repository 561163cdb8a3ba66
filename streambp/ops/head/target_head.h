// The LM head of rows that have one target each and are asked for nothing but its log-probability, on the CPU
// in one piece: products, log-softmax and gradients by tiles of the vocabulary (ops/cpu/target_head.h).
#pragma once

#include <ATen/ATen.h>

#include "streambp/ops/cpu/kernels.h"
#include "streambp/ops/linear.h"

namespace streambp {

class TargetHead {
 public:
  /// Whether this head is served: no bias, adapter or rows trained apart, float32 or float64 throughout, on
  /// the CPU (or the meta device) with fast products (cpu/kernels.h).
  static bool serves(const Linear& head, const at::Tensor& x);

  /// Rows x [n, D], their targets [n] int64, and what their logits are divided by. `head` and `kernels` must
  /// outlive it.
  TargetHead(const Linear& head, const at::Tensor& x, const at::Tensor& targets, double temperature,
             const cpu::KernelSet& kernels = cpu::kernels());

  /// The targets' log-probabilities, [n] float64. Without `goes_back` nothing is kept for a backward pass.
  at::Tensor log_probabilities(bool goes_back = true);

  /// Adds the gradient of the weight for those of the log-probabilities, d_target [n] float64, and returns
  /// that of x. To be called once, after log_probabilities(true).
  at::Tensor backward(const at::Tensor& d_target);

 private:
  template <typename Body>
  void with_op(Body body) const;
  /// A thread's, of numbers T.
  template <typename T>
  cpu::HeadShare<T> share(int64_t thread) const;
  template <typename T>
  T* workspace(int64_t thread) const;

  const Linear& head_;
  const cpu::KernelSet& kernels_;
  at::Tensor x_, targets_;
  double temperature_;           // the head's output_scale included
  at::Tensor columns_, panels_;  // copies of x
  at::Tensor exponentials_;      // [V, columns]: of the logits, in the end their gradients; undefined where
                                 // nobody wants the weight's gradient
  at::Tensor sums_;              // [tiles, 2, columns]
  at::Tensor log_sums_;          // [n, 2] float64
  at::Tensor share_largest_;     // [threads, columns]
  at::Tensor share_sums_;        // [threads, n, D]
  at::Tensor workspaces_;        // a thread's in a row
};

}  // namespace streambp
