#include "verify/diagnose/trials/biases.h"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>

#include "streambp/error.h"

namespace streambp::verify {
namespace {

/// Of what a mistake in rounding does, the share that has to be there, how many times what noise has of it,
/// and how large it has to be at all.
constexpr double kLeastShare = 0.5;
constexpr double kClearShare = 5.0;
constexpr double kLeastEffect = 0.02;
/// Directions of the noise that are independent.
constexpr double kIndependentOfNoise = 16.0;

}  // namespace

std::vector<Explanation> explain_biases(
    const BiasSubject& of, const std::vector<Hypothesis>& hypotheses,
    const std::function<Tensors(const WrongSubject&, const WrongSettings&)>& run, size_t& tried) {
  std::vector<Explanation> explanations;
  const at::Tensor truth = of.gauge.vector_of(of.truth), off = of.gauge.own() - truth;
  std::vector<at::Tensor> noise;
  for (const Tensors& gradients : of.noise) noise.push_back(of.gauge.vector_of(gradients) - truth);
  for (const Hypothesis& each : hypotheses) {
    if (each.about != "sums") continue;
    at::Tensor effect;
    try {
      effect = of.gauge.vector_of(run(of.subject, each.settings())) - truth;
    } catch (const InputError&) {
      continue;
    }
    ++tried;
    const double square = at::dot(effect, effect).item<double>();
    if (!(square > std::pow(kLeastEffect, 2) * static_cast<double>(of.gauge.parameters()))) continue;
    const auto share = [&](const at::Tensor& error) {
      return at::dot(error, effect).item<double>() / square;
    };
    double natural = of.residual / std::sqrt(square * kIndependentOfNoise);
    for (const at::Tensor& one : noise) natural = std::max(natural, std::abs(share(one)));
    const double found = share(off);
    if (!(found > kLeastShare && found < 1.0 / kLeastShare && found > kClearShare * natural)) continue;
    Fit fit;
    fit.residual = fit.without_factor =
        (off - effect * found).norm().item<double>() / std::sqrt(static_cast<double>(of.gauge.parameters()));
    explanations.push_back(
        {each.name,
         fmt::format("{} ({:.0f} % of what that does is in these gradients, where noise has {:.0f} % "
                     "at most)",
                     each.sentence, 100.0 * found, 100.0 * natural),
         fit});
  }
  return explanations;
}

}  // namespace streambp::verify
