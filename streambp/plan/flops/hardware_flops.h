// How much arithmetic a method executes in one step of training, recomputation included.
#pragma once

#include <cstdint>
#include <vector>

#include "streambp/backprop/method.h"
#include "streambp/model/model.h"
#include "streambp/objective/objective.h"

namespace streambp::plan {

/// Floating-point operations that backpropagate() executes for `batch` in matrix products, a multiplication
/// and an addition counted as two:
/// - a linear map [out, in] over n tokens: 2 n out in forward, as much for the gradient of its input, and as
///   much for its weight's, where the weight is trained. An adapter of rank r is such maps of r (in + out)
///   weights. Rows of a head that are trained apart are its weight's, of so many outputs. Of a mixture each
///   token meets the router and its chosen experts.
/// - attention: 4 H E for each pair of a query and a key that it sees forward, 10 H E backward, which
///   computes the scores again: five products for two, as the FlashAttention papers count (Dao, 2023, arXiv
///   2307.08691, section 4.1). Pairs that a kernel's tiles compute and mask are not counted.
/// - the LM head: every token where the logits are taken in full, the scored tokens where it is streamed,
///   forward twice where the objective is not separable.
/// - layers as MethodKind::layer_runs and rebuild_runs say; those below the lowest layer with a backward pass
///   once, forward.
/// - a teacher: once forward, its head as often as the model's.
/// - an objective of embeddings: no head.
/// Not counted: element-wise work, norms, softmax, rotary embeddings, biases, look-ups (nor an adapter of the
/// embedding), value heads, optimizers.
double hardware_flops(const Model& model, const Batch& batch, const Objective& objective,
                      const Settings& settings, const Model* teacher = nullptr);

/// The same of one forward pass through the layers.
double forward_flops(const Model& model, const Batch& batch);

}  // namespace streambp::plan
