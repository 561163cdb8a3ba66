// How an op of this library joins the autograd graph: its value, and a closure that turns the gradient of its
// outputs into the gradient of its inputs.
//
// Parameters are never inputs of the graph. An op's closure adds a parameter's gradient straight into that
// parameter's buffer (one product, no temporary of the weight's size), so a chunk leaves nothing behind but
// its share of the sum.
#pragma once

#include <functional>
#include <vector>

#include <ATen/ATen.h>

namespace streambp {

/// Gradients of the outputs in, gradients of the inputs out. A gradient that came in may be undefined (that
/// output was not used); an undefined one may be returned where an input has none. Called at most once: it
/// may overwrite what it captured.
using Backward = std::function<std::vector<at::Tensor>(std::vector<at::Tensor>&&)>;

/// Whether an op on `inputs` has to remember how to go backward.
bool needs_backward(const std::vector<at::Tensor>& inputs);

/// Ties `outputs`, computed without autograd, to `inputs`. Returns tensors that share the outputs' storage
/// and carry the gradient function; where none of the inputs needs a gradient, the outputs themselves, and
/// `backward` is dropped with what it captured.
std::vector<at::Tensor> differentiable(const std::vector<at::Tensor>& inputs, std::vector<at::Tensor> outputs,
                                       const char* name, Backward backward);

/// The same for one output.
at::Tensor differentiable(const std::vector<at::Tensor>& inputs, at::Tensor output, const char* name,
                          Backward backward);

/// An output that is there for its graph alone: of the shape of `like`, without storage of that size, NaN to
/// whoever reads it.
at::Tensor unread(const at::Tensor& like);

}  // namespace streambp
