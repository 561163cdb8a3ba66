// A recurrence instead of a layer's attention: a gated delta rule (Qwen3-Next, Qwen3.5; Yang et al., 2024,
// arXiv 2412.06464), Mamba-2's state space (Dao and Gu, 2024, arXiv 2405.21060), or a short convolution
// between two gates (LFM2).
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/ATen.h>

#include "streambp/model/config/config.h"
#include "streambp/ops/linear.h"
#include "streambp/ops/recurrent/causal_conv.h"
#include "streambp/ops/recurrent/delta_rule.h"
#include "streambp/ops/recurrent/gated_norm.h"
#include "streambp/ops/rms_norm.h"

namespace streambp {

/// What the rows before a token have left in a recurrent layer. No size depends on their number.
struct DeltaCarry {
  at::Tensor state;  // [Hv, Dk, Dv], float32, or float64 of float64 rows; undefined: a convolution has none
  at::Tensor tail;   // [kernel - 1, channels]: the convolution's last inputs
};

/// The same of the sequence that some rows continue, and where gradients that reach it are added; undefined
/// tensors: they continue none, or nobody wants them.
struct DeltaBefore {
  StateBefore state;
  TailBefore tail;
};

/// The maps, in the model's names below model.layers.N.linear_attn. Of Mamba-2 in_proj_qkv, in_proj_z and
/// in_proj_a are the rows of its in_proj that make x, B and C, the gates, and the steps. Of LFM2 in_proj_qkv,
/// in_proj_b and in_proj_z are those that make the convolution's input and the gates before and after it.
struct DeltaRule {
  // Qwen3.5's, without in_proj_b also Mamba-2's ...
  const Linear *in_proj_qkv = nullptr, *in_proj_z = nullptr, *in_proj_b = nullptr, *in_proj_a = nullptr;
  // ... or Qwen3-Next's, in which what belongs to a key head stands together.
  const Linear *in_proj_qkvz = nullptr, *in_proj_ba = nullptr;
  Parameter* conv1d = nullptr;  // [channels, 1, kernel]
  Parameter* a_log = nullptr;   // [Hv]
  Parameter* dt_bias = nullptr;
  Parameter* norm = nullptr;  // [Dv]; of Mamba-2 [Hv Dv], or null
  // Mamba-2's alone: [channels], or null, and [Hv].
  Parameter *conv_bias = nullptr, *skip = nullptr;
  std::vector<RmsNorm> norms_before_gate;  // Falcon-H1's may be these instead, of each group's columns
  /// Whether x, B and C have factors of their own (DeltaRuleSettings::in_multipliers), and in_proj_qkv none.
  bool scales_channels = false;
  double norm_eps = 1e-6;
  DeltaRuleSettings settings;

  std::vector<const Linear*> maps() const;
  bool trainable() const;
};

struct DeltaOutput {
  at::Tensor hidden;  // [n, Hv Dv], to be projected
  DeltaCarry own;     // after the last row
};

/// The rule over x [n, D], what a layer's attention would read. `offsets` (0 first, n last) cut the rows into
/// sequences, the first of which continues `before`; the others begin anew. `of_convolution`: where the
/// convolution alone begins anew, for mistakes that others make; empty: likewise.
DeltaOutput delta_rule_forward(const DeltaRule& rule, const at::Tensor& x,
                               const std::vector<int64_t>& offsets, const DeltaBefore& before,
                               const std::vector<int64_t>& of_convolution = {});

/// What the rows leave alone, without a graph.
DeltaCarry delta_rule_carry(const DeltaRule& rule, const at::Tensor& x, const std::vector<int64_t>& offsets,
                            const DeltaBefore& before);

}  // namespace streambp
