// The experts that tokens have chosen, for layers that run more than once, or are given, for any pass.
#pragma once

#include <cstdint>
#include <set>
#include <utility>
#include <vector>

#include <ATen/ATen.h>

namespace streambp {

/// What the routers of a stream of tokens have chosen, layer by layer. A layer that runs again takes the
/// choices of its first run: where two experts are nearly tied, its logits, which kernels of a GPU need not
/// repeat to the last bit, could name another one, and the gradient would be that of another function.
class RouterChoices {
 public:
  /// For `layers` layers of `experts` experts and `tokens` tokens that choose `per_token` each.
  RouterChoices(int64_t layers, int64_t tokens, int64_t per_token, int64_t experts, c10::Device device);

  /// Has the experts `choices` [N, k] int64 of all rows of `layer` stand for those that its router would
  /// choose, but for rows of nothing but -1.
  void give(int64_t layer, const at::Tensor& choices);

  /// Whether the layer's choices were given.
  bool are_given(int64_t layer) const { return given_[static_cast<size_t>(layer)]; }

  /// What a router has chosen for rows from `begin` on, with those rows' own where they are given.
  at::Tensor with_given(int64_t layer, int64_t begin, const at::Tensor& chosen) const;

  /// The choices [n, k] int64 of rows [begin, begin + n) of the stream in `layer`; undefined where none are
  /// kept.
  at::Tensor find(int64_t layer, int64_t begin, int64_t n) const;

  /// Keeps `choices` [n, k] int64 of the rows from `begin` on. Does nothing once closed.
  void keep(int64_t layer, int64_t begin, const at::Tensor& choices);

  /// Ends the forward pass: what runs after it for the first time does not run again.
  void close() { open_ = false; }

 private:
  std::vector<int64_t> shape_;  // [N, k]
  at::TensorOptions options_;   // of as many bits as an expert's number needs
  bool open_ = true;
  std::vector<at::Tensor> choices_;  // of each layer; undefined until it runs, or they are given
  std::vector<bool> given_;          // of each layer
  std::vector<at::Tensor>
      open_rows_;  // of each layer, [N] bool: of those given the router's; undefined: none
  std::vector<std::set<std::pair<int64_t, int64_t>>> known_;  // of each layer: begin and number of rows
};

}  // namespace streambp
