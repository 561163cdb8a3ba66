// The models that the tests of Gemma 4 in the reference share.
#pragma once

#include <vector>

#include "verify/tests/reference/model_testing.h"

namespace streambp::reference {

/// Two layers, the second one full, with norms and rotations as Gemma 4 has them, and nothing else of it.
inline ModelConfig plain_gemma4() {
  ModelConfig config = small_model();
  config.qkv_bias = false;
  config.tie_word_embeddings = true;
  config.sandwich_norms = true;
  config.hidden_act = Activation::kGeluTanh;
  config.attention_scale = 1.0;
  config.embedding_scale = 1.7;
  config.windows = {3, 0};
  config.local_rope = RopeSettings{};
  config.rope.type = RopeType::kProportional;
  config.rope.theta = 50.0;
  config.rope.partial_rotary_factor = 0.5;
  return config;
}

/// Five layers, of which the last two have the keys and values of the second and the third.
inline ModelConfig sharing_gemma4() {
  ModelConfig config = plain_gemma4();
  config.num_hidden_layers = 5;
  config.windows = {3, 3, 0, 3, 0};
  config.gemma4.num_kv_shared_layers = 2;
  return config;
}

inline void with_experts(ModelConfig& config) {
  config.mixture = {4, 2, 5, true, 0.0, std::vector<bool>(config.windows.size(), true)};
  config.mixture.added_to_mlp = true;
}

inline void with_per_layer_inputs(ModelConfig& config) {
  config.gemma4.hidden_size_per_layer_input = 3;
  config.gemma4.vocab_size_per_layer_input = 15;
}

}  // namespace streambp::reference
