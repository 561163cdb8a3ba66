// Tensors as if they lay one after another in one: what ranks exchange of a layer without a copy of it.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include <ATen/ATen.h>

namespace streambp {

/// Contiguous tensors of one dtype and device, read and written through as one tensor [n], n their numbers in
/// all. Keeps no copy: what is written changes the tensors themselves.
class Concatenation {
 public:
  /// Throws InputError for no tensor, for one that is not contiguous, and for several dtypes or devices.
  explicit Concatenation(const std::vector<at::Tensor>& tensors);
  explicit Concatenation(const at::Tensor& tensor) : Concatenation(std::vector<at::Tensor>{tensor}) {}

  int64_t size() const { return starts_.back(); }
  const at::TensorOptions& options() const { return options_; }
  at::ScalarType dtype() const { return c10::typeMetaToScalarType(options_.dtype()); }

  /// Numbers [begin, end): a view where they lie in one of the tensors, a copy otherwise.
  at::Tensor read(int64_t begin, int64_t end) const;

  /// The view of [begin, end) where they lie in one of the tensors; undefined otherwise.
  at::Tensor view(int64_t begin, int64_t end) const;

  /// Puts `values` [n] at [begin, begin + n).
  void write(int64_t begin, const at::Tensor& values) const;

 private:
  /// Views of the parts of [begin, end), in order.
  std::vector<at::Tensor> parts(int64_t begin, int64_t end) const;

  std::vector<at::Tensor> flat_;  // [n_i] each
  std::vector<int64_t> starts_;   // [tensors + 1]
  at::TensorOptions options_;
};

/// Of n numbers over `ranks` ranks, those of `rank`: equal shares of ceil(n / ranks) from the first rank on,
/// of which the last ones may be smaller or empty.
std::pair<int64_t, int64_t> shard_of(int64_t n, int64_t rank, int64_t ranks);

}  // namespace streambp
