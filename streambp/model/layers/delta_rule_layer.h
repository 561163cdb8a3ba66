// A recurrence instead of a layer's attention: a gated delta rule (Qwen3-Next, Qwen3.5; Yang et al., 2024,
// arXiv 2412.06464), the same with a gate for each channel (Kimi Linear; Kimi Team, 2025, arXiv 2510.26692),
// Mamba-2's state space (Dao and Gu, 2024, arXiv 2405.21060), or a short convolution
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
  at::Tensor ngram_tail = {};  // the same of what a layer adds of n-grams (NgramOutput::tail); else undefined
};

/// The same of the sequence that some rows continue, and where gradients that reach it are added; undefined
/// tensors: they continue none, or nobody wants them.
struct DeltaBefore {
  StateBefore state;
  TailBefore tail;
  TailBefore ngram_tail = {};
};

/// The maps, in the model's names below model.layers.N.linear_attn. Of Mamba-2 in_proj_qkv, in_proj_z and
/// in_proj_a are the rows of its in_proj that make x, B and C, the gates, and the steps. Of LFM2 in_proj_qkv,
/// in_proj_b and in_proj_z are those that make the convolution's input and the gates before and after it.
struct DeltaRule {
  // Qwen3.5's, without in_proj_b also Mamba-2's ...
  const Linear *in_proj_qkv = nullptr, *in_proj_z = nullptr, *in_proj_b = nullptr, *in_proj_a = nullptr;
  // ... or Qwen3-Next's, in which what belongs to a key head stands together.
  const Linear *in_proj_qkvz = nullptr, *in_proj_ba = nullptr;
  // ... or Kimi Linear's: of a recurrence below model.layers.N.self_attn, where in_proj_b is b_proj, and what
  // in_proj_a and in_proj_z give (forget_gate.f_a_proj and g_a_proj) goes through one more map each.
  const Linear *q_proj = nullptr, *k_proj = nullptr, *v_proj = nullptr;
  const Linear *f_b_proj = nullptr, *g_b_proj = nullptr;
  Parameter* conv1d = nullptr;  // [channels, 1, kernel], of Kimi Linear q_conv1d, of queries ...
  Parameter *k_conv1d = nullptr, *v_conv1d = nullptr;  // ... next to these; else null
  Parameter* a_log = nullptr;                          // [Hv]; of Kimi Linear [1, 1, Hv, 1]
  Parameter* dt_bias = nullptr;                        // [Hv]; of Kimi Linear [Hv Dk]
  Parameter* norm = nullptr;                           // [Dv]; of Mamba-2 [Hv Dv], or null
  // Mamba-2's and LFM2's: [channels], or null; and Mamba-2's [Hv].
  Parameter *conv_bias = nullptr, *skip = nullptr;
  std::vector<RmsNorm> norms_before_gate;  // Falcon-H1's may be these instead, of each group's columns
  /// Whether x, B and C have factors of their own (DeltaRuleSettings::in_multipliers), and in_proj_qkv none.
  bool scales_channels = false;
  double norm_eps = 1e-6;
  DeltaRuleSettings settings;

  /// Those of x, and those of what these give.
  std::vector<const Linear*> maps() const;
  std::vector<const Linear*> second_maps() const;
  /// Of maps, whether it makes the gates of the output alone.
  bool is_of_output_gate(const Linear* map) const { return map == in_proj_z || map == g_b_proj; }
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
