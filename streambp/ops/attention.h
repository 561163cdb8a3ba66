// Causal self-attention of a run of the packed stream.
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/ATen.h>

namespace streambp {

/// Keys and values of the earlier tokens of the sequence that a run's first rows continue, and where the
/// gradient that reaches them is added. Undefined tensors: there are none, or nobody wants their gradient.
struct Prefix {
  at::Tensor keys;           // [P, K, E]
  at::Tensor values;         // [P, K, E]
  at::Tensor key_gradients;  // [P, K, E], the keys' dtype or float32
  at::Tensor value_gradients;

  bool empty() const { return !keys.defined() || keys.size(0) == 0; }
};

/// softmax(scale * q k^T) v for q [n, H, E], k and v [n, K, E] of n consecutive tokens of the stream.
/// `offsets` (0 first, n last) cut them into sequences; each token sees itself and the earlier tokens of its
/// own sequence, those of the first sequence the whole prefix as well. Returns [n, H, E]. No mask is built
/// and no score above the diagonal computed: every sequence is a causal square, the prefix a full rectangle.
at::Tensor attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                     const std::vector<int64_t>& offsets, const Prefix& prefix, double scale);

}  // namespace streambp
