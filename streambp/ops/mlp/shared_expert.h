// The expert of a mixture that every token has.
#pragma once

#include <ATen/ATen.h>

#include "streambp/ops/linear.h"
#include "streambp/ops/mlp/mlp.h"

namespace streambp {

/// residual + sigmoid(gate(x)) expert(x) for x [n, D] and a gate [1, D]; without residual where that is
/// undefined. The maps must outlive the graph. With `graph_only` the values are left out: the result is
/// unread().
at::Tensor add_shared_expert(const at::Tensor& residual, const at::Tensor& x, const GatedMlp& expert,
                             const Linear& gate, bool graph_only);

}  // namespace streambp
