// Attention of rows to earlier tokens that are not right before them: one block of keys and values after
// another, whose results are merged, as a ring of ranks brings them (Liu et al., 2023, arXiv 2310.01889).
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/ATen.h>

#include "streambp/ops/attention/attention.h"

namespace streambp {

/// Keys and values of neighbouring tokens of a sequence, all of them before the rows that look at them, and
/// where their gradients are added: as wide as the log-sum-exps, undefined in a forward pass.
struct EarlierTokens {
  Prefix rows;
  int64_t first = 0;  // where the first is, counted from the first row that looks: -1 is right before it
};

/// Makes `all`, the result of rows q [n, H, E] so far, the result of rows that have seen these tokens as
/// well, as far as the window reaches. Its output is as wide as its log-sum-exps: it is rounded once, by the
/// caller. Sinks are the caller's too.
void attend_earlier(AttentionBlock& all, const at::Tensor& q, const EarlierTokens& tokens,
                    const AttentionSettings& settings);

/// Its backward pass for dy [n, H, E] and the rows' result `saved`, of all that they see: adds to `d_queries`
/// [n, H, E], as wide as the log-sum-exps, and to the tokens' gradients.
void attend_earlier_backward(const at::Tensor& d_queries, const at::Tensor& dy, const AttentionBlock& saved,
                             const at::Tensor& q, const EarlierTokens& tokens,
                             const AttentionSettings& settings);

/// `block`, of queries like q, for a backward pass: a rectangle in tiles of keys, whose gradients come out of
/// the kernels as new tensors and stay small then. In a dry run the first tile stands for those that are as
/// large.
std::vector<ScoreBlock> in_key_tiles(ScoreBlock block, const at::Tensor& q, const Scoring& scoring);

}  // namespace streambp
