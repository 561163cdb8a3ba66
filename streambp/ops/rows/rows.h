// Rows picked by index, and the gradient of picking them.
#pragma once

#include <cstdint>
#include <optional>

#include <ATen/ATen.h>

#include "streambp/ops/parameter.h"

namespace streambp {

/// Rows `indices` [n] (int64) of x [N, D]: [n, D]. Without autograd.
at::Tensor gather_rows(const at::Tensor& x, const at::Tensor& indices);

/// Adds row i of dx [n, D] to row indices[i] of the parameter's gradient: the rows of one index are summed
/// together with what is there, on the CPU in float64, else in float32 or wider, and rounded once. Row
/// `constant`, if there is one, keeps what it has: nn.Embedding's padding_idx. Does nothing where the
/// parameter is frozen.
void accumulate_rows(Parameter& parameter, const at::Tensor& indices, const at::Tensor& dx,
                     std::optional<int64_t> constant = {});

/// Rows of a frozen parameter that are trained apart from it (PEFT's trainable tokens).
struct TrainedRows {
  Parameter* delta = nullptr;  // [n, D]: the rows themselves, not a difference
  Parameter* whole = nullptr;  // [V, D], which holds them among its rows
  at::Tensor indices;          // [n] int64: which rows these are
  at::Tensor slots;            // [V] int64: where among them a row is; n for the others
  at::Tensor original;         // [n, D]: the base's rows
  bool enabled = true;

  /// Puts the trained rows, or the base's where they are off, into `whole`.
  void write() const;
};

/// Adds row i of dx [m, D] to the gradient of trained row tokens[i], if it is one.
void accumulate_trained_rows(const TrainedRows& rows, const at::Tensor& tokens, const at::Tensor& dx);

/// Adds the trained rows' part of dy^T x, the gradient of a weight [V, D], for dy [m, V] and x [m, D].
void accumulate_trained_product(const TrainedRows& rows, const at::Tensor& dy, const at::Tensor& x);

/// Adds row i of `rows` [n, D] to row indices[i] of `sum` [N, D], of the same dtype. The indices ascend, and
/// none comes twice. Without autograd.
void add_sorted_rows(at::Tensor& sum, const at::Tensor& indices, const at::Tensor& rows);

/// The same of row order[i] of `rows`, where the indices ascend and one may come several times: its rows are
/// summed as accumulate_rows does.
void add_ordered_rows(const at::Tensor& sum, const at::Tensor& indices, const at::Tensor& order,
                      const at::Tensor& rows);

}  // namespace streambp
