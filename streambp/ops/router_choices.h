// The experts that tokens have chosen, for layers that run more than once.
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
  std::vector<at::Tensor> choices_;                           // of each layer; undefined until it runs
  std::vector<std::set<std::pair<int64_t, int64_t>>> known_;  // of each layer: begin and number of rows
};

}  // namespace streambp
