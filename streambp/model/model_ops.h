// The differentiable ops that layers and a full head are made of, where a caller brings others than ours: a
// baseline that holds what another library holds between forward and backward pass.
#pragma once

#include <string>
#include <vector>

#include <ATen/ATen.h>

#include "streambp/model/scored.h"
#include "streambp/ops/mlp/mlp.h"
#include "streambp/ops/rms_norm.h"
#include "streambp/ops/rope.h"

namespace streambp {

/// The ops themselves; each may be overridden. Values and gradients must stay those of ours.
class ModelOps {
 public:
  virtual ~ModelOps() = default;

  /// As streambp::rms_norm.
  virtual at::Tensor rms_norm(const at::Tensor& x, const RmsNorm& norm) const;

  /// As streambp::normed_rope of an x that nobody else reads.
  virtual at::Tensor normed_rope(const at::Tensor& x, const RmsNorm* norm, const RopeTable& table) const;

  /// As streambp::gated_mlp.
  virtual at::Tensor gated_mlp(const at::Tensor& residual, const at::Tensor& x, const GatedMlp& mlp,
                               bool graph_only) const;

  /// Whether values that no backward pass reads may be left out of a layer that runs again.
  virtual bool skips_unread() const { return true; }

  /// What a full head holds until the backward pass is done, for its logits [N, V] in the model's dtype.
  virtual std::vector<at::Tensor> held_with_logits(const at::Tensor& logits) const;

  /// Whether a full head's log-probabilities of targets, and their slopes, keep their digits where a target
  /// leads by far. Those of a log-softmax in float32, which other libraries have, do not.
  virtual bool keeps_confident_targets() const { return true; }

  /// A head of its own for requests of log-probabilities alone: those of the targets, [M] under autograd, of
  /// uncapped `logits` [N, V] in the model's dtype divided by `temperature`. Undefined, as here: the
  /// log-softmax of all logits at once, in float32 or wider.
  virtual at::Tensor target_log_probabilities(const at::Tensor& logits, const HeadTargets& scored,
                                              double temperature) const;
};

/// Ours.
const ModelOps& own_ops();

/// Makes `ops` known under `name`, for the whole process; they must live as long. A known name is kept as it
/// is.
void add_model_ops(const std::string& name, const ModelOps& ops);

/// By name. Throws InputError if none have been added under it.
const ModelOps& model_ops(const std::string& name);

}  // namespace streambp
