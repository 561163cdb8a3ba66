// Norm and rotation of heads in one pass over memory, for queries and keys; and the fused kernels that
// rms_norm() and rope() share with it.
#pragma once

#include <ATen/ATen.h>

#include "streambp/ops/rms_norm.h"
#include "streambp/ops/rope.h"

namespace streambp {

/// rope(rms_norm(x, *norm), table) for x [n, heads, E], rope(x, table) where `norm` is null. x may be a slice
/// of a wider product. Keeps x and one number a head for the backward pass with a norm, nothing without. With
/// `overwrite` the result may lie where x did: for an x that nobody else reads. The norm must outlive the
/// graph.
at::Tensor normed_rope(const at::Tensor& x, const RmsNorm* norm, const RopeTable& table,
                       bool overwrite = false);

/// A norm, a rotation, or one after the other; null: not that one.
struct NormAndRope {
  const RmsNorm* norm = nullptr;
  const RopeTable* table = nullptr;

  /// Whether our kernels take x with these.
  bool is_fused(const at::Tensor& x) const;
};

/// The value for x [n, heads, E], with `residual` [n, heads, E] added where it is defined; contiguous. `rstd`
/// receives [n, heads, 1]. Where is_fused(x) only.
at::Tensor norm_rope_forward(const at::Tensor& x, const NormAndRope& op, const at::Tensor& residual,
                             at::Tensor& rstd, bool overwrite = false);

/// The gradient of x for dy [n, heads, E]; adds the weight's. Without a norm, x and rstd may be undefined.
at::Tensor norm_rope_backward(const at::Tensor& dy, const NormAndRope& op, const at::Tensor& x,
                              const at::Tensor& rstd);

}  // namespace streambp
