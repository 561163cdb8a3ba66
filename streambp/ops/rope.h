// Rotary position embedding: each pair (x_i, x_{i+R/2}) of a head's first R entries is rotated by the angle
// position * frequency_i (Su et al., 2021; the half-split pairing of Hugging Face's rotate_half).
#pragma once

#include <ATen/ATen.h>

namespace streambp {

/// Cosines and sines of a run of tokens, [n, R/2] each, in the dtype of the model.
struct RopeTable {
  at::Tensor cosine;
  at::Tensor sine;
  at::Tensor angles = {};  // [n, R/2], float32 or wider, where the frequencies are trained

  RopeTable rows(int64_t begin, int64_t end) const {
    const auto part = [&](const at::Tensor& of_all) { return of_all.narrow(0, begin, end - begin); };
    return {part(cosine), part(sine), angles.defined() ? part(angles) : at::Tensor()};
  }
};

/// The table of `positions` [n] (int64) for `inverse_frequencies` [R/2] (float64), times `factor` (yarn,
/// longrope): angles, cosines and sines are taken in double, rounded to `dtype` once. `row_factors` [n],
/// where it is defined, multiplies each row as well (float64).
RopeTable rope_table(const at::Tensor& positions, const at::Tensor& inverse_frequencies, double factor,
                     at::ScalarType dtype, const at::Tensor& row_factors = {});

/// x rotated by `sign` times the table's angles, op by op in ATen: for devices without kernels of ours, and a
/// second opinion for tests.
at::Tensor rope_plain(const at::Tensor& x, const RopeTable& table, double sign);

/// x [n, heads, E] with the even ones of each head's first `rotated` entries before the odd ones: turns pairs
/// (x_2i, x_2i+1), as GLM's rotation has them, into those of rope(). Scores are the same for queries and keys
/// in any common order. Nothing is kept for the backward pass.
at::Tensor split_pairs(const at::Tensor& x, int64_t rotated);

/// Rotates x [n, heads, E]. The inverse of a rotation is its transpose, so nothing of x is kept for the
/// backward pass.
at::Tensor rope(const at::Tensor& x, const RopeTable& table);

/// x [n, heads, E] whose last R entries are rotated in pairs of neighbours (DeepSeek V4), or with `back` by
/// the opposite angles: op by op in ATen, in float32 or wider. Nothing is kept for the backward pass.
at::Tensor rope_last_pairs(const at::Tensor& x, const RopeTable& table, bool back = false);

}  // namespace streambp
