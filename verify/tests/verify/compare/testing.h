// What the tests of comparisons share.
#pragma once

#include <cstdint>

#include <ATen/ATen.h>

namespace streambp::verify {

inline constexpr const char* kEmbedding = "model.embed_tokens.weight";
inline constexpr const char* kProjection = "model.layers.0.self_attn.q_proj.weight";

/// Seeded normal numbers in float64.
inline at::Tensor random_tensor(at::IntArrayRef shape, uint64_t seed) {
  return at::randn(shape, at::detail::createCPUGenerator(seed), at::TensorOptions().dtype(at::kDouble));
}

}  // namespace streambp::verify
