// One block of attention: queries against keys, all of them visible or causally, with its backward pass.
//
// A causal row's attention over [prefix | own rows] is two blocks whose results are merged by their
// log-sum-exps; each block's backward pass takes the *merged* output and log-sum-exp, as in ring attention
// (Liu et al., 2023, arXiv 2310.01889).
#pragma once

#include <ATen/ATen.h>

#include "streambp/ops/attention/attention_blocks.h"

namespace streambp {

/// How a score s = q . k becomes what the softmax sees: scale * s, and with a cap c > 0 that bounds it (Gemma
/// 2), c tanh(scale * s / c).
struct Scoring {
  double scale = 1.0;
  double softcap = 0.0;
};

/// Output [n, H, E] and natural log of the sum of exponentials [n, H] (float32, or float64 for float64
/// inputs).
struct AttentionBlock {
  at::Tensor output;
  at::Tensor log_sum_exp;
  /// What rounding has left out of the output, like it; undefined where nothing was rounded or nobody knows.
  /// The backward pass takes d_output . output off the gradient of every probability of a row: what is wrong
  /// there is in all of them alike, and does not cancel as they do in the sums over a row's keys.
  at::Tensor remainder = {};

  /// Some of the tokens.
  AttentionBlock rows(int64_t begin, int64_t count) const {
    const auto part = [&](const at::Tensor& x) { return x.defined() ? x.narrow(0, begin, count) : x; };
    return {part(output), part(log_sum_exp), part(remainder)};
  }
};

/// The output as it was before it was rounded, in the dtype of the log-sum-exps.
at::Tensor wide_output(const AttentionBlock& block);

/// Rounds an output that is wider than `dtype` to it, for good or with a remainder.
void round_output(AttentionBlock& block, at::ScalarType dtype, bool with_remainder);

struct AttentionBlockGradients {
  at::Tensor d_queries;  // [n, H, E]
  at::Tensor d_keys;     // [m, K, E]
  at::Tensor d_values;   // [m, K, E]
};

/// softmax(scores) v for q [n, H, E], k and v [m, K, E]; H is a multiple of K and query head h reads key head
/// h / (H / K). n, m >= 1. Picks the kernel by device, dtype and scoring; on the meta device only shapes are
/// computed.
AttentionBlock attend(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, Visible visible,
                      const Scoring& scoring);

/// Whether a backward pass over rows like q [n, H, E] reads AttentionBlock::remainder: those by our own
/// kernels and by tiles do, in half precision.
bool reads_remainder(const at::Tensor& q, const Scoring& scoring);

/// `output` and `log_sum_exp` are those of the whole row, which may have seen other blocks as well.
AttentionBlockGradients attend_backward(const at::Tensor& d_output, const at::Tensor& q, const at::Tensor& k,
                                        const at::Tensor& v, const at::Tensor& output,
                                        const at::Tensor& log_sum_exp, Visible visible,
                                        const Scoring& scoring);

/// Makes `all` the result of rows that have seen `block` as well. Outputs may be as wide as the log-sum-exps:
/// a result of many blocks is then rounded once.
void merge(AttentionBlock& all, const AttentionBlock& block);

/// attend and attend_backward from plain matrix products, in tiles: any device, dtype and scoring, kAll and
/// kCausal. The fallback where there is no fused kernel, and the second opinion in tests.
AttentionBlock attend_tiled(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, Visible visible,
                            const Scoring& scoring);
AttentionBlockGradients attend_backward_tiled(const at::Tensor& d_output, const at::Tensor& q,
                                              const at::Tensor& k, const at::Tensor& v,
                                              const at::Tensor& output, const at::Tensor& log_sum_exp,
                                              Visible visible, const Scoring& scoring);

}  // namespace streambp
