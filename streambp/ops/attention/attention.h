// Causal self-attention of a run of the packed stream.
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/ATen.h>

#include "streambp/ops/attention/attention_kernels.h"
#include "streambp/ops/parameter.h"

namespace streambp {

/// Keys and values of the earlier tokens of the sequence that a run's first rows continue, and where the
/// gradient that reaches them is added. Undefined tensors: there are none, or nobody wants their gradient.
struct Prefix {
  at::Tensor keys;           // [P, K, E]
  at::Tensor values;         // [P, K, E]
  at::Tensor key_gradients;  // [P, K, E], the keys' dtype or float32
  at::Tensor value_gradients;

  int64_t size() const { return keys.defined() ? keys.size(0) : 0; }
};

/// What a layer's attention is, apart from its operands.
struct AttentionSettings {
  Scoring scoring;
  int64_t window = 0;          // how many tokens a query sees, itself included; 0: all up to itself
  Parameter* sinks = nullptr;  // [H], one more score of every query, whose value is 0; null: there is none
};

/// softmax(scores) v for q [n, H, E], k and v [n, K, E] of n consecutive tokens of the stream.
/// `offsets` (0 first, n last) cut them into sequences; each token sees itself and the earlier tokens of its
/// own sequence, those of the first sequence the prefix as well, all as far as the window reaches. Returns
/// [n, H, E]. No mask is built and no score outside the triangle or the window's band computed: see
/// score_blocks. `known` is the result of the same call in an earlier pass, sinks included, or undefined and
/// receives it: with it nothing is computed forward. Sinks must outlive the graph, whose backward pass adds
/// their gradient.
at::Tensor attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                     const std::vector<int64_t>& offsets, const Prefix& prefix,
                     const AttentionSettings& settings, AttentionBlock& known);

/// What attention() computes, without autograd and sinks.
AttentionBlock attention_forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                 const std::vector<int64_t>& offsets, const Prefix& prefix,
                                 const AttentionSettings& settings);

/// Its backward pass for dy [n, H, E]: the gradients of q, k and v; those of the prefix are added to its
/// buffers.
AttentionBlockGradients attention_backward(const at::Tensor& dy, const AttentionBlock& saved,
                                           const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                           const std::vector<int64_t>& offsets, const Prefix& prefix,
                                           const AttentionSettings& settings);

}  // namespace streambp
