// What the long cases compare with: plain loops over the raw elements, in double, with indices counted in 64
// bits. Nothing here calls an op of ATen on the data of a case.
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/ATen.h>

#include "streambp/ops/attention/attention_kernels.h"

namespace streambp::verify {

/// Elements of a float64, float32 or bfloat16 tensor by their index in its storage, from its first one on.
class Elements {
 public:
  explicit Elements(const at::Tensor& x);

  double operator[](int64_t index) const;
  void load(int64_t index, int64_t count, double* to) const;

 private:
  const void* data_;
  at::ScalarType dtype_;
};

/// Indices of [0, size), ascending: the ends, those within two of an entry of `near`, and `more` others.
std::vector<int64_t> sampled_indices(int64_t size, const std::vector<int64_t>& near, int64_t more);

/// Rows of x [n, ...] as [m, elements of a row] float64; the elements of a row are neighbours.
at::Tensor rows_at(const at::Tensor& x, const std::vector<int64_t>& indices);

/// A tensor of standard normal numbers, or of integers from -1 to 1, which repeat after an odd number of
/// elements: those a power of two apart differ, and a few billion are there in seconds.
at::Tensor patterned_normal(at::IntArrayRef shape, at::ScalarType dtype, uint64_t seed);
at::Tensor patterned_integers(at::IntArrayRef shape, at::ScalarType dtype, uint64_t seed);

/// x [n, size] normal and float32 with x[i][j] = y[i + j]: no row is another's copy, and it takes n numbers.
at::Tensor overlapping_rows(int64_t n, int64_t size, uint64_t seed);

/// What one query gives and leaves.
struct AttentionRow {
  std::vector<double> output;   // [H * E]
  std::vector<double> d_query;  // [H * E]
};

/// Row `query` of q [n, H, E] on keys [first, end) of k and v [m, K, E], with the gradient dy [H * E] of its
/// output. Adds its share to d_keys and d_values [m * K * E] unless they are empty. Scores have to stay where
/// their exponentials do not overflow: no maximum is taken out.
AttentionRow attention_row(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, int64_t query,
                           int64_t first, int64_t end, const Scoring& scoring, const std::vector<double>& dy,
                           std::vector<double>& d_keys, std::vector<double>& d_values);

}  // namespace streambp::verify
