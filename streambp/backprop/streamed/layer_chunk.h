// One layer's backward pass over one chunk: the step that every method by chunks is made of. Inside the
// library only.
#pragma once

#include <vector>

#include <ATen/ATen.h>

#include "streambp/model/layer.h"

namespace streambp {

/// What the rows of a layer read but their input, as leaves of the layer's graph: the model's first hidden
/// states, another layer's keys and values.
class OtherInputs {
 public:
  OtherInputs() = default;
  /// Makes them leaves in both.
  OtherInputs(Rows& rows, Before& before);

  /// Makes `input` a leaf, whose gradient is added to `gradient`; undefined: nobody wants it.
  void add(at::Tensor& input, const at::Tensor& gradient);

  /// One more output, with its gradient.
  void add_root(const at::Tensor& output, const at::Tensor& gradient);

  /// The gradient of `leaf` for that of `output` and, where tensors of it are defined, of `own`; adds the
  /// others' where Rows and Before have said.
  at::Tensor backward(const at::Tensor& output, const Carry& own, const at::Tensor& leaf,
                      const at::Tensor& gradient, const Carry& received) const;

 private:
  std::vector<at::Tensor> leaves_, gradients_;
  std::vector<at::Tensor> roots_, of_roots_;
};

/// A chunk of a layer between its forward pass under autograd and its backward pass.
class LayerChunk {
 public:
  /// Runs `layer` on `input` [n, D]; the other arguments as in DecoderLayer::forward. With
  /// LayerRun::graph_only hidden() must not be called.
  LayerChunk(const DecoderLayer& layer, const at::Tensor& input, const Rows& rows, const Before& before,
             const LayerRun& run, Activations known = {});

  /// The same from attention's result on, which is `known` (DecoderLayer::after_attention): backward() adds
  /// the gradient of its output to `of_attended` [n, H, E], and there is no carry.
  LayerChunk(const DecoderLayer& layer, const at::Tensor& input, const Rows& rows,
             const at::Tensor& of_attended, const LayerRun& run, Activations known);

  /// The layer's output [n, D], without its graph.
  at::Tensor hidden() const { return output_.hidden.detach(); }

  /// The gradient of the input, [n, D], for that of the output and, where later chunks have looked at these
  /// rows, what they have left for the rows' own carry. Adds the gradients of the layer's parameters and
  /// those of what the rows continue. To be called once.
  at::Tensor backward(const at::Tensor& gradient, const Carry& received);

 private:
  at::Tensor leaf_;
  OtherInputs others_;
  LayerOutput output_;
};

}  // namespace streambp
