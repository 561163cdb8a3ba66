// Parts of hyper-connections whose weights are of low rank (Qwen4-Exp, 2026): a token has S residual streams
// of D numbers side by side, and maps of all of them, normed, say how much of each entry is read and how much
// of what a layer gives each stream takes. hyper_connection.h has those whose weights are one number of each
// stream.
#pragma once

#include <cstdint>

#include <ATen/ATen.h>

#include "streambp/ops/rms_norm.h"

namespace streambp {

/// The streams x [n, S D], each normed by itself and multiplied by its D of the S D weights; keeps x alone.
/// The norm must outlive the graph.
at::Tensor norm_streams(const at::Tensor& x, const RmsNorm& norm, int64_t streams);

/// 1 / S sum_s sigmoid(logits_s) normed_s [n, D] of two [n, S D]; keeps both.
at::Tensor mean_of_opened(const at::Tensor& normed, const at::Tensor& logits, int64_t streams);

/// x_s + 2 sigmoid(logits_s) y for each stream, [n, S D], of x [n, S D], y [n, D] and logits [n, S]; keeps y
/// and the logits.
at::Tensor add_opened(const at::Tensor& x, const at::Tensor& y, const at::Tensor& logits);

}  // namespace streambp
