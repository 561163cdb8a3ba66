#include "verify/compare/fit.h"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>

#include "verify/error_measure.h"

namespace streambp::verify {
namespace {

constexpr double kMadToDeviation = 1.4826;

double product_of(const at::Tensor& a, const at::Tensor& b) {
  return at::dot(a.flatten(), b.flatten()).item<double>();
}

}  // namespace

double factor_of(const at::Tensor& gradient, const at::Tensor& truth) {
  if (gradient.sizes() != truth.sizes()) return kNaN;
  const double largest = norm_of(truth);  // so that squares neither overflow nor vanish
  if (!(largest > 0.0)) return kNaN;
  const at::Tensor t = truth.to(at::kDouble) / largest;
  const double factor = product_of(gradient.to(at::kDouble) / largest, t) / product_of(t, t);
  return std::isfinite(factor) ? factor : kNaN;
}

double median_of(std::vector<double> numbers) {
  if (numbers.empty()) return kNaN;
  const size_t half = numbers.size() / 2;
  std::sort(numbers.begin(), numbers.end());
  return numbers.size() % 2 == 1 ? numbers[half] : 0.5 * (numbers[half - 1] + numbers[half]);
}

FactorFit fit_factor(const std::vector<double>& factors, double least_spread, double bias) {
  std::vector<double> known;
  for (const double factor : factors) {
    if (std::isfinite(factor)) known.push_back(factor);
  }
  FactorFit fit;
  fit.parameters = known.size();
  if (known.empty()) return fit;
  const double middle = median_of(known);
  std::vector<double> distances;
  for (const double factor : known) distances.push_back(std::abs(factor - middle));
  const double reach = std::max(kMadToDeviation * median_of(distances), least_spread * std::abs(middle));
  double sum = 0.0;
  double count = 0.0;
  for (const double factor : known) {
    if (std::abs(factor - middle) > 3.0 * reach) continue;
    sum += factor;
    count += 1.0;
  }
  fit.factor = count > 0.0 ? sum / count : middle;
  const double size = std::abs(fit.factor);
  fit.spread = size > 0.0 ? reach / size : 0.0;
  const double half_width = size * (fit.spread + bias);
  fit.low = fit.factor - half_width;
  fit.high = fit.factor + half_width;
  return fit;
}

std::vector<std::string> explain_factor(double c, double divisor, const std::vector<Normaliser>& normalisers,
                                        double tolerance) {
  struct Guess {
    std::string text;
    double error;
  };
  std::vector<Guess> guesses;
  const auto offer = [&](double factor, std::string text) {
    const double error = relative_error(c, factor);
    if (error <= tolerance) guesses.push_back({std::move(text), error});
  };
  for (const auto& [name, value] : normalisers) {
    if (value > 0.0 && value != divisor)
      offer(divisor / value,
            fmt::format("the loss divided by {} = {:g} instead of {:g}", name, value, divisor));
  }
  for (int count = 2; count <= 64; ++count) {
    offer(count, fmt::format("{} steps or ranks summed instead of averaged", count));
    offer(1.0 / count, fmt::format("averaged over {} steps or ranks that are in the divisor already", count));
  }
  offer(-1.0, "the opposite sign");
  std::stable_sort(guesses.begin(), guesses.end(),
                   [](const Guess& a, const Guess& b) { return a.error < b.error; });
  std::vector<std::string> texts;
  for (size_t i = 0; i < std::min<size_t>(guesses.size(), 3); ++i) texts.push_back(guesses[i].text);
  return texts;
}

}  // namespace streambp::verify
