// How well what a mistake would give fits somebody's gradients.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "verify/error_measure.h"

namespace streambp::verify {

/// With c a factor of all gradients g against those of a hypothesis, h.
struct Fit {
  double residual = 0.0;        // root of the mean over parameters of |g - c h|^2 / |g|^2
  double without_factor = 0.0;  // the same with 1 for c
  double factor = 1.0;          // c: the best, or 1 where that does as well within what parameters differ by
  double factor_error = 0.0;    // how well c is known, relative

  bool has_factor() const { return factor != 1.0; }
};

/// Measures hypotheses against given gradients. A parameter's norm counts as no less than a millionth of the
/// largest one's, nor than the truth's (times the factor that most have): a gradient that is zero but for
/// rounding says nothing, one that should not be zero does.
class FitGauge {
 public:
  /// `gradients` under the truth's names; what is missing is zero, as frameworks leave it out. Throws
  /// InputError for a gradient of another shape.
  FitGauge(const Tensors& gradients, const Tensors& truth);

  /// `sketch` (may be null) receives some entries of what is compared, in one vector: the same entries in
  /// every call.
  Fit measure(const Tensors& hypothesis, at::Tensor* sketch = nullptr) const;

  /// What is compared, in one vector: all entries, or of large models some of each parameter for all, as wide
  /// as all are. The norm of a difference over the root of parameters() is a residual.
  at::Tensor vector_of(const Tensors& gradients) const;
  const at::Tensor& own() const { return own_vector_; }
  size_t parameters() const { return names_.size(); }

  /// How far a sketch, or a sum of such, is from the given gradients' with the best factor, to be compared
  /// with others.
  double sketch_residual(const at::Tensor& hypothesis) const;

 private:
  /// All gradients in one vector, each over its norm.
  at::Tensor flat(const Tensors& gradients) const;

  std::vector<std::string> names_;
  std::vector<int64_t> ends_;  // of each parameter in the vector
  at::Tensor scale_;           // 1 / norm of its parameter, of each entry
  at::Tensor own_;
  at::Tensor sketch_indices_;
  at::Tensor own_sketch_;
  at::Tensor entry_weights_;  // of the sketch's entries, so that they stand for all; undefined: all are taken
  at::Tensor own_vector_;
  double factor_rounding_ = 1e-12;  // a factor this close to 1 is rounding
};

/// What rounding an entry to the coarsest dtype among the gradients does to it on average.
double rounding_of(const Tensors& gradients);

bool has_dtype(const Tensors& gradients, at::ScalarType dtype);

}  // namespace streambp::verify
