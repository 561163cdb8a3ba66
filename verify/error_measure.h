// How far a result is from the truth. One definition for every check of the project, made so that NaN, a
// missing tensor or a wrong shape can't pass for a small error.
#pragma once

#include <limits>
#include <map>
#include <string>
#include <vector>

#include <ATen/ATen.h>

namespace streambp::verify {

/// Tensors by parameter name.
using Tensors = std::map<std::string, at::Tensor>;

/// What an error is that can't be measured.
inline constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

/// Half the distance from 1 to the next number of float64, float32, float16 or bfloat16.
double unit_roundoff(at::ScalarType dtype);

/// The norm of `value` over all entries in float64, scaled so that squares neither overflow nor vanish. NaN
/// where an entry is NaN or infinite.
double norm_of(const at::Tensor& value);
/// Of all of them together.
double norm_of_all(const Tensors& tensors);

/// |value - truth| / |truth| in that norm; where the truth is zero there is nothing to relate to and the
/// error is |value|. NaN if shapes differ, a dtype is not floating, or an entry of either is NaN or infinite.
double relative_error(const at::Tensor& value, const at::Tensor& truth);
double relative_error(double value, double truth);

/// The larger of two errors; NaN, the worst of all, if either is NaN.
double worse(double a, double b);

/// Whether error `a` is worse than `b`: NaN is worse than any number.
bool is_worse(double a, double b);

/// Whether two tensors have the same dtype, shape and bytes, and every entry is finite (NaN is equal to
/// nothing).
bool bit_equal(const at::Tensor& a, const at::Tensor& b);

/// Whether a tensor has no entry but 0.
bool is_zero(const at::Tensor& value);

/// One parameter's gradient against the truth.
struct ParameterError {
  std::string name;
  double error = 0.0;  // relative_error; NaN where there is a problem
  std::string
      problem;  // missing, surplus, wrong shape or dtype, not finite; empty where the error is a number
};

/// Every name of either side, the worst first: those with a problem, then by error.
std::vector<ParameterError> gradient_errors(const Tensors& gradients, const Tensors& truth);

/// "1.2e-15", "NaN".
std::string error_text(double error);

}  // namespace streambp::verify
