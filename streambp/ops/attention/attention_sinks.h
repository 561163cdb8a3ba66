// Attention sinks (GPT-OSS): one more score of every head, a parameter s_h, which a query sees next to those
// of its keys and whose value is 0. It takes a share of the softmax's weight and gives nothing for it.
//
// To the kernels a sink is a block that is merged last: with the keys' output O and log-sum-exp l,
//     l' = log(e^l + e^s),   O' = O e^(l - l'),
// and since a block's backward pass takes the merged row's output and log-sum-exp, those of the keys' blocks
// are right with O' and l' as they are: what comes back through l' is in dO . O'.
#pragma once

#include <ATen/ATen.h>

#include "streambp/ops/attention/attention_kernels.h"
#include "streambp/ops/parameter.h"

namespace streambp {

/// Makes `all`, the result of rows that have seen all of their keys, the result of rows that have seen their
/// sinks [H] too, in place. Sums are as wide as the log-sum-exps.
void add_sinks(AttentionBlock& all, const at::Tensor& sinks);

/// Adds d s_h = - sum_i e^(s_h - l'_i) (dO_i . O'_i) over rows i, for d_output [n, H, E] and the rows' result
/// with sinks. Does nothing where the sinks are frozen.
void accumulate_sinks(Parameter& sinks, const at::Tensor& d_output, const AttentionBlock& saved);

}  // namespace streambp
