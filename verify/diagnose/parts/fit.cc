#include "verify/diagnose/parts/fit.h"

#include <algorithm>
#include <cmath>
#include <fmt/ranges.h>
#include <limits>

#include "streambp/error.h"

namespace streambp::verify {
namespace {

constexpr double kSmallestNorm = 1e-6;
/// Entries of a parameter in a sketch.
constexpr int64_t kSketch = 128;
/// Larger gradients are fitted by their sketches.
constexpr int64_t kMostEntries = int64_t{1} << 22;
/// A factor is believed where it takes this much of the residual away, or where parameters agree on it: it is
/// further from 1 than so many times what their own factors differ by.
constexpr double kFactorHelps = 0.7;
constexpr double kFactorIsClear = 5.0;
/// A factor this close to 1 is rounding: of float64, and of float32 next to what rounds an entry.
constexpr double kFitRounding = 1e-12;
constexpr double kSingleFactor = 200.0, kSingleRounding = 1e-7;
/// How much of a residual a factor may be off by.
constexpr double kSharedError = 0.3;
/// With a residual beyond, a factor says nothing.
constexpr double kFarOff = 0.5;
/// The standard deviation of a normal distribution by the median of the distances from its median.
constexpr double kDeviationOfMedian = 1.4826;

double median(std::vector<double> values) {
  if (values.empty()) return 0.0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

double dot_of(const at::Tensor& a, const at::Tensor& b) {
  return at::dot(a, b).item<double>();
}

}  // namespace

double rounding_of(const Tensors& gradients) {
  double rounding = 0.0;
  for (const auto& [name, gradient] : gradients) {
    const at::ScalarType dtype = gradient.scalar_type();
    if (dtype == at::kBFloat16) rounding = std::max(rounding, 1.7e-3);
    if (dtype == at::kHalf) rounding = std::max(rounding, 2.1e-4);
    if (dtype == at::kFloat) rounding = std::max(rounding, 2.6e-8);
  }
  return rounding;
}

bool has_dtype(const Tensors& gradients, at::ScalarType dtype) {
  return std::any_of(gradients.begin(), gradients.end(),
                     [&](const auto& entry) { return entry.second.scalar_type() == dtype; });
}

FitGauge::FitGauge(const Tensors& gradients, const Tensors& truth) {
  std::vector<at::Tensor> parts;
  std::vector<double> own_norms, truth_norms, ratios;
  for (const auto& [name, of_truth] : truth) {
    const auto found = gradients.find(name);
    if (found != gradients.end() && found->second.sizes() != of_truth.sizes()) {
      throw InputError("{}: its gradient is [{}], expected [{}]", name,
                       fmt::join(found->second.sizes(), ", "), fmt::join(of_truth.sizes(), ", "));
    }
    names_.push_back(name);
    parts.push_back(found == gradients.end() ? at::zeros({of_truth.numel()}, at::kDouble)
                                             : found->second.to(at::kCPU, at::kDouble).flatten());
    own_norms.push_back(norm_of(parts.back()));
    if (!std::isfinite(own_norms.back()))
      throw InputError("{}: its gradient has numbers that are not finite", name);
    truth_norms.push_back(norm_of(of_truth));
    if (own_norms.back() > 0.0 && truth_norms.back() > 0.0)
      ratios.push_back(own_norms.back() / truth_norms.back());
    ends_.push_back((ends_.empty() ? 0 : ends_.back()) + of_truth.numel());
  }
  if (names_.empty()) throw InputError("no parameter is trained, so no gradient can be explained");
  // The truth as large as these gradients are, where they have another common factor.
  const double scale = ratios.empty() ? 1.0 : median(ratios);
  std::vector<double> norms;
  for (size_t i = 0; i < parts.size(); ++i) norms.push_back(std::max(own_norms[i], scale * truth_norms[i]));
  const double largest = *std::max_element(norms.begin(), norms.end());
  at::Generator generator = at::detail::createCPUGenerator(1);
  std::vector<at::Tensor> scales, indices, weights;
  int64_t begin = 0;
  for (size_t i = 0; i < parts.size(); ++i) {
    const double norm = std::max(norms[i], kSmallestNorm * largest);
    const int64_t size = ends_[i] - begin;
    scales.push_back(at::full({size}, norm > 0.0 ? 1.0 / norm : 1.0, at::kDouble));
    indices.push_back(at::randint(size, {std::min(kSketch, size)}, generator, at::kLong) + begin);
    const auto share = static_cast<double>(size) / static_cast<double>(indices.back().size(0));
    weights.push_back(at::full({indices.back().size(0)}, std::sqrt(share), at::kDouble));
    begin = ends_[i];
  }
  scale_ = at::cat(scales);
  sketch_indices_ = at::cat(indices);
  own_ = at::cat(parts) * scale_;
  if (const double rounding = rounding_of(gradients); rounding <= kSingleRounding)
    factor_rounding_ = std::max(kFitRounding, kSingleFactor * rounding);
  own_sketch_ = own_.index_select(0, sketch_indices_);
  if (begin > kMostEntries) entry_weights_ = at::cat(weights);
  own_vector_ = entry_weights_.defined() ? own_sketch_ * entry_weights_ : own_;
}

at::Tensor FitGauge::vector_of(const Tensors& gradients) const {
  const at::Tensor all = flat(gradients);
  return entry_weights_.defined() ? all.index_select(0, sketch_indices_) * entry_weights_ : all;
}

at::Tensor FitGauge::flat(const Tensors& gradients) const {
  std::vector<at::Tensor> parts;
  for (const std::string& name : names_)
    parts.push_back(gradients.at(name).to(at::kCPU, at::kDouble).flatten());
  return at::cat(parts).mul_(scale_);
}

Fit FitGauge::measure(const Tensors& hypothesis, at::Tensor* sketch) const {
  const at::Tensor h = flat(hypothesis);
  if (sketch != nullptr) *sketch = h.index_select(0, sketch_indices_);
  // By differences: products of nearly equal vectors would lose what is left of them.
  const auto residual = [&](double factor) {
    return at::sub(own_, h, factor).norm().item<double>() / std::sqrt(static_cast<double>(names_.size()));
  };
  Fit fit;
  fit.residual = fit.without_factor = residual(1.0);
  const double square = dot_of(h, h), product = dot_of(own_, h);
  if (!(square > 0.0) || product == 0.0) return fit;
  const double best = product / square, with_best = residual(best);
  if (std::abs(best - 1.0) <= factor_rounding_ || !(with_best <= kFarOff)) return fit;
  std::vector<double> factors;  // of each parameter alone
  int64_t begin = 0;
  for (const int64_t end : ends_) {
    const at::Tensor of_h = h.slice(0, begin, end);
    if (const double own_square = dot_of(of_h, of_h); own_square > 0.0)
      factors.push_back(dot_of(own_.slice(0, begin, end), of_h) / own_square);
    begin = end;
  }
  const double common = median(factors);
  for (double& factor : factors) factor = std::abs(factor - common);
  const double spread = kDeviationOfMedian * median(factors);
  const bool helps = with_best <= kFactorHelps * fit.without_factor;
  const bool is_clear = with_best < fit.without_factor && std::abs(common - 1.0) > kFactorIsClear * spread &&
                        std::abs(best - common) <= spread + kFitRounding;
  if (!helps && !is_clear) return fit;
  fit.residual = with_best;
  fit.factor = best;
  // What all share, a bias of rounding say, doesn't show in what they differ by.
  const double of_spread = 3.0 * spread / (std::abs(best) * std::sqrt(static_cast<double>(factors.size())));
  fit.factor_error = std::max({of_spread, kSharedError * with_best, factor_rounding_});
  return fit;
}

double FitGauge::sketch_residual(const at::Tensor& hypothesis) const {
  const double square = dot_of(hypothesis, hypothesis);
  const double factor = square > 0.0 ? dot_of(own_sketch_, hypothesis) / square : 1.0;
  return at::sub(own_sketch_, hypothesis, factor).norm().item<double>();
}

}  // namespace streambp::verify
