#include "verify/error_measure.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <limits>
#include <set>

namespace streambp::verify {
namespace {

/// The float64 numbers of a small tensor, for plain loops: a sweep holds a million of them against each
/// other, for which ATen's calls take longer than their arithmetic. None for any other tensor.
const double* small_numbers(const at::Tensor& value) {
  constexpr int64_t kSmall = 1 << 14;
  const bool plain = value.is_cpu() && value.scalar_type() == at::kDouble && value.is_contiguous();
  return plain && value.numel() <= kSmall ? value.const_data_ptr<double>() : nullptr;
}

/// The largest magnitude of numbers, `at(i)` each; NaN and infinity where there is one.
template <typename At>
double largest_number(int64_t count, const At& at) {
  double largest = 0.0;
  for (int64_t i = 0; i < count; ++i) {
    const double magnitude = std::abs(at(i));
    if (std::isnan(magnitude)) return magnitude;
    largest = std::max(largest, magnitude);
  }
  return largest;
}

/// Their Euclidean norm, without overflow; NaN where one is not finite.
template <typename At>
double norm_of_numbers(int64_t count, const At& at) {
  const double largest = largest_number(count, at);
  if (!std::isfinite(largest)) return kNaN;
  if (largest == 0.0) return 0.0;
  double sum = 0.0;
  for (int64_t i = 0; i < count; ++i) {
    const double part = at(i) / largest;
    sum += part * part;
  }
  return largest * std::sqrt(sum);
}

double largest_of(const at::Tensor& value) {
  if (value.numel() == 0) return 0.0;
  if (const double* numbers = small_numbers(value)) {
    return largest_number(value.numel(), [numbers](int64_t i) { return numbers[i]; });
  }
  return at::linalg_vector_norm(value, std::numeric_limits<double>::infinity(), {}, false, at::kDouble)
      .item<double>();
}

bool is_finite(const at::Tensor& value) {
  return std::isfinite(largest_of(value));
}

/// What keeps two tensors from being compared, whatever numbers they hold; empty if nothing does.
std::string find_problem(const at::Tensor& value, const at::Tensor& truth) {
  if (!at::isFloatingType(value.scalar_type()) || !at::isFloatingType(truth.scalar_type())) {
    return fmt::format("dtype {}, expected a floating one", c10::toString(value.scalar_type()));
  }
  if (value.sizes() != truth.sizes()) {
    return fmt::format("shape [{}], expected [{}]", fmt::join(value.sizes(), ", "),
                       fmt::join(truth.sizes(), ", "));
  }
  return {};
}

ParameterError parameter_error(const std::string& name, const Tensors& gradients, const Tensors& truth) {
  const auto value = gradients.find(name);
  const auto expected = truth.find(name);
  if (value == gradients.end()) return {name, kNaN, "missing"};
  if (expected == truth.end()) return {name, kNaN, "surplus"};
  std::string problem = find_problem(value->second, expected->second);
  if (!problem.empty()) return {name, kNaN, std::move(problem)};
  const double error = relative_error(value->second, expected->second);
  if (!std::isnan(error)) return {name, error, {}};
  problem = !is_finite(value->second)      ? "holds NaN or infinity"
            : !is_finite(expected->second) ? "the truth holds NaN or infinity"
                                           : "differs by more than a float64 holds";
  return {name, error, std::move(problem)};
}

}  // namespace

double unit_roundoff(at::ScalarType dtype) {
  if (dtype == at::kDouble) return 0x1p-53;
  if (dtype == at::kFloat) return 0x1p-24;
  return dtype == at::kHalf ? 0x1p-11 : 0x1p-8;
}

double norm_of(const at::Tensor& value) {
  if (const double* numbers = small_numbers(value)) {
    return norm_of_numbers(value.numel(), [numbers](int64_t i) { return numbers[i]; });
  }
  const double largest = largest_of(value);
  if (!std::isfinite(largest)) return kNaN;
  if (largest == 0.0) return 0.0;
  return largest * (value.to(at::kDouble) / largest).norm().item<double>();
}

double norm_of_all(const Tensors& tensors) {
  double squares = 0.0;
  for (const auto& [name, tensor] : tensors) squares += std::pow(norm_of(tensor), 2);
  return std::sqrt(squares);
}

double relative_error(const at::Tensor& value, const at::Tensor& truth) {
  if (!find_problem(value, truth).empty()) return kNaN;
  const double* values = small_numbers(value);
  const double* truths = small_numbers(truth);
  const double difference =
      values && truths ? norm_of_numbers(value.numel(), [&](int64_t i) { return values[i] - truths[i]; })
                       : norm_of(value.to(at::kDouble) - truth.to(at::kDouble));
  const double scale = norm_of(truth);
  return scale == 0.0 ? difference : difference / scale;
}

double relative_error(double value, double truth) {
  if (!std::isfinite(value) || !std::isfinite(truth)) return kNaN;
  const double difference = std::abs(value - truth);
  return truth == 0.0 ? difference : difference / std::abs(truth);
}

double worse(double a, double b) {
  return is_worse(a, b) ? a : b;
}

bool is_worse(double a, double b) {
  return std::isnan(a) ? !std::isnan(b) : a > b;
}

bool bit_equal(const at::Tensor& a, const at::Tensor& b) {
  if (a.scalar_type() != b.scalar_type() || a.sizes() != b.sizes()) return false;
  if (!is_finite(a)) return false;
  if (a.numel() == 0) return true;
  const at::Tensor left = a.contiguous();
  const at::Tensor right = b.contiguous();
  return std::memcmp(left.const_data_ptr(), right.const_data_ptr(), left.nbytes()) == 0;
}

bool is_zero(const at::Tensor& value) {
  return value.eq(0).all().item<bool>();
}

std::vector<ParameterError> gradient_errors(const Tensors& gradients, const Tensors& truth) {
  std::set<std::string> names;
  for (const auto& [name, tensor] : gradients) names.insert(name);
  for (const auto& [name, tensor] : truth) names.insert(name);
  std::vector<ParameterError> errors;
  for (const std::string& name : names) errors.push_back(parameter_error(name, gradients, truth));
  std::stable_sort(errors.begin(), errors.end(), [](const ParameterError& a, const ParameterError& b) {
    return is_worse(a.error, b.error);
  });
  return errors;
}

std::string error_text(double error) {
  return std::isnan(error) ? "NaN" : fmt::format("{:.1e}", error);
}

}  // namespace streambp::verify
