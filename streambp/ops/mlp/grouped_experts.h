// All experts of a mixture in one product for each map: on a GPU one kernel for all groups of rows instead of
// one for each expert, and no wait of the host for the sizes of the groups.
//
// The chosen rows are taken in the order of their experts and in pieces of a fixed number of rows, whatever
// expert they belong to: the sizes of all tensors are known without the choices, so that memory does not
// depend on how the load is spread, and a dry run sees what a real one allocates.
#pragma once

#include <algorithm>
#include <optional>
#include <vector>

#include <ATen/ATen.h>

#include "streambp/ops/mlp/mlp.h"

namespace streambp {

/// The experts' weights, views of what they own.
struct StackedExperts {
  at::Tensor gate_proj;  // [X, F, D]
  at::Tensor up_proj;    // [X, F, D]
  at::Tensor down_proj;  // [X, D, F]
};

/// Where all experts are plain (act(gate) * up, no bias, adapter or factor) and the weights of each map lie
/// in one storage at equal distances, as those of stacked checkpoints do; none elsewhere.
std::optional<StackedExperts> stacked_experts(const std::vector<GatedMlp>& experts);

/// Whether torch has a kernel for products of such groups of rows like x [n, D] on the device, and we have
/// one that adds them up.
bool has_grouped_products(const at::Tensor& x, const StackedExperts& experts);

/// Rows of a piece, for `experts`: torch's kernel has tiles of 128 x 256, and takes them where a group has
/// more than 128 rows on average; fewer rows than 4096 would not fill a GPU. Of many experts a piece [rows,
/// D] is then about 129 / (3 F) of their weights.
constexpr int64_t grouped_piece_rows(int64_t experts) {
  return std::max<int64_t>(129 * experts, 2048);
}

/// The chosen rows in the order of their experts, and what the forward pass leaves of them.
struct GroupedRows {
  StackedExperts experts;    // what their products read
  at::Tensor order;          // [c] int64: among the c = n k choices
  at::Tensor tokens;         // [c] int64: rows of x
  at::Tensor weights;        // [c, 1]
  at::Tensor ends;           // [X] int64: where an expert's rows end
  at::Tensor ends_in_piece;  // [pieces, X] int32: the same within a piece
  /// The rows of a piece once more, in the order of tokens, in which they are added up.
  at::Tensor added_tokens;  // [c] int64
  at::Tensor added_order;   // [c] int64: which of the piece's rows these are
  int64_t piece_rows = 0;
  std::vector<GatedMlpSaved> saved;  // of each piece, without x
};

/// Of choices [n, k] among `experts` whose weights are `weights` [n k, 1].
GroupedRows group_rows(const at::Tensor& choices, const at::Tensor& weights, StackedExperts experts,
                       int64_t piece_rows);

/// Adds to y [n, D] what the experts give of x [n, D], weighted; where y is undefined, does what the backward
/// pass needs alone. Without autograd.
void grouped_forward(const std::vector<GatedMlp>& experts, GroupedRows& rows, const at::Tensor& x,
                     const at::Tensor& y);

/// Adds to dx [n, D] and writes d_weights [n k, 1] for the gradient dy [n, D] of y; adds the gradients of the
/// experts that are trained, for which the host waits once. Consumes what `rows` has saved.
void grouped_backward(const std::vector<GatedMlp>& experts, GroupedRows& rows, const at::Tensor& x,
                      const at::Tensor& dy, const at::Tensor& dx, const at::Tensor& d_weights);

}  // namespace streambp
