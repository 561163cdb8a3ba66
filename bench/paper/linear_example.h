// The paper's linear example (arXiv 2506.03077, table 8): two maps of the same input, Y = X W1^T W2^T, back-
// propagated at once or by chunks of rows.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <ATen/ATen.h>

namespace streambp::bench {

enum class LinearMethod {
  kStandard,  // autograd over all rows
  kChunked,   // autograd over one chunk of rows after another, as the paper does
  kInPlace,   // the same chunks with this project's ops: products are added to the gradients where they are
};

/// standard, chunked, in-place.
std::string linear_method_name(LinearMethod method);

/// X [rows, size] and two weights [size, size].
struct LinearExample {
  int64_t rows = 0;
  int64_t size = 0;
  at::ScalarType dtype = at::kFloat;
  c10::Device device = at::kMeta;
  uint64_t seed = 0;
};

/// What one run of it took.
struct LinearRun {
  LinearMethod method = LinearMethod::kStandard;
  int64_t chunks = 0;                // 0: standard
  int64_t peak_bytes = 0;            // with input, weights and gradients
  int64_t intermediate_bytes = 0;    // the peak without them
  std::vector<double> seconds = {};  // none on the meta device
  std::optional<double> loss = {};
  std::optional<double> error =
      {};  // of the gradients against standard: largest difference over largest entry
};

/// Standard first, then every number of chunks by both chunked methods. The loss is sum(Y^2) / (2 rows): its
/// gradient is as large as Y, and Y stays alive until its backward pass. Throws InputError for more chunks
/// than rows; OutOfMemory.
std::vector<LinearRun> run_linear_example(const LinearExample& example, const std::vector<int64_t>& chunks,
                                          int64_t repeats);

/// How far apart two orders of summing `rows` products may end in `dtype`: 4 sqrt(rows) units of rounding
/// (Higham and Mary, 2019, SIAM J. Sci. Comput. 41(5), A2815: rounding errors of a sum grow as the root of
/// its length).
double linear_error_limit(int64_t rows, at::ScalarType dtype);

}  // namespace streambp::bench
