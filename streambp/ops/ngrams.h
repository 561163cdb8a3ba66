// Embeddings of n-grams of tokens (Qwen4-Exp, 2026): which rows of a table stand for the n-grams that end
// with a token, and the gates by which what these give is added to several residual streams.
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/ATen.h>

#include "streambp/ops/parameter.h"

namespace streambp {

/// For each of tokens [N] the last `size` of its sequence, itself first: [N, size] int64. `offsets` (0 first,
/// N last) cut the tokens into sequences. Before a sequence's first token, and before the last `boundary`
/// that is not the token itself, stand boundaries.
at::Tensor ngram_tokens(const at::Tensor& tokens, const std::vector<int64_t>& offsets, int64_t size,
                        int64_t boundary);

/// The rows [n, heads] of a table of ngrams [n, size]: of token i of an n-gram times multipliers[i] the
/// exclusive or, modulo the rows of the head, behind those of the heads before it. As many heads are of the
/// n-grams of the last 2 tokens as of the last 3, and so on.
at::Tensor ngram_rows(const at::Tensor& ngrams, const std::vector<int64_t>& multipliers,
                      const std::vector<int64_t>& head_rows);

/// The table's rows of each of `rows` [n, heads], one behind another: [n, heads width]. A part of the graph
/// of x, which it does not read; adds the table's gradient, which must outlive the graph.
at::Tensor look_up(const at::Tensor& x, Parameter& table, const at::Tensor& rows);

/// sigmoid(r) v for each of S streams, [n, S D], of v [n, D] and r = sign(g) sqrt(max(|g|, 1e-6)) with
///     g_s = keys_s . queries_s / sqrt(D)
/// of keys and queries [n, S D]; keeps all three.
at::Tensor opened_values(const at::Tensor& keys, const at::Tensor& queries, const at::Tensor& values);

}  // namespace streambp
