// What a model's heads read: the last layer's output through the final norm, where tokens have several
// residual streams through their weighted sum, or their mean, first.
#pragma once

#include <ATen/ATen.h>

#include "streambp/model/model.h"
#include "streambp/model/model_ops.h"

namespace streambp {

/// What the backward pass needs of a forward one.
struct FinalRowsSaved {
  at::Tensor streams;  // undefined where there is one stream, or the mean of several is read
  RmsNormSaved norm;
};

/// The rows [n, D] of final hidden states [n, Config::residual_width], without autograd.
at::Tensor final_rows_forward(const Model& model, const at::Tensor& hidden, FinalRowsSaved& saved);
at::Tensor final_rows_forward(const Model& model, const at::Tensor& hidden);

/// The gradient of the hidden states for dy [n, D]; adds the parameters'.
at::Tensor final_rows_backward(const Model& model, const at::Tensor& dy, const FinalRowsSaved& saved);

/// The rows under autograd. The model must outlive the graph.
at::Tensor final_rows(const Model& model, const at::Tensor& hidden, const ModelOps& ops = own_ops());

}  // namespace streambp
