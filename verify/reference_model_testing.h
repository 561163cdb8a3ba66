// What the tests of the reference's model share: a small model and two sequences for it.
#pragma once

#include "reference/model.h"

namespace streambp::reference {

inline ModelConfig small_model() {
  ModelConfig config;
  config.vocab_size = 13;
  config.hidden_size = 10;
  config.intermediate_size = 9;
  config.num_hidden_layers = 2;
  config.num_attention_heads = 4;
  config.num_key_value_heads = 2;
  config.head_dim = 6;
  config.qkv_bias = true;
  config.qk_norm = true;
  return config;
}

inline const Sequence kSequence = {
    {3, 1, 4, 1, 5, 9, 2}, {0, 1, 2, 3, 4, 5, 6}, {1, 4, 1, 5, 9, 2, kNoTarget}};
inline const Sequence kOther = {{7, 12, 0}, {0, 1, 2}, {kNoTarget, 0, 8}};

inline double relative_error(const Matrix& actual, const Matrix& expected) {
  return (actual - expected).norm() / expected.norm();
}

}  // namespace streambp::reference
