// A mixture of experts in place of an MLP (Shazeer et al., 2017, arXiv 1701.06538, as Mixtral, Qwen2-MoE,
// Qwen3-MoE, GPT-OSS, DeepSeek V3, GLM-4.5, Gemma 4, ERNIE 4.5, Granite and LFM2 have it): a router picks
// some of many gated MLPs for each token and adds up what they give.
//
// Routing looks at one token alone, so a mixture streams over chunks as any MLP does. Only the auxiliary loss
// that balances the experts' load is a matter of the whole batch; it is linear in the routers' probabilities,
// with factors that the forward pass counts, so that a backward pass by chunks is exact.
#pragma once

#include <vector>

#include <ATen/ATen.h>

#include "streambp/ops/linear.h"
#include "streambp/ops/mlp/mlp.h"
#include "streambp/ops/mlp/router_balance.h"
#include "streambp/ops/mlp/router_choices.h"
#include "streambp/ops/residual_gate.h"

namespace streambp {

struct Mixture {
  const Linear* router = nullptr;  // [X, D]
  /// DeepSeek V3, GLM-4.5 and LFM2: the scores are sigmoids of the logits instead of their softmax.
  bool sigmoid = false;
  bool wide_logits = false;  // the router's are float32 or wider
  /// DeepSeek V4: they are square roots of the logits' softplus.
  bool sqrt_softplus = false;
  /// DeepSeek V4's hash routers: the experts [V, k] of each token of the vocabulary, in float32 or wider,
  /// which stand for those that scores would choose; null: there are none.
  const Parameter* experts_of_token = nullptr;
  /// What is added to the scores for the choice alone, [X] or [1, X] in float32 or wider; null: nothing is.
  const Parameter* correction = nullptr;
  int64_t groups = 1;       // of experts of neighbouring numbers ...
  int64_t topk_groups = 1;  // ... of which those with the largest sum of their two best have the choice
  double scale = 1.0;       // of the chosen experts' weights
  Parameter* expert_scale = nullptr;  // [X], Gemma 4: each expert's weights are multiplied by its own
  std::vector<GatedMlp> experts;
  /// Muse Spark: of what each expert gives, before it is weighted, a norm_of_scaled; without a weight: none.
  RmsNorm output_norm;
  int64_t experts_per_token = 1;
  /// Whether the chosen experts' weights are divided by their sum: a softmax of theirs. Sigmoids may all be
  /// 0, and a correction may choose improbable experts: what is added to the sum, and what it is at least.
  bool normalise = false;
  double added_to_sum = 0.0;
  double least_sum = 0.0;
  /// An expert that every token has, where it has maps: times the sigmoid of this map [1, D] (Qwen2-MoE), or
  /// where the map is null as it is (DeepSeek V3).
  const Linear* shared_expert_gate = nullptr;
  GatedMlp shared_expert;

  bool has_shared_expert() const { return shared_expert.down_proj != nullptr; }
};

/// A router as a second output of its layer, for a loss that is computed elsewhere.
struct RouterOutput {
  at::Tensor logits;  // [N, X] of the stream's tokens, which a run writes; undefined: they are not asked for
  at::Tensor gradient;  // [N, X] of these logits, which a backward pass adds; undefined: there is none
};

/// How a mixture is run over some rows of a stream. Pointers may be null.
struct MixtureRun {
  int64_t layer = 0;                 // its number
  int64_t begin = 0;                 // index of the first row in the stream
  at::Tensor tokens = {};            // of the rows, where experts are theirs
  bool graph_only = false;           // the values are left out: the result is unread()
  bool routed_alone = false;         // the shared expert is somebody else's
  RouterBalance* balance = nullptr;  // counts, and has a gradient
  RouterChoices* choices = nullptr;  // are taken where they are kept or given, and kept where not
  RouterOutput* router = nullptr;
};

/// residual + sum over the chosen experts e of x [n, D]: w_e expert_e(x), where w are the largest entries of
/// softmax(router(x)), taken in float32 or wider, or of sigmoids; and the shared expert's output where there
/// is one. A balance is of the softmax, whatever w are of, and not of experts of tokens. Maps and balance
/// must outlive the graph. Ties between equal probabilities are broken as ATen's topk does. `of_router` [n,
/// D]: what the router reads instead of x, where it is defined.
at::Tensor mixture(const at::Tensor& residual, const at::Tensor& x, const Mixture& settings,
                   const MixtureRun& run = {}, const at::Tensor& of_router = {});

}  // namespace streambp
