// The divergence of a chunk's rows from a teacher, and its gradient; inside the library only.
#pragma once

#include <functional>

#include <ATen/ATen.h>

#include "streambp/backprop/head/head.h"

namespace streambp {

/// [rows, 1] as [rows] float64.
inline at::Tensor to_column(const at::Tensor& rows) {
  return rows.squeeze(1).to(at::kDouble);
}

/// Logits of hidden states after the norm, in float32 or wider as Hugging Face upcasts them; not capped.
at::Tensor head_logits(const Model& model, const at::Tensor& normed);

/// The same, capped; `cap_slope` (may
/// be null) receives their derivative by the products before them, where the model caps its logits.
at::Tensor capped_logits(const Model& model, const at::Tensor& normed, at::Tensor* cap_slope);

/// Logits become log softmax(logits / temperature).
void log_softmax_(at::Tensor& logits, double temperature);

/// What the softmax p of some logits u is multiplied by in a gradient of u: constant + factor log p - share
/// log q, [rows, 1] each and q [rows, V].
struct SoftmaxSlope {
  at::Tensor constant;
  at::Tensor factor = {};  // undefined: 0
  at::Tensor share = {};   // undefined: 0
  at::Tensor log_q = {};
};

/// log p becomes p times the slope.
void multiply_(at::Tensor& log_p, const SoftmaxSlope& slope);

/// A divergence over the vocabulary that policy and teacher share, at the temperature that it asks for. With
/// p the policy's softmax of the scaled logits u, t the teacher's and m their mixture:
///     d KL(t || p) / du = p - t,   d KL(p || t) / du = p (log p - log t - KL),
///     d [beta KL(t || m) + (1 - beta) KL(p || m)] / du = (1 - beta) p (log p - log m - KL(p || m)).
class DivergenceRows {
 public:
  /// `logits` [rows, V] of the policy, before any softmax; `teacher_hidden()` gives the teacher's rows [rows,
  /// Dt].
  DivergenceRows(const HeadPass& pass, const at::Tensor& logits,
                 const std::function<at::Tensor()>& teacher_hidden);

  /// The divergences, [rows, 1]; `log_p` is the policy's log-softmax at the request's own temperature.
  at::Tensor values(const at::Tensor& log_p);

  /// The gradient for that of the divergences, d [rows, 1], in three steps around those of the log-softmax:
  /// what p is multiplied by (a mixture's d becomes that of its second term), what the teacher adds, and the
  /// gradient of a softmax of its own.
  void add_slope(at::Tensor& d, SoftmaxSlope& slope);
  void add_teacher(const at::Tensor& d, at::Tensor& d_scaled_logits);
  void add_own_softmax(at::Tensor& d_logits);

  /// Frees what is as wide as the vocabulary.
  void reset();

 private:
  bool is_forward() const { return pass_.request.divergence == Divergence::kForward; }

  const HeadPass& pass_;
  at::Tensor log_own_;    // [rows, V']: of the policy; undefined where it is the request's own log_p
  at::Tensor log_other_;  // [rows, V']: of the teacher; once there are values, of what p is compared with
  at::Tensor excess_;     // [rows, 1]: KL(p || other)
};

}  // namespace streambp
