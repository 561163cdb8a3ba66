// Gemma 4's per-layer inputs: a layer ends by adding a gated function of a small vector of each token, which
// comes from a second embedding and from a projection of the first (transformers, Gemma4TextModel's
// project_per_layer_inputs).
#pragma once

#include <optional>

#include <ATen/ATen.h>

#include "streambp/ops/linear.h"
#include "streambp/ops/rms_norm.h"

namespace streambp {

/// One layer's part. P numbers of a token.
struct PerLayerInput {
  const Linear* model_projection = nullptr;  // its rows [P, D] of model.per_layer_model_projection
  RmsNorm projection_norm;                   // [P], one for all layers
  Parameter* table = nullptr;                // its columns [V, P] of model.embed_tokens_per_layer
  double table_scale = 1.0;
  std::optional<int64_t> pad_token_id;  // of the table: its row gets no gradient
  const Linear* gate = nullptr;         // per_layer_input_gate [P, D]
  const Linear* projection = nullptr;   // per_layer_projection [D, P]
  RmsNorm norm;                         // post_per_layer_input_norm [D]

  bool is_there() const { return gate != nullptr; }
  bool trainable() const;
};

/// hidden + norm(projection(gelu(gate(hidden)) * p)), where p = (projection_norm(model_projection(embedded))
/// + table_scale table[tokens]) / sqrt(2). hidden [n, D], tokens [n], embedded [n, D]: the model's first
/// hidden states, which have to need a gradient where any parameter is trained.
at::Tensor add_per_layer_input(const at::Tensor& hidden, const at::Tensor& tokens, const at::Tensor& embedded,
                               const PerLayerInput& settings);

}  // namespace streambp
