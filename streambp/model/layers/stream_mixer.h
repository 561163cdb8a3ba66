// What a half of a layer reads of a token's residual streams and gives to them by maps of all of these
// (Qwen4-Exp): the maps around ops/low_rank_streams.h.
#pragma once

#include <cstdint>

#include <ATen/ATen.h>

#include "streambp/ops/linear.h"
#include "streambp/ops/rms_norm.h"

namespace streambp {

/// The maps, below attn_hyper_connection, mlp_hyper_connection or model.hyper_connection_mixer, for S streams
/// of D numbers. All null: there are none.
struct StreamMixer {
  RmsNorm norm;                                 // hc_norm, of each stream: [S D]
  const Linear *down = nullptr, *up = nullptr;  // input_mix_weight_down, times 1 / S, and input_mix_weight_up
  const Linear* inject = nullptr;               // block_inject_weight, times 1 / S; null: nothing is given
  int64_t streams = 0;

  bool is_there() const { return down != nullptr; }
  bool trainable() const;
};

/// What is read of the streams x [n, S D]: [n, D]. With n_s the normed streams
///     1 / S sum_s sigmoid(up silu(down n))_s n_s
/// The mixer must outlive the graph.
at::Tensor read_streams(const StreamMixer& mixer, const at::Tensor& x);

/// x_s + 2 sigmoid(inject n)_s y for what is given, y [n, D]: [n, S D]. Likewise.
at::Tensor give_to_streams(const StreamMixer& mixer, const at::Tensor& x, const at::Tensor& y);

}  // namespace streambp
